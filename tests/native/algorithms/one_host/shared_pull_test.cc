// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives that read straight from peers' shared inputs (and reduce, which works in place): at
// once if every contributor's is shared, staged if not; and a result is either right or an error,
// whatever becomes of the inputs after one.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <vector>

#include "algorithms/one_host/announcement.h"
#include "support/engine_collectives.h"

namespace smd::engine::test {
namespace {

// Shared memory of one rank, for as long as this lives.
class SharedMemory {
 public:
  explicit SharedMemory(Communicator& communicator) : communicator_(communicator) {}

  Allocate allocate() {
    return [this](std::uint64_t bytes) {
      buffers_.push_back(communicator_.allocateShared(bytes));
      SMD_REQUIRE(buffers_.back() != nullptr);
      return buffers_.back()->data();
    };
  }

 private:
  Communicator& communicator_;
  std::vector<std::shared_ptr<transport::shm::SharedBuffer>> buffers_;
};

bool isRooted(OpKind kind) { return kind == OpKind::kBroadcast || kind == OpKind::kScatter; }

bool contributes(const Plan& plan, int rank) {
  if (isRooted(plan.options().kind)) return plan.isRoot(rank);
  return plan.options().kind != OpKind::kGather || !plan.isRoot(rank);
}

// all_reduce has tests of its own (shared_test.cc).
constexpr OpKind kKinds[] = {OpKind::kReduce,        OpKind::kBroadcast, OpKind::kAllGather,
                             OpKind::kReduceScatter, OpKind::kAllToAll,  OpKind::kGather,
                             OpKind::kScatter};

// A reduce works on shared buffers only in place.
PlanOptions optionsOf(OpKind kind, std::uint64_t count) {
  return {.kind = kind, .count = count, .isInPlace = kind == OpKind::kReduce};
}

// Runs it with input in shared memory or not, and requires that it went well, without staging or
// staged as expected. Overwrites the input as soon as the call has returned.
void check(World& world, int rank, const Plan& plan, bool isShared, bool isWithoutStaging,
           Mode mode = Mode::kBlocking) {
  SharedMemory memory(world.of(rank));
  Buffers buffers(plan, rank, isShared ? memory.allocate() : Allocate{});
  const auto work = world.of(rank).collective(buffers.request(), mode, {});
  waitFor(*work);
  buffers.overwriteInput();
  requireNone(errorOf(*work));
  requireNone(buffers.problem());
  EXPECT_EQ(work->context.isInPlace, isWithoutStaging) << plan.describe();
}

class Pull : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  // Of any size.
  WorldOptions always() const { return {.size = size(), .algorithm = everything("shared")}; }

  void checkAll(World& world, std::vector<PlanOptions> options) {
    for (PlanOptions& each : options) {
      each.salt = ++salt_;
      each.root = static_cast<int>(salt_) % size();
      const Plan plan(each, size());
      world.run([&](int rank) {
        world.at(rank, plan.describe());
        check(world, rank, plan, true, true);
        check(world, rank, plan, true, true, Mode::kAsync);
      });
    }
  }

 private:
  std::uint64_t salt_ = 0;
};

TEST_P(Pull, AllKindsAndSizes) {
  World world(always());
  for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kUInt8, DType::kComplex128}) {
    if (kIsSlow && dtype == DType::kUInt8) continue;
    std::vector<PlanOptions> plans;
    for (OpKind kind : kKinds) {
      for (std::uint64_t count : {0, 1, 17, 1009, kIsSlow ? 5003 : 30011}) {
        PlanOptions plan = optionsOf(kind, count);
        plan.dtype = dtype;
        plans.push_back(plan);
      }
    }
    checkAll(world, plans);
  }
}

TEST_P(Pull, UnevenPartsSomeOfThemEmpty) {
  World world(always());
  std::vector<PlanOptions> plans;
  for (OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllToAll,
                      OpKind::kGather, OpKind::kScatter}) {
    for (std::uint64_t count : {1, 7, 1009, kIsSlow ? 20011 : 100003}) {
      plans.push_back({.kind = kind, .count = count, .isUneven = true});
    }
  }
  checkAll(world, plans);
}

