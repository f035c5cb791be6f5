// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// all_reduce of shared buffers: in place if every rank's is one, staged if not, and untouched once
// an operation has ended, well or not.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <random>
#include <vector>

#include "support/engine_collectives.h"

namespace smd::engine::test {
namespace {

constexpr std::uint64_t kGuard = 64;
constexpr std::byte kGuardByte{0xA5};

// One rank's buffer of an all_reduce in place: shared or not, at any offset, guarded.
class InPlace {
 public:
  InPlace(const Plan& plan, int rank, Communicator& communicator, bool isShared = true,
          std::uint64_t skip = 0)
      : plan_(plan), rank_(rank), bytes_(plan.input(rank).size()) {
    const std::uint64_t all = skip + bytes_ + 2 * kGuard;
    if (isShared) {
      shared_ = communicator.allocateShared(all);
      SMD_REQUIRE(shared_ != nullptr);
    } else {
      private_.resize(all);
    }
    std::byte* begin = isShared ? shared_->data() : private_.data();
    data_ = begin + skip + kGuard;
    std::memset(data_ - kGuard, static_cast<int>(kGuardByte), bytes_ + 2 * kGuard);
    refill();
  }

  void refill() {
    if (bytes_ != 0) std::memcpy(data_, plan_.input(rank_).data(), bytes_);
  }
  void overwrite(int value) { std::memset(data_, value, bytes_); }
  bool isAll(int value) const {
    return bytes_ == 0 || (data_[0] == static_cast<std::byte>(value) &&
                           std::memcmp(data_, data_ + 1, bytes_ - 1) == 0);
  }

  Request request() const {
    Request request;
    request.kind = OpKind::kAllReduce;
    request.dtype = plan_.options().dtype;
    request.op = plan_.options().op;
    request.factor = Plan::factorOf(rank_);
    request.count = plan_.options().count;
    request.input = data_;
    request.output = data_;
    return request;
  }

  // Whether the result is right, in words if not.
  std::string problem() const {
    const std::vector<std::byte>& expected = plan_.expected(rank_);
    if (!expected.empty() && std::memcmp(data_, expected.data(), expected.size()) != 0) {
      std::size_t i = 0;
      while (data_[i] == expected[i]) ++i;
      return plan_.describe() + ", rank " + std::to_string(rank_) + ", element " +
             std::to_string(i / plan_.element()) + " differs";
    }
    for (std::uint64_t i = 0; i < kGuard; ++i) {
      if (data_[bytes_ + i] != kGuardByte || *(data_ - 1 - i) != kGuardByte) {
        return plan_.describe() + ": bytes beside the buffer were written";
      }
    }
    return "";
  }

 private:
  const Plan& plan_;
  int rank_;
  std::uint64_t bytes_;
  std::shared_ptr<transport::shm::SharedBuffer> shared_;
  std::vector<std::byte> private_;
  std::byte* data_ = nullptr;
};

// Runs it; requires that it went well, and in place or not as expected.
void reduce(World& world, int rank, InPlace& buffer, bool isInPlace) {
  const auto work = world.of(rank).collective(buffer.request(), Mode::kBlocking, {});
  requireNone(errorOf(*work));
  requireNone(buffer.problem());
  EXPECT_EQ(work->context.isInPlace, isInPlace);
}

class Shared : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  // In place at any size.
  WorldOptions always() const { return {.size = size(), .algorithm = "all_reduce=shared"}; }
};

TEST_P(Shared, AllDtypesAndOperations) {
  World world(always());
  for (int code = 0; code < kNumDTypes; ++code) {
    const auto dtype = static_cast<DType>(code);
    for (int op = 0; op < kNumReduceOps; ++op) {
      const auto reduceOp = static_cast<ReduceOp>(op);
      if (kernels::kernels().reduce(reduceOp, dtype) == nullptr) continue;
      for (std::uint64_t count : {0, 1, 17, 1009, kIsSlow ? 5003 : 30011}) {
        if (kIsSlow && count == 1009) continue;
        const Plan plan({.dtype = dtype, .op = reduceOp, .count = count, .salt = count}, size());
        world.run([&](int rank) {
          world.at(rank, plan.describe());
          InPlace buffer(plan, rank, world.of(rank));
          reduce(world, rank, buffer, true);
        });
      }
    }
  }
}

TEST_P(Shared, ManyPieces) {
  World world(size());
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::uint64_t bytes = kIsSlow ? kManyBlocks / 4 : kManyBlocks;
    const Plan plan({.dtype = dtype, .count = bytes / elementSize(dtype)}, size());
    world.run([&](int rank) {
      InPlace buffer(plan, rank, world.of(rank));
      for (int i = 0; i < 3; ++i) {
        buffer.refill();
        reduce(world, rank, buffer, true);
      }
    });
  }
}

