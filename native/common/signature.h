// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What a rank says about the operation it is in, so that ranks that disagree find out in the first
// exchange instead of hanging or corrupting each other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include "common/types.h"

namespace smd {

// Crosses process and host boundaries as raw bytes (little-endian hosts only, checked at
// bootstrap).
struct Signature {
  std::uint64_t sequence = 0;  // number of the operation in its communicator, from 1
  std::uint64_t count =
      0;  // elements that every rank must agree on (per rank, if rooted or uneven)
  std::uint64_t detail = 0;  // digest of anything else that must agree (list of sizes), else 0
  std::int32_t root = -1;    // -1: the operation has no root
  OpKind kind = OpKind::kBarrier;
  DType dtype = DType::kOpaque8;
  ReduceOp op = ReduceOp::kSum;
  std::uint8_t reserved = 0;

  bool operator==(const Signature&) const = default;
};
static_assert(sizeof(Signature) == 32 && std::is_trivially_copyable_v<Signature>);

// A `detail` that says in which order the dimensions of the caller's array lie in memory, where it
// is not their own order: `dimensions` are their indices, from the one whose elements lie farthest
// apart, without those of one element. Two different orders give two different values, or, of more
// than 12 dimensions, very likely so.
std::uint64_t storageOrder(std::span<const int> dimensions);
// "dimensions in the order 0, 2, 3, 1 (channels_last)"; empty for a detail of another meaning.
std::string describeStorageOrder(std::uint64_t detail);

// "all_reduce #1042 (SUM, float32 x 1048576)", "recv from rank 2 (float32 x 4, tag 0)"
std::string describe(const Signature& signature);

}  // namespace smd
