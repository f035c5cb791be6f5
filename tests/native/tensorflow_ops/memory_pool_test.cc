// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that is used again, and kept as long as it is.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "engine/group/plugin_group.h"
#include "support/engine_harness.h"
#include "tensorflow_ops/groups.h"
#include "tensorflow_ops/memory_pool.h"
#include "tensorflow_ops/probe_group.h"

namespace smd::tensorflow_ops::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::shared_ptr<MemoryPool> poolWithoutSharedMemory() {
  return std::make_shared<MemoryPool>(makeProbeGroup());
}

TEST(MemoryPool, WhatComesBackIsGivenOutAgain) {
  const auto pool = poolWithoutSharedMemory();
  auto first = pool->take(kMiB);
  std::byte* data = first->data();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
  auto second = pool->take(kMiB);
  EXPECT_NE(second->data(), data);
  EXPECT_EQ(pool->keptBytes(), 0u);
  first.reset();
  EXPECT_EQ(pool->keptBytes(), kMiB);
  first = pool->take(kMiB - 100);
  EXPECT_EQ(first->data(), data);
  EXPECT_EQ(pool->keptBytes(), 0u);
}

TEST(MemoryPool, WhatIsMuchTooLargeOrTooSmallIsNot) {
  const auto pool = poolWithoutSharedMemory();
  const auto large = pool->take(4 * kMiB)->data();
  const auto small = pool->take(kMiB)->data();
  const auto middle = pool->take(2 * kMiB);
  EXPECT_NE(middle->data(), large);
  EXPECT_NE(middle->data(), small);
  EXPECT_EQ(pool->keptBytes(), 5 * kMiB);
  EXPECT_EQ(pool->take(kMiB)->data(), small);
}

TEST(MemoryPool, AllThatAStepNeedsIsKept) {
  const auto pool = poolWithoutSharedMemory();
  constexpr std::size_t kNumBuckets = 20;
  std::set<std::byte*> places;
  std::vector<std::shared_ptr<MemoryPool::Lease>> leases;
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < kNumBuckets; ++i) {
      leases.push_back(pool->take(25 * kMiB));
      places.insert(leases.back()->data());
    }
    EXPECT_EQ(pool->keptBytes(), 0u);
    leases.clear();
    EXPECT_EQ(pool->keptBytes(), kNumBuckets * 25 * kMiB);
  }
  EXPECT_EQ(places.size(), kNumBuckets);
}

// At first only another operation gave back: the last buckets of a program stayed.
TEST(MemoryPool, WhatNobodyHasNeededForAWhileGoesWithoutANextOperation) {
  static constexpr std::chrono::milliseconds kWhile{20};
  const auto pool = std::make_shared<MemoryPool>(makeProbeGroup(), kWhile);
  const auto isAllGiven = [&pool] {
    const TimePoint giveUp = Clock::now() + engine::test::kPatience;
    while (pool->keptBytes() != 0 && Clock::now() < giveUp) std::this_thread::sleep_for(kWhile / 4);
    return pool->keptBytes() == 0;
  };
  for (int round = 0; round < 2; ++round) {  // the thread ends, and comes again
    pool->take(kMiB);
    pool->take(2 * kMiB);
    EXPECT_TRUE(isAllGiven());
  }
  const auto other = std::make_shared<MemoryPool>(makeProbeGroup());
  other->take(kMiB);
  EXPECT_EQ(other->keptBytes(), kMiB);  // not yet
}

TEST(MemoryPool, NothingIsKeptOfAFailureOrOfAClosedGroup) {
  auto pool = poolWithoutSharedMemory();
  auto lease = pool->take(kMiB);
  lease->discard();
  lease.reset();
  EXPECT_EQ(pool->keptBytes(), 0u);
  pool->take(kMiB);
  lease = pool->take(2 * kMiB);
  EXPECT_EQ(pool->keptBytes(), kMiB);
  pool->close();
  EXPECT_EQ(pool->keptBytes(), 0u);
  lease.reset();
  EXPECT_EQ(pool->keptBytes(), 0u);
  lease = pool->take(kMiB);
  pool.reset();
  std::memset(lease->data(), 1, kMiB);  // it outlives the pool
}

TEST(MemoryPool, SharedMemoryIsTakenWhereThereIsSome) {
  engine::test::World world(2);
  world.run([&](int rank) {
    auto& communicator = world.of(rank);
    const auto pool =
        std::make_shared<MemoryPool>(engine::makePluginGroup(communicator.shared_from_this()));
    const auto probe = communicator.allocateShared(4096);
    SMD_REQUIRE(probe != nullptr);
    // Memory of one arena lies close together.
    const auto lease = pool->take(kMiB);
    EXPECT_LT(std::abs(lease->data() - probe->data()), std::ptrdiff_t{1} << 40);
    std::memset(lease->data(), rank, kMiB);
  });
}

