// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives of ranks on several hosts: equal and unequal numbers of them, every pattern between
// the hosts. What does not depend on the order of the operands is compared bit by bit with one
// thread's result, sums of fractions with a bound; and all ranks must have the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "support/engine_collectives.h"

namespace smd::engine::test {
namespace {

struct Placement {
  std::string name;
  std::vector<int> ranksPerHost;
  std::string pattern;  // empty: chosen
};

std::string nameOfPlacement(const ::testing::TestParamInfo<Placement>& info) {
  return info.param.name + (info.param.pattern.empty() ? "" : "_" + info.param.pattern);
}

std::vector<Placement> placements() {
  std::vector<Placement> all = {
      {"one_and_one", {1, 1}, ""},      {"two_and_two", {2, 2}, ""},
      {"two_and_one", {2, 1}, ""},      {"one_and_three", {1, 3}, ""},
      {"three_alone", {1, 1, 1}, ""},   {"three_two_one", {3, 2, 1}, ""},
      {"three_one_two", {3, 1, 2}, ""}, {"four_of_two", {2, 2, 2, 2}, ""}};
  for (const char* pattern : {"exchange", "doubling", "direct", "halving_doubling", "ring"}) {
    all.push_back({"two_and_two", {2, 2}, pattern});
    all.push_back({"four_uneven", {1, 2, 1, 2}, pattern});
    if (std::string(pattern).find("doubling") == std::string::npos) {
      all.push_back({"three", {2, 2, 2}, pattern});
    }
  }
  return all;
}

class Hierarchical : public ::testing::TestWithParam<Placement> {
 protected:
  int size() const {
    const std::vector<int>& hosts = GetParam().ranksPerHost;
    return std::accumulate(hosts.begin(), hosts.end(), 0);
  }
  WorldOptions options() const {
    const std::string& pattern = GetParam().pattern;
    return {.size = size(),
            .algorithm = pattern.empty() ? "" : everything("hierarchical/" + pattern),
            .ranksPerHost = GetParam().ranksPerHost};
  }

  void checkAll(World& world, std::vector<PlanOptions> options) {
    std::uint64_t salt = 0;
    for (PlanOptions& each : options) {
      each.salt = ++salt;
      each.root = static_cast<int>(salt) % size();
      const Plan plan(each, size());
      world.run([&](int rank) {
        world.at(rank, plan.describe());
        for (const Mode mode : {Mode::kBlocking, Mode::kAsync}) {
          Buffers buffers(plan, rank);
          const auto work = world.of(rank).collective(buffers.request(), mode, {});
          waitFor(*work);
          buffers.overwriteInput();
          requireNone(errorOf(*work));
          requireNone(buffers.problem());
        }
      });
    }
  }
};

TEST_P(Hierarchical, SizesAndTypes) {
  World world(options());
  std::vector<PlanOptions> plans;
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce}) {
    for (const bool isInPlace : {false, true}) {
      for (const std::uint64_t count : {0, 1, 7, 1009, 20011}) {
        plans.push_back(
            {.kind = kind, .dtype = DType::kInt64, .count = count, .isInPlace = isInPlace});
        plans.push_back({.kind = kind,
                         .dtype = DType::kUInt8,
                         .op = ReduceOp::kBxor,
                         .count = count,
                         .isInPlace = isInPlace});
        plans.push_back({.kind = kind,
                         .dtype = DType::kBFloat16,
                         .op = ReduceOp::kMax,
                         .count = count,
                         .isInPlace = isInPlace});
      }
    }
  }
  checkAll(world, plans);
}

// Several rounds, the last one short, more than can be under way at once.
TEST_P(Hierarchical, ManyRounds) {
  World world(options());
  const std::uint64_t rounds = kIsSlow ? 3 : 19;
  checkAll(world, {{.kind = OpKind::kAllReduce,
                    .dtype = DType::kInt32,
                    .count = (rounds << 18) + 4099,
                    .isInPlace = true},
                   {.kind = OpKind::kReduce, .dtype = DType::kInt32, .count = (3 << 18) + 11}});
}

// Every root, so that the host of the root and its place there vary.
TEST_P(Hierarchical, EveryRootAndSize) {
  World world(options());
  std::vector<PlanOptions> plans;
  for (const OpKind kind : {OpKind::kBroadcast, OpKind::kReduce}) {
    for (const std::uint64_t count : {0, 1, 7, 1009, 70001}) {
      for (int root = 0; root < size(); ++root) {
        plans.push_back({.kind = kind, .dtype = DType::kInt32, .count = count});
        plans.push_back({.kind = kind, .dtype = DType::kUInt8, .count = count});
      }
    }
  }
  checkAll(world, plans);
}

