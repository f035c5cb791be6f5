// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Coalesced collectives: the bits of the single operations, over every algorithm.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/engine_harness.h"

namespace smd::engine::test {
namespace {

using algorithms::Request;

constexpr OpKind kKinds[] = {OpKind::kAllReduce, OpKind::kAllGather, OpKind::kReduceScatter};
using Buffer = std::vector<float>;
using Buffers = std::vector<Buffer>;

const std::byte* bytesOf(const Buffer& buffer) {
  return reinterpret_cast<const std::byte*>(buffer.data());
}
std::byte* bytesOf(Buffer& buffer) { return reinterpret_cast<std::byte*>(buffer.data()); }

struct Plan {
  OpKind kind;
  ReduceOp op;
  std::vector<std::uint64_t> counts;
  int size;

  std::uint64_t inputCount(std::size_t i) const {
    return counts[i] * (kind == OpKind::kReduceScatter ? static_cast<std::uint64_t>(size) : 1);
  }
  std::uint64_t outputCount(std::size_t i) const {
    return counts[i] * (kind == OpKind::kAllGather ? static_cast<std::uint64_t>(size) : 1);
  }
  // Numbers whose sums depend on the order of the summands.
  Buffers inputs(int rank) const {
    Buffers buffers;
    std::mt19937 random(static_cast<unsigned>(rank));
    std::normal_distribution<float> normal(0, 1000);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      Buffer& buffer = buffers.emplace_back(inputCount(i));
      for (float& element : buffer) element = normal(random);
    }
    return buffers;
  }
  Buffers outputs() const {
    Buffers buffers;
    for (std::size_t i = 0; i < counts.size(); ++i) buffers.emplace_back(outputCount(i), -1.0f);
    return buffers;
  }
  Request request() const {
    Request request;
    request.kind = kind;
    request.dtype = DType::kFloat32;
    request.op = op;
    request.factor = 0.3;
    return request;
  }
  Request single(std::size_t i, const Buffers& inputs, Buffers& outputs) const {
    Request one = request();
    one.count = counts[i];
    one.input = bytesOf(inputs[i]);
    one.output = bytesOf(outputs[i]);
    for (int rank = 0; rank < size; ++rank) {
      const std::uint64_t before = static_cast<std::uint64_t>(rank) * counts[i] * sizeof(float);
      one.inputs.push_back(one.input + (kind == OpKind::kReduceScatter ? before : 0));
      one.outputs.push_back(one.output + (kind == OpKind::kAllGather ? before : 0));
      one.inputCounts.push_back(counts[i]);
      one.outputCounts.push_back(counts[i]);
    }
    return one;
  }
  Request coalesced(const Buffers& inputs, Buffers& outputs) const {
    Request all = request();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      all.pieces.push_back({bytesOf(inputs[i]), bytesOf(outputs[i]), counts[i]});
    }
    return all;
  }
};

void expectTheBitsOfSingleOperations(World& world, OpKind kind, ReduceOp op,
                                     const std::vector<std::uint64_t>& counts) {
  const Plan plan{kind, op, counts, world.size()};
  world.run([&](int rank) {
    world.at(rank, std::string(name(kind)) + ", " + std::string(name(op)));
    const Buffers inputs = plan.inputs(rank);
    Buffers expected = plan.outputs();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto work =
          world.of(rank).collective(plan.single(i, inputs, expected), Mode::kBlocking, {});
      requireNone(errorOf(*work));
    }
    for (const Mode mode : {Mode::kBlocking, Mode::kAsync}) {
      Buffers sent = inputs;
      Buffers outputs = plan.outputs();
      const auto work = world.of(rank).collective(plan.coalesced(sent, outputs), mode, {});
      for (Buffer& buffer : sent) std::fill(buffer.begin(), buffer.end(), 0.0f);  // it is packed
      waitFor(*work);
      requireNone(errorOf(*work));
      for (std::size_t i = 0; i < counts.size(); ++i) {
        SMD_REQUIRE(counts[i] == 0 || std::memcmp(outputs[i].data(), expected[i].data(),
                                                  outputs[i].size() * sizeof(float)) == 0);
      }
    }
  });
}

