// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives over several hosts: within a host through its ranks' memory, between hosts by
// messages along lanes (crossings.h), so that what a link carries does not grow with the number of
// ranks behind it. One file each; here is what they have in common.
//
// Large buffers go in rounds, several of which cross at the same time: while one is combined on the
// host or handed to the peers there, others keep the link busy.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "algorithms/between_hosts/crossings.h"
#include "algorithms/one_host/block_pipeline.h"

namespace smd::algorithms {

// What is cut into segments at a time. Large enough that a message is worth its header and its
// wake-ups, small enough that the first one is soon on its way.
inline constexpr std::uint64_t kRoundBytes = transport::kCrossingStagingBytes / kBlocks;
inline constexpr std::uint64_t kCacheLine = 64;
// Rounds that a rank is ready to receive before it may send them: other hosts may be ahead.
inline constexpr std::uint64_t kReadyAhead = 4;

// A staging block that is cut into as many slots has room for so many elements in each.
inline std::uint64_t elementsPerSlot(std::uint64_t slots, std::uint64_t element) {
  const std::uint64_t bytes = kRoundBytes / slots;
  const std::uint64_t aligned = bytes >= kCacheLine ? bytes / kCacheLine * kCacheLine : bytes;
  return std::max<std::uint64_t>(1, aligned / element);
}

// Also of nothing there is a round: who waits for it learns that all agree.
inline std::uint64_t roundsOf(std::uint64_t count, std::uint64_t perRound) {
  return std::max<std::uint64_t>(1, (count + perRound - 1) / perRound);
}

int hostOf(const hosts::Hosts& hosts, int rank);

// Met when no more than `limit` crossings are under way.
class FewCrossings final : public Condition {
 public:
  FewCrossings(Crossings& crossings, std::size_t limit) : crossings_(crossings), limit_(limit) {}
  bool isMet() override {
    crossings_.advance();
    return crossings_.numUnderWay() <= limit_;
  }
  std::vector<int> missingRanks() override { return crossings_.missingRanks(); }
  bool awaitsOtherHosts() const override { return true; }

 private:
  Crossings& crossings_;
  std::size_t limit_;
};

// What messages may be using when an error ends the coroutine that started them. In the frame of
// one that only waits for it, and so stays as it is (common/task.h).
struct Held {
  explicit Held(const Context& each) : context(each), crossings(*each.mailbox) {}

  std::byte* take(std::uint64_t bytes) {
    return buffers.emplace_back(context.scratch->take(bytes)).data.get();
  }
  // The buffer with this number, made with those before it.
  std::byte* numbered(std::size_t number, std::uint64_t bytes) {
    while (buffers.size() <= number) take(bytes);
    return buffers[number].data.get();
  }
  void giveBack() {
    for (Scratch::Buffer& buffer : buffers) context.scratch->giveBack(std::move(buffer));
    buffers.clear();
  }

  const Context& context;
  std::vector<Scratch::Buffer> buffers;
  Crossings crossings;
};

// As many as may be under way at a rank that is alone: for buffers used in turn.
inline constexpr std::uint64_t kMostAlone = kBlocks + kReadyAhead;

// Runs `body` with what it holds. `body` may start crossings that refer to its own frame if it does
// nothing but wait once the first one is under way.
Task holding(Context& context, Task (*body)(Context&, Held&));

// The only rank of its host: nothing but crossings, a window of them. `makeCrossing` takes the
// round and the turn of its sends.
template <class MakeCrossing>
Task crossInRounds(Crossings& crossings, std::uint64_t rounds, MakeCrossing makeCrossing) {
  for (std::uint64_t round = 0; round < rounds; ++round) {
    FewCrossings room(crossings, kMostAlone - 1);
    co_await room;
    const std::uint64_t before = round < kBlocks ? 0 : round + 1 - kBlocks;
    crossings.start(makeCrossing(round, Reached(crossings.numDone(), before)));
  }
  FewCrossings none(crossings, 0);
  co_await none;
}

Task reduceOverHosts(Context& context);  // all_reduce, reduce
Task broadcastOverHosts(Context& context);
Task allGatherOverHosts(Context& context);
Task reduceScatterOverHosts(Context& context);

}  // namespace smd::algorithms
