// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations that meet: of different kinds and algorithms one after the other, many in flight,
// blocking among asynchronous ones, several communicators, callbacks.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "support/engine_harness.h"
#include "support/engine_plans.h"

namespace smd::engine::test {
namespace {

struct Mix {
  std::string name;
  int size;
  TransportChoice transport;
  std::string algorithm;
};

class Mixed : public ::testing::TestWithParam<Mix> {
 protected:
  WorldOptions options() const {
    return {.size = GetParam().size,
            .transport = GetParam().transport,
            .algorithm = GetParam().algorithm};
  }
  int size() const { return GetParam().size; }
};

PlanOptions randomPlan(std::mt19937& random, int size, std::uint64_t salt) {
  static constexpr DType kDtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kInt64,
                                      DType::kUInt8};
  static constexpr std::uint64_t kCounts[] = {0, 1, 5, 700, 5000, 20000, 70000, 300001};
  PlanOptions plan;
  plan.kind = kCollectives[random() % std::size(kCollectives)];
  plan.dtype = kDtypes[random() % std::size(kDtypes)];
  plan.root = static_cast<int>(random() % static_cast<unsigned>(size));
  plan.count = kCounts[random() % std::size(kCounts)];
  plan.isUneven = random() % 3 == 0;
  plan.isInPlace = random() % 3 == 0;
  plan.salt = salt;
  return plan;
}

// Slots, staging blocks and arrival lines pass from one operation to the next, whatever its kind;
// the inline driver and the progress thread take turns.
TEST_P(Mixed, OperationsOfAllKindsInARandomOrder) {
  constexpr std::size_t kOperations = kIsSlow ? 50 : 120;
  for (unsigned seed : {1, 2, 3}) {
    std::mt19937 random(seed);
    std::vector<Plan> plans;
    for (std::size_t i = 0; i < kOperations; ++i) {
      plans.emplace_back(randomPlan(random, size(), i), size());
    }
    World world(options());
    world.run([&](int rank) {
      std::mt19937 whim(seed * 100 + static_cast<unsigned>(rank));
      struct Pending {
        std::shared_ptr<Work> work;
        std::unique_ptr<Buffers> buffers;
      };
      std::vector<Pending> pending;
      const auto finish = [&](std::size_t index) {
        Work& work = *pending[index].work;
        if (whim() % 2 == 0) world.of(rank).wait(work, Clock::now() + kPatience);
        waitFor(work);
        requireNone(errorOf(*pending[index].work));
        requireNone(pending[index].buffers->problem());
        pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(index));
      };
      for (const Plan& plan : plans) {
        world.at(rank, plan.describe());
        auto buffers = std::make_unique<Buffers>(plan, rank);
        const Mode mode = whim() % 2 == 0 ? Mode::kBlocking : Mode::kAsync;
        auto work = world.of(rank).collective(buffers->request(), mode, {});
        SMD_REQUIRE(mode == Mode::kAsync || work->isCompleted());
        if (work->isCompleted()) buffers->overwriteInput();
        pending.push_back({std::move(work), std::move(buffers)});
        while (!pending.empty() && whim() % 3 == 0) finish(whim() % pending.size());
        if (whim() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(whim() % 300));
      }
      while (!pending.empty()) finish(pending.size() - 1);
    });
  }
}

TEST_P(Mixed, ManyInFlight) {
  constexpr std::uint64_t kOperations = 300;
  World world(options());
  std::vector<Plan> plans;
  for (std::uint64_t i = 0; i < kOperations; ++i) {
    plans.emplace_back(PlanOptions{.dtype = DType::kInt64, .count = i * 7, .salt = i}, size());
  }
  world.run([&](int rank) {
    std::vector<std::unique_ptr<Buffers>> buffers;
    std::vector<std::shared_ptr<Work>> works;
    for (const Plan& plan : plans) {
      buffers.push_back(std::make_unique<Buffers>(plan, rank));
      works.push_back(world.of(rank).collective(buffers.back()->request(), Mode::kAsync, {}));
    }
    for (std::size_t i = 0; i < works.size(); ++i) {
      world.at(rank, "operation " + std::to_string(i));
      waitFor(*works[i]);
      requireNone(errorOf(*works[i]) + buffers[i]->problem());
    }
  });
}