// The same bits as with staging buffers; expected is what the plain reference computes.
TEST_P(Shared, GivesTheBitsOfStaged) {
  World shared(size());
  const Plan plan({.op = ReduceOp::kAvg, .count = 100003}, size());
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(size()));
  const auto runIn = [&](World& world, bool isShared) {
    world.run([&](int rank) {
      InPlace buffer(plan, rank, world.of(rank), isShared);
      reduce(world, rank, buffer, isShared);
      const std::byte* data = buffer.request().output;
      std::vector<std::byte> bytes(data, data + plan.input(rank).size());
      auto& kept = results[static_cast<std::size_t>(rank)];
      if (kept.empty()) kept = bytes;
      EXPECT_EQ(kept, bytes);
    });
  };
  runIn(shared, true);
  World staged({.size = size(), .algorithm = "all_reduce=staged"});
  runIn(staged, false);
}

TEST_P(Shared, ViewsAtAnyOffset) {
  World world(always());
  for (std::uint64_t skip : {4, 60, 64, 4096, 70004}) {
    for (std::uint64_t count : {33, 20011}) {
      const Plan plan({.count = count, .salt = skip}, size());
      world.run([&](int rank) {
        // Another one on every rank.
        InPlace buffer(plan, rank, world.of(rank), true,
                       skip * static_cast<std::uint64_t>(rank + 1));
        reduce(world, rank, buffer, true);
      });
    }
  }
}

// Whoever lacks a shared buffer starts staging at once; the others find out from its arrival.
TEST_P(Shared, OneRankWithoutMeansStagedForAll) {
  World world(size());
  const Plan plan({.count = 100003}, size());
  world.run([&](int rank) {
    InPlace shared(plan, rank, world.of(rank));
    InPlace ordinary(plan, rank, world.of(rank), false);
    for (int odd = -1; odd <= size(); ++odd) {
      shared.refill();
      ordinary.refill();
      const bool isOdd = rank == odd || odd == size();  // nobody, each in turn, everybody
      reduce(world, rank, isOdd ? ordinary : shared, odd == -1);
    }
  });
}

// Shared and staged operations use the same counters: in any order.
TEST_P(Shared, BetweenOtherOperations) {
  World world(size());
  std::vector<Plan> plans;
  plans.emplace_back(PlanOptions{.count = 50021}, size());
  plans.emplace_back(PlanOptions{.count = 9 * kBlockBytes / sizeof(float)}, size());
  plans.emplace_back(PlanOptions{.count = 10}, size());
  std::vector<Plan> others;
  for (OpKind kind : kCollectives) {
    others.emplace_back(PlanOptions{.kind = kind, .count = 40009}, size());
  }
  world.run([&](int rank) {
    std::mt19937 random(5);  // the same on every rank
    for (int step = 0; step < (kIsSlow ? 30 : 100); ++step) {
      world.at(rank, "step " + std::to_string(step));
      if (random() % 3 == 0) {
        Buffers buffers(others[random() % others.size()], rank);
        const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
        requireNone(errorOf(*work) + buffers.problem());
        continue;
      }
      const Plan& plan = plans[random() % plans.size()];
      const auto with = random() % 3;  // all, none, or some ranks with shared buffers
      const bool isShared = with == 0 || (with == 2 && rank % 2 == 0);
      InPlace buffer(plan, rank, world.of(rank), isShared);
      reduce(world, rank, buffer, with == 0 && plan.options().count != 10);
    }
  });
}

