// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Large buffers through the staging buffers of one host's ranks, block by block: who may do what
// when. What is done with a block is the algorithm's (staged.cc, hierarchical_*.cc). Words:
//   block   what passes through one rank's staging buffer at a time
//   round   block k of every rank; a rank's staging buffer holds kBlocks of them, used in turn
//   share   the part of a block that one rank reduces (cut by step_tables::shareOf)
//
// Each rank goes through its stages for every round and tells how far it is with three counters
// (RankCells): contributed (copied into its staging buffer), reduced (the result of its share is
// published in its own staging buffer), consumed (everything of peers it needed has been read). A
// stage of a later round may start before an earlier round is through, so ranks need not keep in
// step: copying, reducing and waiting overlap across ranks.
//
// Before a result is published something may have to cross to or from other hosts
// (crossings_under_way.h): other rounds go on meanwhile.
//
// Ranks are positions on this host here, except in what missingRanks() says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "algorithms/crossings_under_way.h"
#include "algorithms/one_host/arrival.h"

namespace smd::algorithms {

inline constexpr std::uint64_t kBlocks = 8;
inline constexpr int kEveryone = -1;

// Which stages this rank goes through, and whom it waits for.
struct Stages {
  std::uint64_t rounds = 0;
  std::uint64_t blockBytes = 0;  // kBlocks of them fit into a staging buffer
  std::uint64_t copyAhead = 1;   // at least; see Context
  bool contributes = true;
  bool reduces = false;
  bool consumes = true;
  bool consumesResults = false;  // of what was reduced; else of what was contributed
  int contributor = kEveryone;   // the only rank whose contributions are consumed
  // Not null: what is reduced, or else contributed, crosses before it is published.
  Crossings* crossings = nullptr;
};

// Progress of one rank through the rounds of one operation.
class Pipeline final : public Condition {
 public:
  Pipeline(Context& context, const Stages& stages)
      : context_(context),
        memory_(*context.memory),
        stages_(stages),
        base_(*context.blocksDone),
        arrived_(context) {
    // Stages that this rank skips are reported as done: nobody has to wait for them.
    if (!stages.contributes) publish(memory_.mine().contributed, contributed_ = stages.rounds);
    if (!stages.reduces) reduced_ = stages.rounds;
    if (!stages.reduces && stages.crossings == nullptr) {
      publish(memory_.mine().reduced, published_ = stages.rounds);
    }
    if (!stages.consumes) publish(memory_.mine().consumed, consumed_ = stages.rounds);
    if (!stages.contributes || !stages.reduces || !stages.consumes) tellPeers();
  }

  std::uint64_t base() const { return base_; }
  std::byte* block(int peer, std::uint64_t round) const {
    return memory_.staging(peer) + (base_ + round) % kBlocks * stages_.blockBytes;
  }

  bool isDone() const {
    return isSafe_ && std::min({contributed_, published_, consumed_}) == stages_.rounds;
  }
  // Until every rank has arrived with the same signature nothing of the caller's may be written.
  bool isSafe() {
    if (!isSafe_ && arrived_.isMet()) {
      fullFence();  // what peers published before they could see all arrive is seen from here on
      isSafe_ = true;
    }
    return isSafe_;
  }

  bool canContribute() {
    if (contributed_ == stages_.rounds) return false;
    const std::uint64_t ahead = std::max(stages_.copyAhead, context_.copyAhead);
    if (contributed_ >= std::min(published_, consumed_) + ahead) return false;
    // The staging block was last used so many rounds ago, perhaps by an earlier operation: every
    // peer must have reduced from it and read the results in it.
    const std::uint64_t target = base_ + contributed_ + 1;
    if (target <= kBlocks) return true;
    return reached(&transport::RankCells::reduced, target - kBlocks, kEveryone, freedByReduce_) &&
           reached(&transport::RankCells::consumed, target - kBlocks, kEveryone, freedByConsume_);
  }
  bool canReduce() {
    return reduced_ < stages_.rounds && contributed_ > reduced_ &&
           reached(&transport::RankCells::contributed, base_ + reduced_ + 1, kEveryone,
                   contributorsSeen_);
  }
  bool canPublish() const {
    return stages_.crossings != nullptr && stages_.crossings->numDone() > published_;
  }
  bool canConsume() {
    if (consumed_ == stages_.rounds) return false;
    const std::uint64_t target = base_ + consumed_ + 1;
    return stages_.consumesResults
               ? published_ > consumed_ &&
                     reached(&transport::RankCells::reduced, target, kEveryone, reducersSeen_)
               : reached(&transport::RankCells::contributed, target, stages_.contributor,
                         contributorsSeen_);
  }