// Has so many bytes of shared memory.
class SmallArena final : public plugin_api::Group {
 public:
  explicit SmallArena(std::size_t bytes) : left_(std::make_shared<std::size_t>(bytes)) {}
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 2; }
  void allReduce(Fragments, std::byte*, std::uint64_t, DType, ReduceOp, plugin_api::Agreement,
                 plugin_api::Completion) noexcept override {}
  void broadcast(std::byte*, std::uint64_t, DType, int, plugin_api::Agreement,
                 plugin_api::Completion) noexcept override {}
  void allGather(const std::byte*, std::vector<std::byte*>, std::vector<std::uint64_t>, DType,
                 plugin_api::Agreement, plugin_api::Completion) noexcept override {}
  std::shared_ptr<std::byte> allocateShared(std::size_t bytes) noexcept override {
    if (bytes > *left_) return nullptr;
    *left_ -= bytes;
    return {new std::byte[bytes], [left = left_, bytes](std::byte* data) {
              *left += bytes;
              delete[] data;
            }};
  }
  void abort(const std::string&) noexcept override {}
  std::size_t left() const { return *left_; }

 private:
  const std::shared_ptr<std::size_t> left_;
};

TEST(MemoryPool, WhatIsKeptMakesRoomWhereSharedMemoryIsScarce) {
  const auto arena = std::make_shared<SmallArena>(10 * kMiB);
  const auto pool = std::make_shared<MemoryPool>(arena);
  pool->take(2 * kMiB);
  EXPECT_EQ(arena->left(), 8 * kMiB);
  EXPECT_EQ(pool->keptBytes(), 2 * kMiB);
  auto most = pool->take(9 * kMiB);
  EXPECT_EQ(arena->left(), kMiB);
  EXPECT_EQ(pool->keptBytes(), 0u);
  const auto ordinary = pool->take(5 * kMiB);  // there is always some
  std::memset(ordinary->data(), 1, 5 * kMiB);
  EXPECT_EQ(arena->left(), kMiB);
  most.reset();
  EXPECT_EQ(pool->keptBytes(), 9 * kMiB);
}

struct ThreadStatus {
  std::string state, blocked;  // as the kernel writes them
};

// Of this process, by number.
std::map<std::string, ThreadStatus> threads() {
  std::map<std::string, ThreadStatus> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ThreadStatus& thread = found[task.path().filename()];
    std::ifstream file(task.path() / "status");
    for (std::string word; file >> word;) {
      if (word == "State:") file >> thread.state;
      if (word == "SigBlk:") file >> thread.blocked;
    }
  }
  return found;
}

// It once took them, and one that came there did not wake the application's main thread.
TEST(MemoryPool, ItsThreadLeavesSignalsToTheApplication) {
  const auto pool = poolWithoutSharedMemory();
  const auto before = threads();
  pool->take(kMiB);
  ThreadStatus fresh;
  while (fresh.state != "S") {  // while a thread starts it takes none in any case
    std::this_thread::yield();
    for (const auto& [number, status] : threads()) {
      if (!before.contains(number)) fresh = status;
    }
  }
  const auto blocked = std::stoull(fresh.blocked, nullptr, 16);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM}) {
    EXPECT_TRUE(blocked >> (signal - 1) & 1) << signal;
  }
}

TEST(MemoryPool, ThreadsTakeAndReturn) {
  const auto pool = poolWithoutSharedMemory();
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      std::vector<std::shared_ptr<MemoryPool::Lease>> mine(3);
      for (int i = 0; i < 300; ++i) {
        auto& lease = mine[random() % mine.size()];
        lease = pool->take(1 + random() % 20000);
        std::memset(lease->data(), static_cast<int>(seed), 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  // As many as were out at once, of each of five sizes.
  EXPECT_LE(pool->keptBytes(), 12u * 5 * 20480);
}

// What views a bucket may be let go of in a child, whatever other threads did when it was forked.
TEST(MemoryPool, IsHarmlessInAForkedChild) {
  if (!smd::test::kMayForkWhileOthersAllocate)
    GTEST_SKIP() << smd::test::kNoForkWhileOthersAllocate;
  const auto pool = poolWithoutSharedMemory();
  setGroup(79, makeProbeGroup());
  auto lease = pool->take(kMiB);
  pool->take(2 * kMiB);
  std::atomic<bool> isOver{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back([&] {
      while (!isOver) {
        pool->take(4096);
        static_cast<void>(findGroup(79));
      }
    });
  }
  for (int repetition = 0; repetition < 50; ++repetition) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // what waits for a lock is ended
      lease.reset();
      const bool isFresh = pool->take(2 * kMiB)->data() != nullptr && pool->keptBytes() >= 2 * kMiB;
      const bool isThere = findGroup(79) != nullptr;
      clearGroup(79);
      _exit(isFresh && isThere ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    if (HasFailure()) break;
  }
  isOver = true;
  for (auto& thread : busy) thread.join();
  clearGroup(79);
}

}  // namespace
}  // namespace smd::tensorflow_ops::test