// A rank's own part may be where its result goes: no peer looks there.
TEST_P(Pull, OwnPartInPlace) {
  World world(always());
  std::vector<PlanOptions> plans;
  for (OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kGather}) {
    for (std::uint64_t count : {1, 1009, 40009}) {
      for (bool isUneven : {false, true}) {
        plans.push_back({.kind = kind, .count = count, .isUneven = isUneven, .isInPlace = true});
      }
    }
  }
  checkAll(world, plans);
}

TEST_P(Pull, ReduceOperations) {
  World world(always());
  std::vector<PlanOptions> plans;
  for (ReduceOp op : {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kProduct}) {
    for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt64}) {
      plans.push_back({.kind = OpKind::kReduceScatter, .dtype = dtype, .op = op, .count = 20011});
      plans.push_back(
          {.kind = OpKind::kReduce, .dtype = dtype, .op = op, .count = 20011, .isInPlace = true});
    }
  }
  checkAll(world, plans);
}

TEST_P(Pull, ManyPieces) {
  World world(size());
  const std::uint64_t bytes = kIsSlow ? kManyBlocks / 4 : kManyBlocks;
  std::vector<PlanOptions> plans;
  for (OpKind kind : kKinds) {
    plans.push_back(optionsOf(kind, bytes / sizeof(float) / static_cast<std::uint64_t>(size())));
  }
  checkAll(world, plans);
}

// Whoever contributes from ordinary memory begins staging at once; the others find out from its
// arrival. Ranks that contribute nothing have no say.
TEST_P(Pull, OneContributorWithoutMeansStagedForAll) {
  World world(size());
  for (OpKind kind : kKinds) {
    PlanOptions options = optionsOf(kind, 50021);
    options.root = size() - 1;
    const Plan plan(options, size());
    world.run([&](int rank) {
      for (int odd = -1; odd <= size(); ++odd) {
        world.at(rank, plan.describe() + ", odd rank " + std::to_string(odd));
        const auto isOdd = [&](int peer) { return peer == odd || odd == size(); };
        bool isWithoutStaging = true;
        for (int peer = 0; peer < size(); ++peer) {
          isWithoutStaging = isWithoutStaging && !(contributes(plan, peer) && isOdd(peer));
        }
        check(world, rank, plan, !isOdd(rank), isWithoutStaging);
      }
    });
  }
}

TEST_P(Pull, WhatCannotBeSharedIsStaged) {
  World world(always());
  const std::vector<PlanOptions> plans = {
      // Every input is multiplied into memory of its own first.
      {.kind = OpKind::kReduceScatter, .op = ReduceOp::kPremulSum, .count = 20011},
      {.kind = OpKind::kReduce, .op = ReduceOp::kPremulSum, .count = 20011, .isInPlace = true},
      // The root's result goes elsewhere.
      {.kind = OpKind::kReduce, .count = 20011}};
  for (const PlanOptions& options : plans) {
    const Plan plan(options, size());
    world.run([&](int rank) { check(world, rank, plan, true, false); });
  }
}

TEST_P(Pull, PartsThatDoNotFollowEachOtherAreStaged) {
  World world(always());
  for (OpKind kind : {OpKind::kReduceScatter, OpKind::kAllToAll, OpKind::kScatter}) {
    const Plan plan({.kind = kind, .count = 20011}, size());
    world.run([&](int rank) {
      SharedMemory memory(world.of(rank));
      Buffers buffers(plan, rank);
      Request request = buffers.request();
      for (const std::byte*& input : request.inputs) {
        std::byte* moved = memory.allocate()(plan.options().count * plan.element());
        std::memcpy(moved, input, plan.options().count * plan.element());
        input = moved;
      }
      const auto work = world.of(rank).collective(Request(request), Mode::kBlocking, {});
      requireNone(errorOf(*work) + buffers.problem());
      EXPECT_FALSE(work->context.isInPlace);
    });
  }
}

