// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/mismatch.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace smd::algorithms {
namespace {

struct Opinion {
  Signature signature;
  std::string purpose;  // of the first of them
  std::vector<int> ranks;
};

std::string ranksText(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == 8) return text + ", ... (" + std::to_string(ranks.size()) + " ranks)";
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

// Of what has a purpose the detail is a digest, which may look like anything.
bool differInOrder(const Opinion& first, const Opinion& second) {
  const Signature& a = first.signature;
  const Signature& b = second.signature;
  return first.purpose.empty() && second.purpose.empty() && a.kind == b.kind &&
         a.count == b.count && a.detail != b.detail &&
         (a.detail == 0 || !describeStorageOrder(a.detail).empty()) &&
         (b.detail == 0 || !describeStorageOrder(b.detail).empty());
}

std::string advice(const Opinion& first, const Opinion& second) {
  const Signature& a = first.signature;
  const Signature& b = second.signature;
  if (a.kind != b.kind) {
    return "all ranks must make the same calls in the same order. Look for a branch that depends "
           "on "
           "the rank, or for ranks that run a different number of batches.";
  }
  if (a.dtype != b.dtype && first.purpose != second.purpose) {
    return "all ranks must make the same calls, for tensors of the same dtypes, in the same order. "
           "Look for a branch that depends on the rank, for ranks that run a different number of "
           "batches, or for a conversion (AMP, .half()) that only some ranks make.";
  }
  if (a.dtype != b.dtype) {
    return "all ranks must pass one dtype. Look for a conversion (AMP, .half()) that only some "
           "ranks "
           "make before this call.";
  }
  if (differInOrder(first, second)) {
    return "all ranks must pass one memory format. Convert the tensor on all ranks before this "
           "call, with .contiguous() or .to(memory_format=...).";
  }
  const bool hasPurpose = !first.purpose.empty() || !second.purpose.empty();
  if (hasPurpose && (a.count != b.count || a.detail != b.detail)) {
    return "all ranks must make the same calls, for tensors of the same shapes, in the same order. "
           "Look for a branch, a set or a dictionary whose order depends on the rank, for ranks "
           "that run a different number of batches, and for variables that are made in another "
           "order.";
  }
  if (a.count != b.count || a.detail != b.detail) {
    return "all ranks must pass the same sizes. Look for data of uneven length, or for a branch "
           "that "
           "depends on the rank before this call.";
  }
  if (a.root != b.root) return "all ranks must name the same root. Pass a constant root rank.";
  return "all ranks must pass the same reduce operation. Look for an argument `op` that depends on "
         "the rank.";
}

Error opinionsError(std::vector<Opinion> opinions) {
  std::stable_sort(opinions.begin(), opinions.end(), [](const Opinion& a, const Opinion& b) {
    return a.ranks.size() > b.ranks.size();
  });
  std::string text = "ranks disagree about operation #" +
                     std::to_string(opinions.front().signature.sequence) + ": ";
  for (std::size_t i = 0; i < opinions.size(); ++i) {
    if (i > 0) text += "; ";
    Signature signature = opinions[i].signature;
    signature.sequence = 0;
    text += ranksText(opinions[i].ranks) + " called " + describe(signature);
    if (!opinions[i].purpose.empty()) text += " for " + opinions[i].purpose;
    if (differInOrder(opinions[i], opinions[i == 0 ? 1 : 0])) {
      text +=
          signature.detail == 0 ? " contiguous" : " with " + describeStorageOrder(signature.detail);
    } else if (i > 0 && opinions[i].purpose == opinions[0].purpose &&
               signature.count == opinions[0].signature.count &&
               signature.detail != opinions[0].signature.detail) {
      text += opinions[i].purpose.empty() ? " with another list of sizes or memory formats"
                                          : ", of another name, or in another order";
    }
  }
  text += ". Expected: " + advice(opinions[0], opinions[1]);
  return Error(ErrorKind::kMismatch, text);
}

}  // namespace

Error mismatchError(std::span<const Call> calls) {
  std::vector<Opinion> opinions;
  for (const Call& call : calls) {
    auto same = std::find_if(opinions.begin(), opinions.end(), [&call](const Opinion& opinion) {
      return opinion.signature == call.signature;
    });
    if (same == opinions.end()) {
      opinions.push_back({call.signature, call.purpose, {}});
      same = std::prev(opinions.end());
    }
    same->ranks.push_back(call.rank);
  }
  return opinionsError(std::move(opinions));
}

Error mismatchError(int rankA, const Signature& a, int rankB, const Signature& b) {
  std::vector<Call> byRank{{rankA, a, ""}, {rankB, b, ""}};
  if (rankB < rankA) std::swap(byRank[0], byRank[1]);
  return mismatchError(byRank);
}

Error splitMismatchError(const Signature& signature, int sender, std::uint64_t offered,
                         int receiver, std::uint64_t expected) {
  return Error(ErrorKind::kMismatch,
               describe(signature) + ": rank " + std::to_string(sender) + " sends " +
                   std::to_string(offered) + " elements to rank " + std::to_string(receiver) +
                   ", which expects " + std::to_string(expected) +
                   ". Expected: what one rank sends to another is what the other receives from it. "
                   "Compare the split sizes (or output shapes) of these two ranks.");
}

}  // namespace smd::algorithms
