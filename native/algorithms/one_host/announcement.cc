// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/one_host/announcement.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "algorithms/mismatch.h"

namespace smd::algorithms {
namespace {

constexpr std::uint64_t kWord = sizeof(std::uint64_t);

std::uint64_t wordsOf(const Context& context) {
  return hasSplits(context.request.kind) ? 1 + 2 * static_cast<std::uint64_t>(context.size) : 1;
}

std::uint64_t wordOf(const Context& context, int rank, std::uint64_t index) {
  std::uint64_t value;
  std::memcpy(&value, payloadOf(context, rank, wordsOf(context) * kWord) + index * kWord,
              sizeof value);
  return value;
}

// n counts offered, n counts expected.
void describeSplits(const Context& context, std::span<std::uint64_t> words) {
  const Request& request = context.request;
  const auto n = static_cast<std::size_t>(context.size);
  const auto offered = words.first(n);
  const auto expected = words.last(n);
  const bool isRoot = context.rank == request.root;
  switch (request.kind) {
    case OpKind::kGather:
      offered[static_cast<std::size_t>(request.root)] = request.count;
      if (isRoot) std::ranges::copy(request.outputCounts, expected.begin());
      break;
    case OpKind::kScatter:
      if (isRoot) std::ranges::copy(request.inputCounts, offered.begin());
      expected[static_cast<std::size_t>(request.root)] = request.count;
      break;
    default:
      std::ranges::copy(request.inputCounts, offered.begin());
      std::ranges::copy(request.outputCounts, expected.begin());
      break;
  }
}

}  // namespace

bool hasSplits(OpKind kind) {
  return kind == OpKind::kGather || kind == OpKind::kScatter || kind == OpKind::kAllToAll;
}

void announce(const Context& context, BufferPlace place) {
  if (!hasSplits(context.request.kind)) {
    arrive(context, std::as_bytes(std::span(&place, 1)));
    return;
  }
  std::vector<std::uint64_t> words(wordsOf(context), 0);
  words.front() = place;
  describeSplits(context, std::span(words).subspan(1));
  arrive(context, bytesOf(words));
}

BufferPlace placeOf(const Context& context, int peer) { return wordOf(context, peer, 0); }

std::uint64_t Splits::entry(int rank, int index) const {
  return wordOf(context_, rank, 1 + static_cast<std::uint64_t>(index));
}

std::uint64_t Splits::check() const {
  std::uint64_t longest = 0;
  const int n = context_.size;
  for (int sender = 0; sender < n; ++sender) {
    for (int receiver = 0; receiver < n; ++receiver) {
      const std::uint64_t sent = offered(sender, receiver);
      const std::uint64_t expected = entry(receiver, n + sender);
      if (sent != expected) {
        throw splitMismatchError(context_.signature, sender, sent, receiver, expected);
      }
      longest = std::max(longest, sent);
    }
  }
  return longest;
}

std::vector<std::uint64_t> Splits::offeredTo(int receiver) const {
  std::vector<std::uint64_t> counts;
  for (int sender = 0; sender < context_.size; ++sender) {
    counts.push_back(offered(sender, receiver));
  }
  return counts;
}

std::uint64_t Splits::offeredBefore(int sender, int receiver) const {
  std::uint64_t total = 0;
  for (int before = 0; before < receiver; ++before) total += offered(sender, before);
  return total;
}

}  // namespace smd::algorithms
