// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/mismatch.h"

#include <algorithm>
#include <string>
#include <vector>

namespace smd::algorithms {
namespace {

struct Opinion {
  Signature signature;
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

bool differInOrder(const Signature& a, const Signature& b) {
  return a.kind == b.kind && a.count == b.count && a.detail != b.detail &&
         (a.detail == 0 || !describeStorageOrder(a.detail).empty()) &&
         (b.detail == 0 || !describeStorageOrder(b.detail).empty());
}

std::string advice(const Signature& a, const Signature& b) {
  if (a.kind != b.kind) {
    return "all ranks must make the same calls in the same order. Look for a branch that depends "
           "on "
           "the rank, or for ranks that run a different number of batches.";
  }
  if (a.dtype != b.dtype) {
    return "all ranks must pass one dtype. Look for a conversion (AMP, .half()) that only some "
           "ranks "
           "make before this call.";
  }
  if (differInOrder(a, b)) {
    return "all ranks must pass one memory format. Convert the tensor on all ranks before this "
           "call, with .contiguous() or .to(memory_format=...).";
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
    const Signature& other = opinions[i == 0 ? 1 : 0].signature;
    if (differInOrder(signature, other)) {
      text +=
          signature.detail == 0 ? " contiguous" : " with " + describeStorageOrder(signature.detail);
    } else if (i > 0 && signature.count == opinions[0].signature.count &&
               signature.detail != opinions[0].signature.detail) {
      text += " with another list of sizes or memory formats";
    }
  }
  text += ". Expected: " + advice(opinions[0].signature, opinions[1].signature);
  return Error(ErrorKind::kMismatch, text);
}

}  // namespace

Error mismatchError(std::span<const std::pair<int, Signature>> signatures) {
  std::vector<Opinion> opinions;
  for (const auto& [rank, signature] : signatures) {
    auto same = std::find_if(opinions.begin(), opinions.end(),
                             [&signature = signature](const Opinion& opinion) {
                               return opinion.signature == signature;
                             });
    if (same == opinions.end()) {
      opinions.push_back({signature, {}});
      same = std::prev(opinions.end());
    }
    same->ranks.push_back(rank);
  }
  return opinionsError(std::move(opinions));
}

Error mismatchError(int rankA, const Signature& a, int rankB, const Signature& b) {
  std::vector<std::pair<int, Signature>> byRank{{rankA, a}, {rankB, b}};
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
