// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations in which one allocation fails, each in turn: every rank has either its result or an
// error, nobody hangs, and nothing ends the process. AddressSanitizer sees whether messages under
// way use what the error has freed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "engine_harness.h"
#include "engine_plans.h"

namespace {

// The allocation of this thread that fails, counted from 1; 0: none.
thread_local int failsAt = 0;

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  if (failsAt > 0 && --failsAt == 0) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace smd::engine::test {
namespace {

struct Case {
  const char* name;
  std::string algorithm;
  std::vector<int> ranksPerHost;
  OpKind kind = OpKind::kAllReduce;
  std::uint64_t count = 10;
};

class NoMemory : public ::testing::TestWithParam<Case> {
 protected:
  // One operation in which allocation `number` of rank 0 fails. Returns whether there was one.
  static bool failOne(const Case& each, int number) {
    int size = 0;
    for (const int ranks : each.ranksPerHost) size += ranks;
    World world({.size = size,
                 .transport = TransportChoice::kAuto,
                 .algorithm = each.algorithm,
                 .ranksPerHost = each.ranksPerHost});
    const Plan plan({.kind = each.kind, .dtype = DType::kInt64, .count = each.count}, size);
    std::atomic<bool> hasFailed{false};
    std::atomic<int> numErrors{0};
    world.run([&](int rank) {
      Buffers buffers(plan, rank);
      auto request = buffers.request();
      try {
        if (rank == 0) failsAt = number;
        const auto work = world.of(rank).collective(std::move(request), Mode::kBlocking, {});
        hasFailed = hasFailed || (rank == 0 && failsAt == 0);
        failsAt = 0;
        if (work->error()) {
          ++numErrors;
        } else {
          requireNone(buffers.problem());
        }
      } catch (const std::bad_alloc&) {  // before the operation was under way: its caller is told
        hasFailed = true;
        ++numErrors;
        world.of(rank).abort("no memory");
      }
    });
    if (hasFailed && numErrors == 0) SUCCEED() << "it could do without";
    return hasFailed;
  }
};

TEST_P(NoMemory, IsAnErrorOfTheOperation) {
  // Each of the first ones, then some of the many that repeat themselves.
  constexpr int kAll = 30;
  constexpr int kStep = 13;
  constexpr int kMost = 300;
  int number = 1;
  while (number < kMost && failOne(GetParam(), number)) number += number < kAll ? 1 : kStep;
  EXPECT_GT(number, 3) << "the operation allocates something";
}

INSTANTIATE_TEST_SUITE_P(
    Operations, NoMemory,
    ::testing::Values(
        Case{"SmallOverHosts", "", {1, 2}},
        Case{"LargeOverHosts", "", {1, 1}, OpKind::kAllReduce, 300000},
        Case{"LargeOverHostsByLanes", "", {2, 2}, OpKind::kAllReduce, 300000},
        Case{
            "RingOverHosts", "all_reduce=hierarchical/ring", {1, 1, 1}, OpKind::kAllReduce, 300000},
        Case{"AllGatherOverHosts", "", {1, 1}, OpKind::kAllGather, 30000},
        Case{"AllToAllOverHosts", "", {1, 2}, OpKind::kAllToAll, 30000},
        Case{"LargeOnAHost", "", {2}, OpKind::kAllReduce, 300000}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace smd::engine::test