// Parts of one length and of many, some of them nothing.
TEST_P(Hierarchical, PartsOfEveryRank) {
  if (!GetParam().pattern.empty()) GTEST_SKIP() << "these know no patterns";
  World world(options());
  std::vector<PlanOptions> plans;
  for (const OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter}) {
    for (const std::uint64_t count : {0, 1, 7, 1009, 20011}) {
      for (const bool isUneven : {false, true}) {
        for (const bool isInPlace : {false, true}) {
          for (const DType dtype : {DType::kInt64, DType::kUInt8}) {
            plans.push_back({.kind = kind,
                             .dtype = dtype,
                             .count = count,
                             .isUneven = isUneven,
                             .isInPlace = isInPlace});
          }
        }
      }
    }
  }
  plans.push_back({.kind = OpKind::kReduceScatter,
                   .dtype = DType::kInt64,
                   .op = ReduceOp::kAvg,
                   .count = 5003});
  plans.push_back({.kind = OpKind::kReduceScatter,
                   .dtype = DType::kBFloat16,
                   .op = ReduceOp::kMax,
                   .count = 5003});
  plans.push_back({.kind = OpKind::kReduceScatter, .dtype = DType::kFloat16, .count = 5003});
  checkAll(world, plans);
}

TEST_P(Hierarchical, ManyRoundsOfOtherCollectives) {
  if (!GetParam().pattern.empty()) GTEST_SKIP() << "of large ones there is one pattern";
  World world(options());
  const std::uint64_t rounds = kIsSlow ? 2 : 17;
  const auto ranks = static_cast<std::uint64_t>(size());
  checkAll(world,
           {{.kind = OpKind::kBroadcast, .dtype = DType::kInt32, .count = (rounds << 18) + 4099},
            {.kind = OpKind::kAllGather,
             .dtype = DType::kInt32,
             .count = (rounds << 18) / ranks + 4099,
             .isUneven = true},
            {.kind = OpKind::kReduceScatter,
             .dtype = DType::kInt32,
             .count = (rounds << 18) / ranks + 4099,
             .isUneven = true}});
}

// The other kinds of collectives between them: arrivals on a host must not be mixed up.
TEST_P(Hierarchical, AmongOtherCollectives) {
  World world(options());
  std::vector<PlanOptions> plans;
  for (int turn = 0; turn < 3; ++turn) {
    for (const OpKind kind : kCollectives) {
      plans.push_back({.kind = kind, .dtype = DType::kInt64, .count = 1009});
      plans.push_back({.kind = OpKind::kAllReduce, .dtype = DType::kInt64, .count = 3});
    }
  }
  checkAll(world, plans);
}

TEST_P(Hierarchical, AveragesDivideOnce) {
  World world(options());
  checkAll(
      world,
      {{.kind = OpKind::kAllReduce, .dtype = DType::kInt64, .op = ReduceOp::kAvg, .count = 5003}});
}

// Their sums are exact in float32, so that only the last rounding shows, and one before it would.
TEST_P(Hierarchical, SumsOfSixteenBitsAreRoundedOnce) {
  World world(options());
  std::vector<PlanOptions> plans;
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        for (const std::uint64_t count : {0, 1, 7, 5003, 40009}) {
          plans.push_back({.kind = kind,
                           .dtype = dtype,
                           .op = op,
                           .count = count,
                           .isUneven = kind == OpKind::kReduceScatter,
                           .isInPlace = count == 5003});
        }
      }
    }
  }
  const std::uint64_t rounds = kIsSlow ? 3 : 5;
  plans.push_back({.kind = OpKind::kAllReduce,
                   .dtype = DType::kBFloat16,
                   .count = (rounds << 18) + 4099,
                   .isInPlace = true});
  plans.push_back(
      {.kind = OpKind::kReduce, .dtype = DType::kFloat16, .count = (rounds << 18) + 4099});
  plans.push_back({.kind = OpKind::kReduceScatter,
                   .dtype = DType::kBFloat16,
                   .count = (rounds << 18) / static_cast<std::uint64_t>(size()) + 99});
  checkAll(world, plans);
}