  std::uint64_t contributed() const { return contributed_; }
  std::uint64_t reduced() const { return reduced_; }
  std::uint64_t published() const { return published_; }
  std::uint64_t consumed() const { return consumed_; }
  void didContribute() { publish(memory_.mine().contributed, ++contributed_); }
  // What does not cross is published with it.
  void didReduce() {
    ++reduced_;
    if (stages_.crossings == nullptr) didPublish();
  }
  void didPublish() { publish(memory_.mine().reduced, ++published_); }
  void didConsume() { publish(memory_.mine().consumed, ++consumed_); }
  // Before all have arrived nobody can go on: who is asleep then is woken by the last to arrive.
  void tellPeers() {
    fullFence();
    if (isSafe()) memory_.ringPeers();
  }
  void finish() const { *context_.blocksDone += stages_.rounds; }

  bool isMet() override {
    if (stages_.crossings != nullptr) stages_.crossings->advance();
    return canContribute() ||
           (isSafe() && (isDone() || canReduce() || canPublish() || canConsume()));
  }

  std::vector<int> missingRanks() override {
    if (!isSafe_) return arrived_.missingRanks();
    std::vector<int> missing;
    if (stages_.crossings != nullptr) missing = stages_.crossings->missingRanks();
    for (int peer = 0; peer < memory_.size(); ++peer) {
      const transport::RankCells& cells = memory_.cells(peer);
      const std::uint64_t slowest =
          std::min({cells.contributed.load(), cells.reduced.load(), cells.consumed.load()});
      if (peer != memory_.index() && slowest < base_ + stages_.rounds) {
        missing.push_back(context_.rankAt(peer));
      }
    }
    return missing;
  }

 private:
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t rounds) {
    counter.store(base_ + rounds, std::memory_order_release);
  }

  // Have the ranks that matter reached `target`? `seen` remembers what is already known.
  bool reached(std::atomic<std::uint64_t> transport::RankCells::* counter, std::uint64_t target,
               int only, std::uint64_t& seen) {
    if (seen >= target) return true;
    std::uint64_t least = ~std::uint64_t{0};
    for (int peer = 0; peer < memory_.size(); ++peer) {
      if (peer == memory_.index() || (only != kEveryone && peer != only)) continue;
      const std::uint64_t value = (memory_.cells(peer).*counter).load(std::memory_order_acquire);
      least = std::min(least, value);
      if (value < target) return false;
    }
    seen = least;
    return true;
  }

  Context& context_;
  const transport::PeerMemory& memory_;
  Stages stages_;
  std::uint64_t base_;
  AllArrived arrived_;
  bool isSafe_ = false;
  std::uint64_t contributed_ = 0, reduced_ = 0, published_ = 0, consumed_ = 0;
  // What is known of the slowest peer that matters to each wait.
  std::uint64_t freedByReduce_ = 0, freedByConsume_ = 0, contributorsSeen_ = 0, reducersSeen_ = 0;
};

// For stages that an algorithm does not have.
inline constexpr auto kSkip = [](Pipeline&) { return [](std::uint64_t) {}; };

// Each argument takes the pipeline and gives the function of a stage, which takes the round. With
// crossings one of the first two also starts the crossing of its round, and `makePublish` is for
// what is to be done with its result before peers are told.
template <class Contribute, class Reduce, class Consume, class Publish = decltype(kSkip)>
Task runPipeline(Context& context, Stages stages, Contribute makeContribute, Reduce makeReduce,
                 Consume makeConsume, Publish makePublish = kSkip) {
  Pipeline pipeline(context, stages);
  auto contribute = makeContribute(pipeline);
  auto reduce = makeReduce(pipeline);
  auto publish = makePublish(pipeline);
  auto consume = makeConsume(pipeline);
  while (!pipeline.isDone()) {
    bool moved = false;
    if (pipeline.canContribute()) {
      contribute(pipeline.contributed());
      pipeline.didContribute();
      moved = true;
    }
    if (pipeline.isSafe()) {
      if (pipeline.canReduce()) {
        reduce(pipeline.reduced());
        pipeline.didReduce();
        moved = true;
      }
      if (stages.crossings != nullptr) stages.crossings->advance();
      while (pipeline.canPublish()) {
        publish(pipeline.published());
        pipeline.didPublish();
        moved = true;
      }
      if (pipeline.canConsume()) {
        consume(pipeline.consumed());
        pipeline.didConsume();
        moved = true;
      }
    }
    if (moved) {
      pipeline.tellPeers();
    } else {
      co_await pipeline;
    }
  }
  pipeline.finish();
}

}  // namespace smd::algorithms
