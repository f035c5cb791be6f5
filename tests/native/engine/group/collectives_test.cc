// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Every collective on every algorithm, up to some hundred kilobytes: dtypes, reduce operations,
// uneven parts, in place, blocking and asynchronous.
#include "support/engine_collectives.h"

namespace smd::engine::test {
namespace {

TEST_P(Collectives, AllKindsAndDtypesInSmallSizes) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt64,
                      DType::kUInt8, DType::kBool, DType::kComplex64}) {
    if (kIsSlow && elementSize(dtype) == 2) continue;
    std::vector<PlanOptions> plans;
    for (OpKind kind : kCollectives) {
      for (std::uint64_t count : {0, 1, 2, 3, 1009}) {
        for (bool isInPlace : {false, true}) {
          plans.push_back({.kind = kind, .dtype = dtype, .count = count, .isInPlace = isInPlace});
        }
      }
    }
    check(plans);
  }
}

TEST_P(Collectives, UnevenPartsSomeOfThemEmpty) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
    std::vector<PlanOptions> plans;
    for (OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllToAll,
                        OpKind::kGather, OpKind::kScatter}) {
      for (std::uint64_t count : {0, 1, 7, 1009, kIsSlow ? 20011 : 100003}) {
        plans.push_back({.kind = kind, .dtype = dtype, .count = count, .isUneven = true});
        plans.push_back(
            {.kind = kind, .dtype = dtype, .count = count, .isUneven = true, .isInPlace = true});
      }
    }
    check(plans);
  }
}

TEST_P(Collectives, AllReduceOperations) {
  struct Pair {
    DType dtype;
    std::vector<ReduceOp> ops;
  };
  const std::vector<ReduceOp> arithmetic = {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
  const std::vector<ReduceOp> bitwise = {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor};
  const std::vector<ReduceOp> fractional = {ReduceOp::kAvg, ReduceOp::kPremulSum};
  const std::vector<ReduceOp> average = {ReduceOp::kAvg};
  const std::vector<Pair> pairs = {
      {DType::kFloat32, arithmetic},   {DType::kFloat32, fractional},
      {DType::kFloat64, fractional},   {DType::kBFloat16, arithmetic},
      {DType::kFloat16, fractional},   {DType::kInt64, arithmetic},
      {DType::kInt32, bitwise},        {DType::kUInt8, bitwise},
      {DType::kInt32, average},        {DType::kUInt8, average},
      {DType::kComplex64, fractional}, {DType::kComplex128, {ReduceOp::kSum}}};
  for (const Pair& pair : pairs) {
    std::vector<PlanOptions> plans;
    for (OpKind kind : {OpKind::kAllReduce, OpKind::kReduce, OpKind::kReduceScatter}) {
      for (ReduceOp op : pair.ops) {
        // How the work is split up depends on the size and not on the operation: the longest once.
        const std::uint64_t longest = op != pair.ops.front() ? 3001 : kIsSlow ? 20001 : 70001;
        for (std::uint64_t count : {std::uint64_t{5}, std::uint64_t{1009}, longest}) {
          plans.push_back({.kind = kind, .dtype = pair.dtype, .op = op, .count = count});
          plans.push_back(
              {.kind = kind, .dtype = pair.dtype, .op = op, .count = count, .isInPlace = true});
        }
      }
    }
    check(plans);
  }
}

TEST_P(Collectives, BarriersBetweenOtherOperations) {
  const Plan plan({.count = 10}, size());
  world().run([&](int rank) {
    for (int i = 0; i < 50; ++i) {
      world().at(rank, "barrier " + std::to_string(i));
      const auto barrier = world().of(rank).collective(Request{}, Mode::kBlocking, {});
      requireNone(errorOf(*barrier));
      Buffers buffers(plan, rank);
      const auto work = world().of(rank).collective(buffers.request(), Mode::kBlocking, {});
      requireNone(errorOf(*work) + buffers.problem());
    }
  });
}

// Nobody leaves a barrier before everybody has come.
TEST_P(Collectives, BarrierHoldsEveryoneUntilTheLastHasCome) {
  std::atomic<int> arrived{0};
  world().run([&](int rank) {
    for (int i = 1; i <= 100; ++i) {
      world().at(rank, "barrier " + std::to_string(i));
      arrived.fetch_add(1);
      requireNone(errorOf(*world().of(rank).collective(Request{}, Mode::kBlocking, {})));
      SMD_REQUIRE(arrived.load() >= i * size());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engine, Collectives, ::testing::ValuesIn(allCases(allWires())), nameOf);

}  // namespace
}  // namespace smd::engine::test
