// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// all_reduce of inputs that lie in fragments: the same bits as of one piece, wherever fragments
// begin and end, and however the operation is carried out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "algorithms/fragments.h"
#include "engine/group/plugin_group.h"
#include "support/engine_harness.h"
#include "support/engine_plans.h"

namespace smd::engine::test {
namespace {

// Elements; what is not in a fragment is zeros.
struct Stretch {
  std::uint64_t begin, count;
};
struct Layout {
  const char* name;
  std::uint64_t count;
  std::vector<Stretch> stretches;
};

// From `begin` on, one behind the other, up to `count` elements.
std::vector<Stretch> rowOf(std::uint64_t begin, std::uint64_t end, std::uint64_t each,
                           std::uint64_t gap) {
  std::vector<Stretch> row;
  for (; begin < end; begin += each + gap) row.push_back({begin, std::min(each, end - begin)});
  return row;
}

// Blocks have 32768 elements of 4 bytes, and two ranks' shares of them 16384.
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"one element", 1, {{0, 1}}},
      {"few", 300, rowOf(0, 300, 7, 3)},
      {"one behind a gap", 100000, {{1, 99999}}},
      {"one before a gap", 100000, {{0, 3}}},
      {"a gap of blocks", 200003, {{0, 10}, {150000, 3}}},
      {"at the ends of blocks", 131072, rowOf(0, 131072, 32768, 0)},
      {"at the ends of shares", 131072, rowOf(0, 131072, 16384, 0)},
      {"around the ends of blocks",
       100001,
       {{0, 32767}, {32767, 2}, {32770, 32766}, {65540, 34461}}},
      {"tiny and odd", 70001, rowOf(2, 70000, 3, 1)},
      {"uneven", 90001, rowOf(0, 90001, 20001, 0)},
  };
  return all;
}

// This rank's input, in memory of its own for each fragment; zeros between.
struct Scattered {
  Scattered(const Layout& layout, DType type, int rank)
      : whole(layout.count * elementSize(type)), dtype(type) {
    const std::uint64_t element = elementSize(dtype);
    std::vector<std::byte> values(whole.size());
    fill(dtype, values.data(), layout.count, rank, 1);
    for (const Stretch& each : layout.stretches) {
      const auto* begin = values.data() + each.begin * element;
      pieces.emplace_back(begin, begin + each.count * element);
      std::memcpy(whole.data() + each.begin * element, begin, each.count * element);
      fragments.push_back({pieces.back().data(), each.begin * element, each.count * element});
    }
  }
  std::vector<std::byte> whole;
  DType dtype;
  std::vector<std::vector<std::byte>> pieces;
  Fragments fragments;
};

std::vector<std::byte> expectedSum(const Layout& layout, DType dtype, ReduceOp op, int size) {
  std::vector<Scattered> inputs;
  std::vector<const void*> sources;
  for (int rank = 0; rank < size; ++rank) inputs.emplace_back(layout, dtype, rank);
  for (const Scattered& input : inputs) sources.push_back(input.whole.data());
  std::vector<std::byte> sum(inputs[0].whole.size());
  kernels::allKernelSets().front()->reduce(op, dtype)(sum.data(), nullptr, sources.data(),
                                                      sources.size(), layout.count, size);
  return sum;
}

Request sumOf(const Scattered& input, std::uint64_t count, std::byte* output,
              ReduceOp op = ReduceOp::kSum) {
  Request request;
  request.kind = OpKind::kAllReduce;
  request.dtype = input.dtype;
  request.op = op;
  request.count = count;
  request.fragments = input.fragments;
  request.output = output;
  return request;
}

struct Where {
  const char* name;
  WorldOptions options;
};

class InFragments : public ::testing::TestWithParam<Where> {
 protected:
  World world{GetParam().options};
};

TEST_P(InFragments, AreReducedAsIfTheyLayInOnePiece) {
  // Over hosts parts of sums are rounded in another order.
  const bool isOneHost = GetParam().options.ranksPerHost.empty();
  std::vector<DType> dtypes = {DType::kInt32, DType::kInt8};
  if (isOneHost) dtypes = {DType::kBFloat16, DType::kComplex128};
  if (isOneHost && !kIsSlow) dtypes.insert(dtypes.end(), {DType::kFloat32, DType::kInt8});
  const int size = world.size();
  for (const DType dtype : dtypes) {
    for (const Layout& layout : layouts()) {
      const std::vector<std::byte> expected = expectedSum(layout, dtype, ReduceOp::kSum, size);
      world.run([&](int rank) {
        Communicator& own = world.of(rank);
        Scattered input(layout, dtype, rank);
        const auto before = input.pieces;
        const auto shared = own.allocateShared(input.whole.size());
        std::vector<std::byte> ordinary(input.whole.size(), std::byte{0xEE});
        for (std::byte* output : {ordinary.data(), shared ? shared->data() : ordinary.data()}) {
          const auto work =
              own.collective(sumOf(input, layout.count, output),
                             output == ordinary.data() ? Mode::kAsync : Mode::kBrief, {});
          waitFor(*work);
          requireNone(errorOf(*work));
          const bool isRight = std::memcmp(output, expected.data(), expected.size()) == 0;
          EXPECT_TRUE(isRight) << name(dtype) << ", " << layout.name << ", rank " << rank;
        }
        EXPECT_EQ(input.pieces, before);
      });
    }
  }
}

