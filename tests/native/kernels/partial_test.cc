// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Reductions of 16-bit floats in two steps, against the reference in one.
#include "kernels/partial.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/kernels.h"

namespace smd::kernels {
namespace {

using Shorts = std::vector<std::uint16_t>;

class Partial : public ::testing::TestWithParam<DType> {
 protected:
  static Shorts inOneStep(ReduceOp op, const std::vector<Shorts>& operands, double divisor) {
    Shorts result(operands[0].size());
    std::vector<const void*> sources;
    for (const Shorts& each : operands) sources.push_back(each.data());
    allKernelSets().front()->reduce(op, GetParam())(result.data(), nullptr, sources.data(),
                                                    sources.size(), result.size(), divisor);
    return result;
  }
  // The first `here` operands, then the others.
  static Shorts inTwoSteps(ReduceOp op, const std::vector<Shorts>& operands, std::size_t here,
                           double divisor) {
    const std::size_t count = operands[0].size();
    const ReduceOp first = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
    std::vector<const void*> sources;
    for (const Shorts& each : operands) sources.push_back(each.data());
    std::vector<float> parts[2] = {std::vector<float>(count), std::vector<float>(count)};
    reduceToFloat(first, GetParam(), parts[0].data(), sources.data(), here, count);
    std::vector<const void*> both = {parts[0].data()};
    if (here < sources.size()) {
      reduceToFloat(first, GetParam(), parts[1].data(), sources.data() + here,
                    sources.size() - here, count);
      both.push_back(parts[1].data());
    }
    Shorts result(count);
    reduceFromFloats(op, GetParam(), result.data(), both.data(), both.size(), count, divisor);
    return result;
  }
};

TEST_P(Partial, EveryValueGoesThroughUnchanged) {
  Shorts all(1 << 16);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  // But for NaN, of which there is one in results.
  EXPECT_EQ(inTwoSteps(ReduceOp::kSum, {all}, 1, 1), inOneStep(ReduceOp::kSum, {all}, 1));
}

// Pairs that differ in exponent and sign: their sums are exact in float32 or rounded there alike.
TEST_P(Partial, SumsAndProductsOfTwoAreThoseOfOneStep) {
  Shorts left(1 << 16);
  std::iota(left.begin(), left.end(), std::uint16_t{0});
  for (const int offset : {1, 0x0403, 0x1234, 0x8001, 0x9c40}) {
    Shorts right;
    for (const std::uint16_t each : left)
      right.push_back(static_cast<std::uint16_t>(each + offset));
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kAvg}) {
      EXPECT_EQ(inTwoSteps(op, {left, right}, 1, 3), inOneStep(op, {left, right}, 3));
      EXPECT_EQ(inTwoSteps(op, {left, right}, 2, 3), inOneStep(op, {left, right}, 3));
    }
  }
}

TEST_P(Partial, AnyNumberOfElements) {
  for (const std::size_t count : {0, 1, 2, 3, 4, 5, 7, 8, 1023, 1024, 1025, 3001}) {
    std::vector<Shorts> operands(5, Shorts(count));
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t which = 0; which < operands.size(); ++which) {
        // Around 1: exact sums, which are rounded at the end.
        operands[which][i] = static_cast<std::uint16_t>(
            (GetParam() == DType::kFloat16 ? 0x3c00 : 0x3f80) + (i * 7 + which * 31) % 0x80);
      }
    }
    EXPECT_EQ(inTwoSteps(ReduceOp::kSum, operands, 3, 1), inOneStep(ReduceOp::kSum, operands, 1))
        << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Partial, ::testing::Values(DType::kFloat16, DType::kBFloat16),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

}  // namespace
}  // namespace smd::kernels
