// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives of buffers that take one or many blocks of the staged algorithms.
#include "support/engine_collectives.h"

namespace smd::engine::test {
namespace {

std::vector<Wires> wiresForLarge() {
  std::vector<Wires> wires = allWires();
  // What is too large for one_shot runs staged, as if it were not set.
  std::erase_if(wires, [](const Wires& each) { return each.name == "one_shot"; });
  return wires;
}

TEST_P(Collectives, SizesAroundABlock) {
  for (DType dtype : {DType::kFloat32, DType::kUInt8}) {
    if (kIsSlow && dtype == DType::kUInt8) continue;
    const std::uint64_t block = kBlockBytes / elementSize(dtype);
    for (OpKind kind : kCollectives) {
      check({{.kind = kind, .dtype = dtype, .count = block - 1},
             {.kind = kind, .dtype = dtype, .count = block, .isInPlace = true},
             {.kind = kind, .dtype = dtype, .count = block + 1}});
    }
  }
}

TEST_P(Collectives, ManyRoundsOfBlocks) {
  // One type in place, the other one not.
  for (DType dtype : {DType::kBFloat16, DType::kComplex64}) {
    for (OpKind kind : kCollectives) {
      // The parts of these kinds are per pair of ranks: kept to some megabytes in all.
      const bool isSplit =
          kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll || kind == OpKind::kScatter;
      const std::uint64_t bytes =
          isSplit ? kManyBlocks / static_cast<std::uint64_t>(size()) : kManyBlocks;
      check({{.kind = kind,
              .dtype = dtype,
              .count = bytes / elementSize(dtype),
              .isInPlace = dtype == DType::kBFloat16}});
    }
  }
}

// `reduce` keeps its input in use longer than it seems: the root does not wait for its peers' reads
// of results, as there are none. Version 0.1.0 before its release let the root publish its share
// into a staging block that it had already refilled with a later block, of another length.
TEST_P(Collectives, ReduceWithAShortLastBlockManyTimes) {
  for (int repetition = 0; repetition < (kIsSlow ? 3 : 10); ++repetition) {
    check({{.kind = OpKind::kReduce,
            .dtype = DType::kFloat32,
            .count = (8 * kBlockBytes + kBlockBytes / 3) / sizeof(float)}});
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, Collectives, ::testing::ValuesIn(allCases(wiresForLarge())),
                         nameOf);

}  // namespace
}  // namespace smd::engine::test