// How a rank passes its input, and where the result goes.
struct Way {
  bool isInFragments, isShared;
};

TEST_P(InFragments, MayMeetOtherWaysOfOtherRanks) {
  const Layout& layout = layouts().back();
  const std::vector<std::byte> expected =
      expectedSum(layout, DType::kInt32, ReduceOp::kSum, world.size());
  const std::vector<std::pair<Way, Way>> ways = {
      {{true, false}, {false, true}}, {{true, true}, {false, true}}, {{true, true}, {true, false}}};
  world.run([&](int rank) {
    Communicator& own = world.of(rank);
    for (const auto& [first, others] : ways) {
      const Way& way = rank == 0 ? first : others;
      Scattered input(layout, DType::kInt32, rank);
      std::vector<std::byte> ordinary(input.whole.size());
      const auto shared = own.allocateShared(input.whole.size());
      std::byte* output = way.isShared && shared ? shared->data() : ordinary.data();
      Request request = sumOf(input, layout.count, output);
      if (!way.isInFragments) {
        std::memcpy(output, input.whole.data(), input.whole.size());
        request.fragments.clear();
        request.input = output;
      }
      requireNone(errorOf(*own.collective(std::move(request), Mode::kBlocking, {})));
      EXPECT_EQ(std::memcmp(output, expected.data(), expected.size()), 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, InFragments,
    ::testing::Values(Where{"alone", {.size = 1}}, Where{"two", {.size = 2}},
                      Where{"three", {.size = 3}},
                      Where{"twoStaged", {.size = 2, .algorithm = "all_reduce=staged"}},
                      Where{"overTcp",
                            {.size = 2, .transport = TransportChoice::kTcp, .ranksPerHost = {}}},
                      Where{"overHosts", {.size = 3, .ranksPerHost = {2, 1}}}),
    [](const auto& where) { return std::string(where.param.name); });

TEST(Fragments, AreReducedByAnyOperator) {
  World world(2);
  const Layout& layout = layouts().back();
  for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kPremulSum}) {
    const auto expected = expectedSum(layout, DType::kFloat32, op, 2);
    world.run([&](int rank) {
      Scattered input(layout, DType::kFloat32, rank);
      std::vector<std::byte> output(input.whole.size());
      const auto work = world.of(rank).collective(sumOf(input, layout.count, output.data(), op),
                                                  Mode::kBlocking, {});
      requireNone(errorOf(*work));
      EXPECT_EQ(output, expected) << name(op);
    });
  }
}

TEST(Fragments, AreInUseUntilTheEnd) {
  World world(2);
  const Layout& layout = layouts().back();
  Scattered input(layout, DType::kFloat32, 0);
  std::vector<std::byte> output(input.whole.size());
  Communicator& own = world.of(0);
  const auto work = own.collective(sumOf(input, layout.count, output.data()), Mode::kAsync, {});
  const Fragment& last = input.fragments.back();
  EXPECT_TRUE(own.isInUse(last.data + last.bytes - 1, 1));
  EXPECT_TRUE(own.isInUse(input.fragments.front().data, 1));
  EXPECT_FALSE(own.isInUse(input.whole.data(), input.whole.size()));
  world.of(1).abort("the test is over");
  waitFor(*work);
  EXPECT_FALSE(own.isInUse(last.data, 1));
}

TEST(Fragments, OfOtherSizesAreRefusedByTheirDigest) {
  World world(2);
  world.run([&](int rank) {
    const Layout layout{"", 100000, rowOf(0, 100000, rank == 0 ? 50000u : 20000u, 0)};
    Scattered input(layout, DType::kFloat32, rank);
    std::vector<std::byte> output(input.whole.size());
    Request request = sumOf(input, layout.count, output.data());
    request.layout = static_cast<std::uint64_t>(rank) + 1;
    const std::string text =
        errorOf(*world.of(rank).collective(std::move(request), Mode::kBlocking, {}));
    EXPECT_NE(text.find("ranks disagree"), std::string::npos) << text;
  });
}

// Every stretch of a small buffer, by its bytes.
TEST(Fragments, AreReadWhereTheyLieIfTheyCanBe) {
  const std::vector<std::byte> memory(8, std::byte{7});
  Request request;
  request.fragments = {{memory.data(), 2, 3}, {memory.data() + 4, 5, 1}, {memory.data() + 6, 8, 2}};
  const std::vector<int> values = {0, 0, 7, 7, 7, 7, 0, 0, 7, 7, 0};
  const algorithms::Input input(request);
  for (std::uint64_t begin = 0; begin < values.size(); ++begin) {
    for (std::uint64_t bytes = 1; begin + bytes <= values.size(); ++bytes) {
      std::vector<std::byte> room(bytes + 1, std::byte{0xEE});
      const std::byte* at = input.read(begin, bytes, room.data());
      for (std::uint64_t i = 0; i < bytes; ++i) {
        EXPECT_EQ(static_cast<int>(at[i]), values[begin + i]) << begin << " + " << bytes;
      }
      const bool isWhole = std::ranges::any_of(request.fragments, [&](const Fragment& each) {
        return each.offset <= begin && begin + bytes <= each.offset + each.bytes;
      });
      EXPECT_EQ(at == room.data(), !isWhole);
      EXPECT_EQ(room.back(), std::byte{0xEE});
    }
  }
}

}  // namespace
}  // namespace smd::engine::test