// Peers would read what this rank has overwritten already.
TEST_P(Pull, AnOutputOverTheInputIsStaged) {
  World world(always());
  const Plan plan({.kind = OpKind::kAllToAll, .count = 20011}, size());
  world.run([&](int rank) {
    SharedMemory memory(world.of(rank));
    Buffers buffers(plan, rank, memory.allocate());
    Request request = buffers.request();
    std::vector<std::byte*> outputs = request.outputs;
    for (std::size_t peer = 0; peer < request.outputs.size(); ++peer) {
      request.outputs[peer] = const_cast<std::byte*>(request.inputs[peer]);
    }
    const auto work = world.of(rank).collective(Request(request), Mode::kBlocking, {});
    requireNone(errorOf(*work));
    EXPECT_FALSE(work->context.isInPlace);
    for (std::size_t peer = 0; peer < outputs.size(); ++peer) {
      std::memcpy(outputs[peer], request.outputs[peer], plan.options().count * plan.element());
    }
    requireNone(buffers.problem());
  });
}

// A rank may do with its input what it likes once its call has returned: again and again.
TEST_P(Pull, InputsAreOverwrittenAtReturn) {
  World world(always());
  for (OpKind kind : kKinds) {
    if (kind == OpKind::kReduce) continue;  // in place
    const Plan plan(optionsOf(kind, 3001), size());
    world.run([&](int rank) {
      SharedMemory memory(world.of(rank));
      Buffers buffers(plan, rank, memory.allocate());
      for (int i = 0; i < (kIsSlow ? 50 : 200); ++i) {
        world.at(rank, plan.describe() + ", repetition " + std::to_string(i));
        const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
        buffers.overwriteInput();
        requireNone(errorOf(*work) + buffers.problem());
        buffers.refillInput();
      }
    });
  }
}

// Operations with and without staging use the same counters: in any order, mixed at will.
TEST_P(Pull, BetweenOtherOperations) {
  World world(size());
  std::vector<Plan> plans;
  for (OpKind kind : kCollectives) {
    for (std::uint64_t count : {10, 20011, 70001}) {
      PlanOptions options = optionsOf(kind, count);
      options.root = static_cast<int>(count) % size();
      options.isInPlace = options.isInPlace || kind == OpKind::kAllReduce;
      plans.emplace_back(options, size());
    }
  }
  world.run([&](int rank) {
    std::mt19937 random(7);  // the same on every rank
    std::vector<std::unique_ptr<Buffers>> pending;
    std::vector<std::shared_ptr<Work>> works;
    SharedMemory memory(world.of(rank));
    for (int step = 0; step < (kIsSlow ? 40 : 150); ++step) {
      world.at(rank, "step " + std::to_string(step));
      const Plan& plan = plans[random() % plans.size()];
      const auto with = random() % 3;  // all, none, or some ranks with shared memory
      const bool isShared = with == 0 || (with == 2 && rank % 2 == 0);
      const Mode mode = random() % 2 == 0 ? Mode::kBlocking : Mode::kAsync;
      pending.push_back(
          std::make_unique<Buffers>(plan, rank, isShared ? memory.allocate() : Allocate{}));
      works.push_back(world.of(rank).collective(pending.back()->request(), mode, {}));
      if (random() % 4 != 0) continue;
      for (std::size_t i = 0; i < works.size(); ++i) {
        waitFor(*works[i]);
        requireNone(errorOf(*works[i]) + pending[i]->problem());
      }
      works.clear();
      pending.clear();
    }
    for (std::size_t i = 0; i < works.size(); ++i) {
      waitFor(*works[i]);
      requireNone(errorOf(*works[i]) + pending[i]->problem());
    }
  });
}