// A rank may do with its buffer what it likes once its call has returned.
TEST_P(Shared, OverwrittenAtReturn) {
  World world(always());
  const Plan plan({.count = 3001}, size());
  world.run([&](int rank) {
    InPlace buffer(plan, rank, world.of(rank));
    for (int i = 0; i < (kIsSlow ? 100 : 500); ++i) {
      const auto work = world.of(rank).collective(buffer.request(), Mode::kBlocking, {});
      requireNone(errorOf(*work));
      requireNone(buffer.problem());
      buffer.overwrite(0xEE);
      buffer.refill();
    }
  });
}

TEST_P(Shared, AsynchronousWithTwoBuffers) {
  World world(size());
  const Plan one({.count = 60013, .salt = 1}, size());
  const Plan two({.dtype = DType::kFloat16, .count = 200003, .salt = 2}, size());
  world.run([&](int rank) {
    InPlace first(one, rank, world.of(rank));
    InPlace second(two, rank, world.of(rank));
    for (int i = 0; i < 20; ++i) {
      const auto a = world.of(rank).collective(first.request(), Mode::kAsync, {});
      const auto b = world.of(rank).collective(second.request(), Mode::kAsync, {});
      waitFor(*b);
      waitFor(*a);
      requireNone(errorOf(*a) + errorOf(*b) + first.problem() + second.problem());
      EXPECT_TRUE(a->context.isInPlace && b->context.isInPlace);
      first.refill();
      second.refill();
    }
  });
}

TEST_P(Shared, AllocatedAndFreedBetweenOperations) {
  World world(always());
  const Plan plan({.count = 2003}, size());
  world.run([&](int rank) {
    std::vector<std::unique_ptr<InPlace>> buffers;
    for (int i = 0; i < 60; ++i) {
      buffers.push_back(std::make_unique<InPlace>(plan, rank, world.of(rank)));
      reduce(world, rank, *buffers.back(), true);
      // Ranks free other ones, so the same operation finds its buffers at other places.
      if (i % (rank + 2) == 0) buffers.erase(buffers.begin());
    }
  });
}

// After its error nothing writes into a rank's buffer, though its peers were about to.
TEST_P(Shared, AbortMeetsOperationsUnderWay) {
  const Plan plan({.count = 400009}, size());
  for (int repetition = 0; repetition < (kIsSlow ? 5 : 25); ++repetition) {
    World world(size());
    std::atomic<int> numFailed{0};
    world.run([&](int rank) {
      InPlace buffer(plan, rank, world.of(rank));
      std::thread aborting;
      if (rank == repetition % size()) {
        aborting = std::thread([&, rank] {
          std::this_thread::sleep_for(std::chrono::microseconds(repetition * 97));
          world.of(rank).abort("now");
        });
      }
      const Mode mode = repetition % 2 == 0 ? Mode::kBlocking : Mode::kAsync;
      std::string text;
      for (int i = 0; i < 100000 && text.empty(); ++i) {
        const auto work = world.of(rank).collective(buffer.request(), mode, {});
        waitFor(*work);
        text = errorOf(*work);
      }
      EXPECT_NE(text.find("aborted the group: now"), std::string::npos) << text;
      buffer.overwrite(0x77);
      ++numFailed;
      while (numFailed < size()) std::this_thread::yield();
      EXPECT_TRUE(buffer.isAll(0x77)) << "written after the operation had failed";
      if (aborting.joinable()) aborting.join();
    });
  }
}

TEST_P(Shared, ARankThatClosesInTheMiddleGetsItsBufferBack) {
  const Plan plan({.count = 400009}, size());
  for (int repetition = 0; repetition < (kIsSlow ? 3 : 10); ++repetition) {
    World world(size());
    std::atomic<int> numThrough{0};
    world.run([&](int rank) {
      InPlace buffer(plan, rank, world.of(rank));
      if (rank == 0) {
        const auto work = world.of(0).collective(buffer.request(), Mode::kAsync, {});
        world.of(0).close();
        waitFor(*work);
      } else {
        std::string text;
        while (text.empty()) {
          const auto work = world.of(rank).collective(buffer.request(), Mode::kBlocking, {});
          text = errorOf(*work);
        }
        EXPECT_NE(text.find("rank 0 (host "), std::string::npos) << text;
      }
      buffer.overwrite(0x77);
      ++numThrough;
      while (numThrough < size()) std::this_thread::yield();
      EXPECT_TRUE(buffer.isAll(0x77)) << "written after the operation had failed";
    });
  }
}

