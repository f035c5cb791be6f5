// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Element types, reduce operations and the kinds of operation: the vocabulary every room shares.
// The numeric values cross the wire and the Python seam (smdistributed.collectives): only append.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace smd {

enum class DType : std::uint8_t {
  kFloat32 = 0,
  kFloat64 = 1,
  kFloat16 = 2,
  kBFloat16 = 3,
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUInt8 = 8,
  kBool = 9,
  kComplex64 = 10,
  kComplex128 = 11,
  kUInt16 = 12,
  kUInt32 = 13,
  kUInt64 = 14,
  // Moves as bytes and cannot be reduced: 8-bit floats, packed and quantised types.
  kOpaque8 = 15,
};
inline constexpr int kNumDTypes = 16;

enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kAvg = 1,  // the sum divided by the number of ranks: of integers towards zero, of bool not at all
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kBand = 5,
  kBor = 6,
  kBxor = 7,
  kPremulSum = 8,  // each rank's input times its factor, then the sum
};
inline constexpr int kNumReduceOps = 9;

enum class OpKind : std::uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduce = 2,
  kBroadcast = 3,
  kAllGather = 4,
  kReduceScatter = 5,
  kAllToAll = 6,
  kGather = 7,
  kScatter = 8,
  kSend = 9,
  kRecv = 10,
};
inline constexpr int kNumOpKinds = 11;

constexpr std::size_t elementSize(DType type) {
  switch (type) {
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
    case DType::kOpaque8:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUInt16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kComplex64:
      return 8;
    case DType::kComplex128:
      return 16;
  }
  return 0;
}

constexpr std::string_view name(DType type) {
  constexpr std::string_view names[kNumDTypes] = {
      "float32", "float64", "float16",   "bfloat16",   "int8",   "int16",  "int32",  "int64",
      "uint8",   "bool",    "complex64", "complex128", "uint16", "uint32", "uint64", "opaque8"};
  const auto index = static_cast<std::size_t>(type);
  return index < kNumDTypes ? names[index] : "unknown dtype";
}

constexpr std::string_view name(ReduceOp op) {
  constexpr std::string_view names[kNumReduceOps] = {"SUM",  "AVG", "MIN",  "MAX",       "PRODUCT",
                                                     "BAND", "BOR", "BXOR", "PREMUL_SUM"};
  const auto index = static_cast<std::size_t>(op);
  return index < kNumReduceOps ? names[index] : "unknown reduce op";
}

constexpr std::string_view name(OpKind kind) {
  constexpr std::string_view names[kNumOpKinds] = {
      "barrier",    "all_reduce", "reduce",  "broadcast", "all_gather", "reduce_scatter",
      "all_to_all", "gather",     "scatter", "send",      "recv"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNumOpKinds ? names[index] : "unknown operation";
}

}  // namespace smd