// What is read from an input after its owner's error is no result: not one succeeds and is wrong.
TEST_P(Pull, AbortMeetsOperationsUnderWay) {
  for (OpKind kind : kKinds) {
    PlanOptions options = optionsOf(kind, 200003);
    options.root = 0;
    const Plan plan(options, size());
    for (int repetition = 0; repetition < (kIsSlow ? 2 : 8); ++repetition) {
      World world(size());
      world.run([&](int rank) {
        world.at(rank, plan.describe());
        SharedMemory memory(world.of(rank));
        Buffers buffers(plan, rank, memory.allocate());  // a group that has failed gives none
        std::thread aborting;
        if (rank == repetition % size()) {
          aborting = std::thread([&, rank] {
            std::this_thread::sleep_for(std::chrono::microseconds(repetition * 397));
            world.of(rank).abort("now");
          });
        }
        std::string text;
        for (int i = 0; i < 100000 && text.empty(); ++i) {
          buffers.refillInput();
          const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
          buffers.overwriteInput();
          text = errorOf(*work);
          EXPECT_EQ(text.empty() ? buffers.problem() : "", "");
        }
        EXPECT_NE(text.find("aborted the group: now"), std::string::npos) << text;
        if (aborting.joinable()) aborting.join();
      });
    }
  }
}

TEST_P(Pull, ARankThatClosesInTheMiddleSpoilsNoResult) {
  for (OpKind kind : kKinds) {
    const Plan plan(optionsOf(kind, 200003), size());
    World world(size());
    world.run([&](int rank) {
      world.at(rank, plan.describe());
      SharedMemory memory(world.of(rank));
      Buffers buffers(plan, rank, memory.allocate());
      if (rank == 0) {
        const auto work = world.of(0).collective(buffers.request(), Mode::kAsync, {});
        world.of(0).close();
        waitFor(*work);
        buffers.overwriteInput();
        return;
      }
      std::string text;
      while (text.empty()) {
        buffers.refillInput();
        const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
        buffers.overwriteInput();
        text = errorOf(*work);
        if (text.empty()) requireNone(buffers.problem());
      }
      EXPECT_NE(text.find("rank 0 (host "), std::string::npos) << text;
    });
  }
}