TEST_P(Shared, AfterAFailureNothingIsGivenOut) {
  World world(size());
  const auto buffer = world.of(1).allocateShared(100);
  ASSERT_NE(buffer, nullptr);
  world.of(0).abort("for the test");
  world.run([&](int rank) {
    const auto work = world.of(rank).collective(Request{}, Mode::kBlocking, {});
    EXPECT_TRUE(work->error().has_value());
    EXPECT_EQ(world.of(rank).allocateShared(100), nullptr);
  });
  std::memset(buffer->data(), 1, buffer->size());
}

TEST_P(Shared, MismatchesAreFoundBeforeAnythingIsWritten) {
  World world(size());
  const Plan plan({.count = 100003}, size());
  const Plan shorter({.count = 100002}, size());
  world.run([&](int rank) {
    InPlace buffer(rank == 0 ? shorter : plan, rank, world.of(rank));
    buffer.overwrite(0x33);
    const auto work = world.of(rank).collective(buffer.request(), Mode::kBlocking, {});
    SMD_REQUIRE(work->error().has_value());
    EXPECT_EQ(work->error()->kind(), ErrorKind::kMismatch) << errorOf(*work);
    EXPECT_TRUE(buffer.isAll(0x33));
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, Shared,
                         ::testing::ValuesIn(kIsSlow ? std::vector{2, 3} : std::vector{2, 3, 5, 8}),
                         [](const auto& each) { return std::to_string(each.param); });

// --- where there is nothing to be had ---

TEST(SharedBuffers, OneRankHasNone) {
  World world(1);
  EXPECT_EQ(world.of(0).allocateShared(100), nullptr);
}

TEST(SharedBuffers, RanksThatUseTcpHaveNone) {
  World world({.size = 2, .transport = TransportChoice::kTcp});
  EXPECT_EQ(world.of(0).allocateShared(100), nullptr);
  EXPECT_EQ(world.of(0).choose(OpKind::kAllReduce, 1 << 30).algorithm, Algorithm::kHierarchical);
}

TEST(SharedBuffers, AClosedGroupHasNone) {
  World world(2);
  world.closeAll();
  EXPECT_EQ(world.of(0).allocateShared(100), nullptr);
}

TEST(SharedBuffers, MoreThanThereIsMeansNone) {
  World world(2);
  EXPECT_EQ(world.of(0).allocateShared(std::size_t{1} << 45), nullptr);
  EXPECT_NE(world.of(0).allocateShared(100), nullptr);
}

TEST(SharedBuffers, OutliveTheirGroup) {
  auto world = std::make_unique<World>(2);
  const auto buffer = world->of(1).allocateShared(100000);
  std::memset(buffer->data(), 5, buffer->size());
  world.reset();
  EXPECT_EQ(buffer->data()[99999], std::byte{5});
  std::memset(buffer->data(), 6, buffer->size());
}

TEST(SharedBuffers, AForkedChildMayDropThemButNotAskForMore) {
  World world(2);
  const Plan plan({.count = 50000}, 2);
  std::vector<std::unique_ptr<InPlace>> buffers;
  for (int rank = 0; rank < 2; ++rank) {
    buffers.push_back(std::make_unique<InPlace>(plan, rank, world.of(rank)));
  }
  const pid_t child = fork();
  if (child == 0) {
    int status = 1;
    try {
      world.of(0).allocateShared(100);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kConfiguration) status = 0;
    }
    buffers.clear();
    _exit(status);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  world.run([&](int rank) { reduce(world, rank, *buffers[static_cast<std::size_t>(rank)], true); });
}

}  // namespace
}  // namespace smd::engine::test
