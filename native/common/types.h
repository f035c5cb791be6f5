// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Element types, reduce operations and the kinds of operation: the vocabulary every room shares.
//
// Each is written once, in a table below. From its lines come the enum, the names in errors and
// traces, the constants and the ReduceOp of `_native`, and with them the stub and the tables of the
// Python front ends. The number of a line crosses the wire and is known to Python: only append.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace smd {

// Constant, name, bytes of an element. The names are those of torch and NumPy. "opaque8" moves as
// bytes and cannot be reduced: 8-bit floats, packed and quantised types.
#define SMD_DTYPES(LINE)              \
  LINE(kFloat32, "float32", 4)        \
  LINE(kFloat64, "float64", 8)        \
  LINE(kFloat16, "float16", 2)        \
  LINE(kBFloat16, "bfloat16", 2)      \
  LINE(kInt8, "int8", 1)              \
  LINE(kInt16, "int16", 2)            \
  LINE(kInt32, "int32", 4)            \
  LINE(kInt64, "int64", 8)            \
  LINE(kUInt8, "uint8", 1)            \
  LINE(kBool, "bool", 1)              \
  LINE(kComplex64, "complex64", 8)    \
  LINE(kComplex128, "complex128", 16) \
  LINE(kUInt16, "uint16", 2)          \
  LINE(kUInt32, "uint32", 4)          \
  LINE(kUInt64, "uint64", 8)          \
  LINE(kOpaque8, "opaque8", 1)

// Constant, name (as torch's ReduceOp has it), what it does with the ranks' elements.
#define SMD_REDUCE_OPS(LINE)                                                                    \
  LINE(kSum, "SUM", "The sum.")                                                                 \
  LINE(kAvg, "AVG",                                                                             \
       "The sum divided by the number of ranks: of integers towards zero, of bool not at all.") \
  LINE(kMin, "MIN", "The smallest.")                                                            \
  LINE(kMax, "MAX", "The largest.")                                                             \
  LINE(kProduct, "PRODUCT", "The product.")                                                     \
  LINE(kBand, "BAND", "Bitwise and.")                                                           \
  LINE(kBor, "BOR", "Bitwise or.")                                                              \
  LINE(kBxor, "BXOR", "Bitwise exclusive or.")                                                  \
  LINE(kPremulSum, "PREMUL_SUM", "Each rank's elements times its factor, then the sum.")

// Constant, name.
#define SMD_OP_KINDS(LINE)               \
  LINE(kBarrier, "barrier")              \
  LINE(kAllReduce, "all_reduce")         \
  LINE(kReduce, "reduce")                \
  LINE(kBroadcast, "broadcast")          \
  LINE(kAllGather, "all_gather")         \
  LINE(kReduceScatter, "reduce_scatter") \
  LINE(kAllToAll, "all_to_all")          \
  LINE(kGather, "gather")                \
  LINE(kScatter, "scatter")              \
  LINE(kSend, "send")                    \
  LINE(kRecv, "recv")

#define SMD_CONSTANT(constant, ...) constant,
#define SMD_NAME(constant, name, ...) name,
#define SMD_BYTES(constant, name, bytes) bytes,
#define SMD_ONE(...) +1

enum class DType : std::uint8_t { SMD_DTYPES(SMD_CONSTANT) };
inline constexpr int kNumDTypes = 0 SMD_DTYPES(SMD_ONE);

enum class ReduceOp : std::uint8_t { SMD_REDUCE_OPS(SMD_CONSTANT) };
inline constexpr int kNumReduceOps = 0 SMD_REDUCE_OPS(SMD_ONE);

enum class OpKind : std::uint8_t { SMD_OP_KINDS(SMD_CONSTANT) };
inline constexpr int kNumOpKinds = 0 SMD_OP_KINDS(SMD_ONE);

constexpr std::size_t elementSize(DType type) {
  constexpr std::size_t sizes[kNumDTypes] = {SMD_DTYPES(SMD_BYTES)};
  const auto index = static_cast<std::size_t>(type);
  return index < kNumDTypes ? sizes[index] : 0;
}

constexpr std::string_view name(DType type) {
  constexpr std::string_view names[kNumDTypes] = {SMD_DTYPES(SMD_NAME)};
  const auto index = static_cast<std::size_t>(type);
  return index < kNumDTypes ? names[index] : "unknown dtype";
}

constexpr std::string_view name(ReduceOp op) {
  constexpr std::string_view names[kNumReduceOps] = {SMD_REDUCE_OPS(SMD_NAME)};
  const auto index = static_cast<std::size_t>(op);
  return index < kNumReduceOps ? names[index] : "unknown reduce op";
}

constexpr std::string_view name(OpKind kind) {
  constexpr std::string_view names[kNumOpKinds] = {SMD_OP_KINDS(SMD_NAME)};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNumOpKinds ? names[index] : "unknown operation";
}

#undef SMD_CONSTANT
#undef SMD_NAME
#undef SMD_BYTES
#undef SMD_ONE

}  // namespace smd