TEST_P(Pull, MismatchesAreFoundBeforeAnythingIsWritten) {
  World world(size());
  const Plan plan({.kind = OpKind::kAllToAll, .count = 20011}, size());
  world.run([&](int rank) {
    SharedMemory memory(world.of(rank));
    Buffers buffers(plan, rank, memory.allocate());
    Request request = buffers.request();
    if (rank == 0) request.inputCounts.back() -= 1;
    std::byte* output = request.outputs.front();
    std::memset(output, 0x33, 64);
    const auto work = world.of(rank).collective(Request(request), Mode::kBlocking, {});
    SMD_REQUIRE(work->error().has_value());
    EXPECT_EQ(work->error()->kind(), ErrorKind::kMismatch) << errorOf(*work);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(output[i], std::byte{0x33});
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, Pull,
                         ::testing::ValuesIn(kIsSlow ? std::vector{2, 3} : std::vector{2, 3, 5, 8}),
                         [](const auto& each) { return std::to_string(each.param); });

TEST(PullAlone, OneRankHasNothingToPull) {
  World world({.size = 1, .algorithm = everything("shared")});
  for (OpKind kind : kKinds) {
    const Plan plan(optionsOf(kind, 1009), 1);
    world.run([&](int rank) { check(world, rank, plan, false, false); });
  }
}

// Larger than the last-level cache of most machines: results are streamed past it there.
TEST(PullLarge, ResultsThatDoNotFitIntoTheCache) {
  World world(2);
  const std::uint64_t count = (std::uint64_t{kIsSlow ? 1 : 12} << 20) / sizeof(float) + 3;
  for (OpKind kind : {OpKind::kBroadcast, OpKind::kAllGather, OpKind::kReduceScatter,
                      OpKind::kAllToAll, OpKind::kGather, OpKind::kScatter}) {
    const Plan plan({.kind = kind, .root = 1, .count = count}, 2);
    world.run([&](int rank) { check(world, rank, plan, true, true); });
  }
}

// --- what a peer publishes, and withdraws, without a group around it ---

// Ranks of one broadcast or all_gather whose steps the test takes itself.
class Ranks {
 public:
  // `areOutputsShared`: of a broadcast.
  Ranks(OpKind kind, int size, bool areOutputsShared = false)
      : region_(transport::shm::Region::create(size, std::size_t{2} << 20)),
        contexts_(static_cast<std::size_t>(size)),
        blocksDone_(contexts_.size(), 0),
        outputs_(contexts_.size(), std::vector<std::uint32_t>(kCount * contexts_.size(), 7)) {
    for (int rank = 0; rank < size; ++rank) memories_.push_back(region_->view(rank));
    for (int rank = 0; rank < size; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      buffers_.push_back(transport::shm::Arena::create(region_, rank)->allocate(kBytes));
      std::memset(buffers_.back()->data(), rank + 1, kBytes);
      algorithms::Context& context = contexts_[index];
      Request& request = context.request;
      request.kind = kind;
      request.dtype = DType::kUInt32;
      request.count = kCount;
      request.input = buffers_.back()->data();
      auto* output = reinterpret_cast<std::byte*>(outputs_[index].data());
      if (kind == OpKind::kAllReduce) {
        request.output = buffers_.back()->data();
      } else if (kind == OpKind::kBroadcast) {
        request.root = 0;
        request.output = areOutputsShared ? buffers_.back()->data() : output;
      } else {
        for (std::uint64_t peer = 0; peer < contexts_.size(); ++peer) {
          request.outputs.push_back(output + peer * kBytes);
          request.outputCounts.push_back(kCount);
        }
      }
      context.signature = algorithms::signatureOf(request);
      context.signature.sequence = 1;
      context.rank = rank;
      context.size = size;
      context.memory = &memories_[index];
      context.blocksDone = &blocksDone_[index];
    }
  }

  algorithms::Context& of(int rank) { return contexts_[static_cast<std::size_t>(rank)]; }
  Task start(int rank) {
    EXPECT_TRUE(algorithms::mayShareBuffers(of(rank)));
    return algorithms::runShared(of(rank));
  }
  void withdraw(int rank) {
    of(rank).memory->withdrawBuffers([](int) { return transport::PeerMemory::Wait::kIsNeedless; });
  }
  bool isUntouched(int rank) const {
    for (std::uint32_t value : outputs_[static_cast<std::size_t>(rank)]) {
      if (value != 7) return false;
    }
    return true;
  }

  std::byte* sharedBuffer(int rank) const {
    return buffers_[static_cast<std::size_t>(rank)]->data();
  }

  static constexpr std::uint64_t kCount = 1000;
  static constexpr std::uint64_t kBytes = kCount * sizeof(std::uint32_t);

 private:
  std::shared_ptr<transport::shm::Region> region_;
  std::vector<transport::PeerMemory> memories_;
  std::vector<std::shared_ptr<transport::shm::SharedBuffer>> buffers_;
  std::vector<algorithms::Context> contexts_;
  std::vector<std::uint64_t> blocksDone_;
  std::vector<std::vector<std::uint32_t>> outputs_;
};

TEST(PullProtocol, NothingIsReadFromAnInputThatIsWithdrawn) {
  for (OpKind kind : {OpKind::kBroadcast, OpKind::kAllGather}) {
    Ranks ranks(kind, 2);
    Task root = ranks.start(0);
    EXPECT_FALSE(root.advance());
    ranks.withdraw(0);
    Task reader = ranks.start(1);
    EXPECT_FALSE(reader.advance());
    EXPECT_FALSE(reader.advance()) << "it must wait for its driver to see the error";
    EXPECT_FALSE(root.advance());
    if (kind == OpKind::kBroadcast) {
      EXPECT_TRUE(ranks.isUntouched(1));
    }
  }
}

// The root writes a part of an output that is shared, and nobody returns before it has.
TEST(PullProtocol, TheRootWritesItsPartOfASharedOutput) {
  Ranks ranks(OpKind::kBroadcast, 2, true);
  Task reader = ranks.start(1);
  EXPECT_FALSE(reader.advance());
  algorithms::announce(ranks.of(0),
                       ranks.of(0).memory->offsetInArena(ranks.sharedBuffer(0), 1).value() + 1);
  EXPECT_FALSE(reader.advance());
  const std::byte* output = ranks.sharedBuffer(1);
  EXPECT_EQ(output[0], std::byte{1});
  EXPECT_EQ(output[Ranks::kBytes - 1], std::byte{2}) << "the root's part, which has not run";
}

TEST(PullProtocol, NothingIsWrittenToAnOutputThatIsWithdrawn) {
  Ranks ranks(OpKind::kBroadcast, 2, true);
  Task root = ranks.start(0);
  EXPECT_FALSE(root.advance());
  Task reader = ranks.start(1);
  EXPECT_FALSE(reader.advance());
  ranks.withdraw(1);
  EXPECT_FALSE(root.advance());
  const std::byte* output = ranks.sharedBuffer(1);
  EXPECT_EQ(output[0], std::byte{1});
  EXPECT_EQ(output[Ranks::kBytes - 1], std::byte{2});
}

// A rank that is through with the operation may fail in the next one: no reason to stop here.
TEST(PullProtocol, WhoeverIsNotReadFromMayWithdraw) {
  Ranks ranks(OpKind::kBroadcast, 3);
  Task root = ranks.start(0);
  Task early = ranks.start(1);
  EXPECT_FALSE(root.advance());
  EXPECT_FALSE(early.advance());
  algorithms::announce(ranks.of(2), algorithms::kNoPlace);  // it has come, and not yet read
  EXPECT_TRUE(early.advance());
  ranks.withdraw(1);
  Task late = ranks.start(2);
  EXPECT_TRUE(late.advance());
  EXPECT_TRUE(root.advance());
}

// A reader that was stopped in the middle of a piece, and not waited for, finds out at the end.
TEST(PullProtocol, AWithdrawalDuringTheLastPieceIsSeen) {
  Ranks ranks(OpKind::kAllGather, 3);
  const transport::PeerMemory& reader = *ranks.of(2).memory;
  ASSERT_TRUE(reader.beginUsingPeers(1));
  ranks.withdraw(1);
  reader.endUsingPeers();
  EXPECT_TRUE(reader.haveWithdrawn(1));
  EXPECT_TRUE(reader.haveWithdrawn());
  EXPECT_FALSE(reader.haveWithdrawn(0));
  EXPECT_TRUE(reader.beginUsingPeers(0));
  reader.endUsingPeers();
  EXPECT_FALSE(reader.beginUsingPeers());
}

TEST(PullProtocol, WhoeverWithdrawsWaitsForThoseWhoRead) {
  Ranks ranks(OpKind::kAllGather, 2);
  const transport::PeerMemory& reader = *ranks.of(1).memory;
  ASSERT_TRUE(reader.beginUsingPeers(0));
  std::atomic<int> looks{0};
  std::atomic<bool> hasReturned{false};
  std::thread withdrawing([&] {
    EXPECT_TRUE(ranks.of(0).memory->withdrawBuffers([&](int peer) {
      EXPECT_EQ(peer, 1);
      ++looks;
      return transport::PeerMemory::Wait::kGoesOn;
    }));
    hasReturned = true;
  });
  while (looks < 3) std::this_thread::yield();
  EXPECT_FALSE(hasReturned);
  reader.endUsingPeers();
  withdrawing.join();
  EXPECT_TRUE(reader.haveWithdrawn(0));
}

// What a peer publishes is looked at before it is followed, whether it is to be read or written to.
TEST(SharedPlaces, OneOutsideTheArenaIsRefused) {
  constexpr std::uint64_t kArena = std::uint64_t{2} << 20;
  for (OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather}) {
    for (algorithms::BufferPlace place :
         {kArena + 1, kArena - Ranks::kBytes + 2, ~std::uint64_t{0}}) {
      Ranks ranks(kind, 2);
      algorithms::announce(ranks.of(1), place);
      Task task = ranks.start(0);
      try {
        task.advance();
        ADD_FAILURE() << smd::name(kind) << ": place " << place << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInternal);
        EXPECT_NE(std::string(error.what()).find("rank 1 offers a shared buffer of 4000 bytes"),
                  std::string::npos)
            << error.what();
      }
      EXPECT_TRUE(ranks.isUntouched(0));
    }
  }
}

}  // namespace
}  // namespace smd::engine::test