struct Where {
  int size;
  TransportChoice transport;
};

class Coalesced : public ::testing::TestWithParam<Where> {};

TEST_P(Coalesced, GivesTheBitsOfSingleOperations) {
  World world(WorldOptions{.size = GetParam().size, .transport = GetParam().transport});
  const std::vector<std::vector<std::uint64_t>> lists = {
      {1}, {0}, {0, 0, 0}, {1, 2, 3}, {0, 5, 0, 700, 1}, {3000, 1, 17, 4096, 60'000, 0}};
  for (const OpKind kind : kKinds) {
    for (const auto& counts : lists) {
      expectTheBitsOfSingleOperations(world, kind, ReduceOp::kSum, counts);
    }
  }
  for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kPremulSum}) {
    expectTheBitsOfSingleOperations(world, OpKind::kAllReduce, op, {10, 0, 3000});
    expectTheBitsOfSingleOperations(world, OpKind::kReduceScatter, op, {10, 0, 3000});
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, Coalesced,
                         ::testing::Values(Where{1, TransportChoice::kAuto},
                                           Where{2, TransportChoice::kAuto},
                                           Where{3, TransportChoice::kAuto},
                                           Where{5, TransportChoice::kAuto},
                                           Where{3, TransportChoice::kTcp}));

// Equal in sum, and so in the size of the packed copy.
TEST(CoalescedOperation, ListsThatDifferAreAMismatch) {
  World world(2);
  world.run([&](int rank) {
    const Plan plan{OpKind::kAllReduce, ReduceOp::kSum,
                    rank == 0 ? std::vector<std::uint64_t>{4, 6} : std::vector<std::uint64_t>{6, 4},
                    2};
    const Buffers inputs = plan.inputs(rank);
    Buffers outputs = plan.outputs();
    const auto work =
        world.of(rank).collective(plan.coalesced(inputs, outputs), Mode::kBlocking, {});
    SMD_REQUIRE(errorOf(*work).find("with another list of sizes") != std::string::npos);
    SMD_REQUIRE(outputs == plan.outputs());
  });
}

TEST(CoalescedOperation, OtherCollectivesAreRefused) {
  World world(1);
  Buffer buffer(4);
  Request request;
  request.kind = OpKind::kBroadcast;
  request.pieces.push_back({bytesOf(buffer), bytesOf(buffer), 4});
  EXPECT_THROW(world.of(0).collective(std::move(request), Mode::kBlocking, {}), Error);
}

TEST(CoalescedOperation, OutputsAreInUseUntilTheyAreWritten) {
  World world(2);
  std::atomic<bool> hasLooked{false};
  world.run([&](int rank) {
    const Plan plan{OpKind::kAllGather, ReduceOp::kSum, {8, 40'000}, 2};
    const Buffers inputs = plan.inputs(rank);
    Buffers outputs = plan.outputs();
    if (rank == 1) hasLooked.wait(false);
    const auto work = world.of(rank).collective(plan.coalesced(inputs, outputs), Mode::kAsync, {});
    if (rank == 0) {
      EXPECT_TRUE(world.of(0).isInUse(bytesOf(outputs[0]) + 15 * sizeof(float), 1));
      EXPECT_FALSE(world.of(0).isInUse(bytesOf(inputs[0]), 8 * sizeof(float)));
      hasLooked = true;
      hasLooked.notify_all();
    }
    waitFor(*work);
    requireNone(errorOf(*work));
    EXPECT_FALSE(world.of(rank).isInUse(bytesOf(outputs[0]), sizeof(float)));
  });
}

}  // namespace
}  // namespace smd::engine::test