// Waiting threads take the queue over from the progress thread and from each other, and give it
// back when they have waited long enough.
TEST_P(Mixed, SeveralThreadsWaitForALittleWhile) {
  constexpr std::size_t kOperations = kIsSlow ? 40 : 150;
  constexpr std::size_t kThreads = 3;
  World world(options());
  std::vector<Plan> plans;
  for (std::size_t i = 0; i < kOperations; ++i) {
    plans.emplace_back(PlanOptions{.count = i % 4 == 0 ? 90001 : i * 9, .salt = i}, size());
  }
  world.run([&](int rank) {
    std::vector<std::unique_ptr<Buffers>> buffers;
    std::vector<std::shared_ptr<Work>> works;
    for (const Plan& plan : plans) buffers.push_back(std::make_unique<Buffers>(plan, rank));
    std::mt19937 whim(static_cast<unsigned>(rank));
    for (std::size_t i = 0; i < kOperations; ++i) {
      works.push_back(world.of(rank).collective(buffers[i]->request(), Mode::kAsync, {}));
      if (i % 10 != 9) continue;
      std::vector<std::thread> threads;
      for (std::size_t t = 0; t < kThreads; ++t) {
        const nanoseconds patience(whim() % 500'000);
        threads.emplace_back([&, t, patience] {
          for (std::size_t k = i - t * 3 + 1; k-- > i - t * 3 - 2;) {
            using Drive = Communicator::Drive;
            while (world.of(rank).wait(*works[k], Clock::now() + patience) != Drive::kDone) {
              SMD_REQUIRE(Clock::now() < works[k]->deadline() + kPatience);
            }
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    for (std::size_t i = 0; i < kOperations; ++i) {
      world.at(rank, "operation " + std::to_string(i));
      waitFor(*works[i]);
      requireNone(errorOf(*works[i]) + buffers[i]->problem());
    }
  });
}

TEST_P(Mixed, CommunicatorsUsedInAnotherOrderByEachRank) {
  constexpr int kCommunicators = 4;
  constexpr int kRounds = 20;
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<std::unique_ptr<Plan>> plans;
  for (int i = 0; i < kCommunicators; ++i) {
    worlds.push_back(std::make_unique<World>(options()));
    plans.push_back(std::make_unique<Plan>(
        PlanOptions{.kind = kCollectives[static_cast<std::size_t>(i * 3) % 8],
                    .count = static_cast<std::uint64_t>(i * 40000 + 100),
                    .salt = static_cast<std::uint64_t>(i)},
        size()));
  }
  worlds[0]->run([&](int rank) {
    std::mt19937 whim(static_cast<unsigned>(rank));
    std::vector<std::size_t> order(kCommunicators);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < kRounds; ++round) {
      worlds[0]->at(rank, "round " + std::to_string(round));
      std::shuffle(order.begin(), order.end(), whim);
      std::vector<std::shared_ptr<Work>> works;
      std::vector<std::unique_ptr<Buffers>> buffers;
      for (std::size_t i : order) {
        buffers.push_back(std::make_unique<Buffers>(*plans[i], rank));
        works.push_back(
            worlds[i]->of(rank).collective(buffers.back()->request(), Mode::kAsync, {}));
      }
      for (std::size_t i = 0; i < works.size(); ++i) {
        waitFor(*works[i]);
        requireNone(errorOf(*works[i]) + buffers[i]->problem());
      }
    }
  });
}

TEST_P(Mixed, ACallbackMayStartTheNextOperation) {
  constexpr int kLinks = 50;
  World world(options());
  const Plan plan({.count = 3000}, size());
  world.run([&](int rank) {
    std::atomic<int> numDone{0};
    std::vector<std::unique_ptr<Buffers>> buffers;
    for (int i = 0; i < kLinks; ++i) buffers.push_back(std::make_unique<Buffers>(plan, rank));
    std::vector<std::shared_ptr<Work>> works(kLinks);
    std::function<void(int)> start = [&](int link) {
      auto& work = works[static_cast<std::size_t>(link)];
      work = world.of(rank).collective(buffers[static_cast<std::size_t>(link)]->request(),
                                       Mode::kAsync, {});
      work->onCompletion([&, link] {
        if (link + 1 < kLinks) start(link + 1);
        numDone.fetch_add(1);
        numDone.notify_all();
      });
    };
    start(0);
    for (int seen = 0; (seen = numDone.load()) < kLinks;) {
      world.at(rank, std::to_string(seen) + " links done");
      numDone.wait(seen);
    }
    for (int i = 0; i < kLinks; ++i) {
      requireNone(errorOf(*works[static_cast<std::size_t>(i)]) +
                  buffers[static_cast<std::size_t>(i)]->problem());
    }
  });
}

// The last reference goes while operations are under way: they are carried out all the same.
TEST_P(Mixed, AReleasedCommunicatorFinishesItsWork) {
  const Plan plan({.kind = OpKind::kAllGather, .count = 200001}, size());
  for (int repetition = 0; repetition < 10; ++repetition) {
    World world(options());
    world.run([&](int rank) {
      Buffers first(plan, rank);
      Buffers second(plan, rank);
      const auto one = world.of(rank).collective(first.request(), Mode::kAsync, {});
      const auto two = world.of(rank).collective(second.request(), Mode::kAsync, {});
      world.release(rank);
      waitFor(*one);
      waitFor(*two);
      requireNone(errorOf(*one) + first.problem() + errorOf(*two) + second.problem());
    });
  }
}

// A rank that is through may leave at once: the others are still reading what it has published.
TEST_P(Mixed, LeavingRightAfterTheLastOperation) {
  for (OpKind kind : kCollectives) {
    for (std::uint64_t count : {std::uint64_t{10}, std::uint64_t{300001}}) {
      const Plan plan({.kind = kind, .root = size() - 1, .count = count}, size());
      World world(options());
      world.run([&](int rank) {
        Buffers buffers(plan, rank);
        world.at(rank, plan.describe());
        const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
        world.of(rank).close();
        world.release(rank);
        requireNone(errorOf(*work) + buffers.problem());
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engine, Mixed,
    ::testing::Values(
        Mix{"shm_2", 2, TransportChoice::kSharedMemory, ""},
        Mix{"shm_3", 3, TransportChoice::kSharedMemory, ""},
        Mix{"shm_5", 5, TransportChoice::kSharedMemory, ""},
        Mix{"algorithms_3", 3, TransportChoice::kSharedMemory,
            "broadcast=staged,all_gather=staged,reduce=one_shot"},
        Mix{"algorithms_5", 5, TransportChoice::kSharedMemory,
            "broadcast=one_shot,all_reduce=staged,reduce_scatter=staged,all_gather=one_shot"},
        Mix{"tcp_3", 3, TransportChoice::kTcp, ""}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace smd::engine::test