// 60000 is more than half of what float16 has room for.
TEST_P(Hierarchical, AHostsPartMayExceedSixteenBits) {
  constexpr std::uint16_t kHigh = 0x7b53;  // 60000
  constexpr std::uint16_t kLow = 0xfb53;   // -60000
  World world(options());
  for (const std::uint64_t count : {3, 50021}) {
    world.run([&](int rank) {
      std::vector<std::uint16_t> values(count, rank < size() / 2 ? kHigh : kLow);
      Request request;
      request.kind = OpKind::kAllReduce;
      request.dtype = DType::kFloat16;
      request.count = count;
      request.input = request.output = reinterpret_cast<std::byte*>(values.data());
      requireNone(errorOf(*world.of(rank).collective(Request(request), Mode::kBlocking, {})));
      const std::uint16_t expected = size() % 2 == 0 ? std::uint16_t{0} : kLow;
      SMD_REQUIRE(values == std::vector<std::uint16_t>(count, expected));
    });
  }
}

TEST_P(Hierarchical, SumsOfFractionsAreCloseAndTheSameEverywhere) {
  World world(options());
  for (const std::uint64_t count : {17, 300007}) {
    const Plan plan({.kind = OpKind::kAllReduce, .count = count, .salt = 3}, size());
    std::mutex mutex;
    std::vector<std::vector<float>> results;
    world.run([&](int rank) {
      std::vector<float> values(count);
      std::memcpy(values.data(), plan.input(rank).data(), count * sizeof(float));
      Request request;
      request.kind = OpKind::kAllReduce;
      request.dtype = DType::kFloat32;
      request.count = count;
      request.input = request.output = reinterpret_cast<std::byte*>(values.data());
      requireNone(errorOf(*world.of(rank).collective(Request(request), Mode::kBlocking, {})));
      const std::lock_guard lock(mutex);
      results.push_back(values);
    });
    const auto* expected = reinterpret_cast<const float*>(plan.expected(0).data());
    for (const std::vector<float>& each : results) {
      EXPECT_EQ(std::memcmp(each.data(), results[0].data(), count * sizeof(float)), 0);
    }
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(results[0][i], expected[i], std::abs(expected[i]) * 1e-6f * float(size()));
    }
  }
}

TEST_P(Hierarchical, NobodyLeavesABarrierBeforeAllHaveCome) {
  World world(options());
  std::atomic<int> arrived{0};
  world.run([&](int rank) {
    for (int turn = 1; turn <= 20; ++turn) {
      if (rank == turn % size()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      arrived.fetch_add(1);
      Request request;
      request.kind = OpKind::kBarrier;
      requireNone(errorOf(*world.of(rank).collective(Request(request), Mode::kBlocking, {})));
      SMD_REQUIRE(arrived.load() >= turn * size());
    }
  });
}

// A rank that disagrees is named with its number in the group, not its place on its host.
TEST_P(Hierarchical, AMismatchOnOneHostNamesRanks) {
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter}) {
    for (const std::uint64_t count : {10, 40000}) {
      World world(options());
      const int odd = size() - 1;
      world.run([&](int rank) {
        const Plan plan({.kind = kind, .count = count + (rank == odd ? 1 : 0)}, size());
        Buffers buffers(plan, rank);
        const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
        SMD_REQUIRE(work->error().has_value());
        SMD_REQUIRE(work->error()->kind() == ErrorKind::kMismatch);
        EXPECT_NE(errorOf(*work).find("rank " + std::to_string(odd)), std::string::npos)
            << errorOf(*work);
      });
      if (kIsSlow) break;
    }
  }
}

// One rank does not come: what the others have under way is taken back, whatever it is.
TEST_P(Hierarchical, AnAbortInTheMiddleEndsEveryCollective) {
  for (const OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kBroadcast,
                            OpKind::kAllGather, OpKind::kReduceScatter}) {
    World world(options());
    const int late = size() - 1;
    std::atomic<int> started{0};
    const bool hasParts = kind == OpKind::kAllGather || kind == OpKind::kReduceScatter;
    const std::uint64_t count = hasParts ? 100003 : 700001;
    const Plan plan({.kind = kind, .dtype = DType::kInt32, .count = count}, size());
    world.run([&](int rank) {
      world.at(rank, plan.describe());
      Buffers buffers(plan, rank);
      if (rank == late) {
        while (started.load() < size() - 1) std::this_thread::yield();
        world.of(rank).abort("gives up");
        return;
      }
      const auto work = world.of(rank).collective(buffers.request(), Mode::kAsync, {});
      started.fetch_add(1);
      waitFor(*work);
      // A root may have been through with what it had to send.
      const bool mayBeDone = kind == OpKind::kBroadcast || kind == OpKind::kReduce;
      SMD_REQUIRE(mayBeDone || work->error().has_value());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, Hierarchical, ::testing::ValuesIn(placements()),
                         nameOfPlacement);

}  // namespace
}  // namespace smd::engine::test
