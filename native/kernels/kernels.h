// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Reductions: many sources in, one result out, in one pass. One source file is compiled once per
// instruction set; the best one the processor has is chosen at start (see select.cc).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "common/types.h"

namespace smd::kernels {

// dst[i] = srcs[0][i] op srcs[1][i] op ... op srcs[numSrcs - 1][i], evaluated in exactly that
// order, for i in [0, count). For kAvg the sum is then divided by `divisor`; kPremulSum behaves as
// kSum (the caller has already multiplied). If dstCopy is not null the same results are stored
// there too. dst and dstCopy may each be identical to any one source (element-wise in place) but
// must not overlap one partially. numSrcs >= 1. Pointers need only element alignment.
// float16 and bfloat16 accumulate in float32 and round once (to nearest even) at the end.
// The error of their sum is at most half a unit in the last place of the result, for the rounding
// at the end, plus (numSrcs - 1) * 2^-24 times the sum of the absolute values, for the roundings to
// float32. An average by numSrcs: half a unit in its last place plus 2^-24 times that sum.
// MIN and MAX return NaN if any source is NaN, as torch does. bool: SUM and MAX and BOR are "or",
// PRODUCT, MIN and BAND are "and", BXOR is "not equal"; results are 0 or 1.
// Integers wrap around (two's complement). Their average is the sum, wrapped around or not, divided
// in integers, towards zero as in C++ and NCCL; `divisor` is then a whole number in [1, 2^31).
// The bits of the result depend on nothing but the inputs: not on count, alignment, or the
// instruction set (no fused multiply-add, no reassociation).
// Every floating result that is NaN is the canonical quiet NaN (0x7fc00000 in float32), even of one
// source, because which operand's NaN survives an addition differs between processors.
using ReduceFn = void (*)(void* dst, void* dstCopy, const void* const* srcs, std::size_t numSrcs,
                          std::size_t count, double divisor);

// dst[i] = src[i] * factor, rounded once to the type; dst may equal src. Floating and complex
// types; for integers the factor is converted to the type first. As in torch the factor takes part
// as float32 (for float64 and complex128 as float64), and a 16-bit product is one of float32
// rounded. To integers it is converted without its fraction and kept in range; NaN becomes 0.
using ScaleFn = void (*)(void* dst, const void* src, std::size_t count, double factor);

// memcpy by plain vector loads and stores. The C library copies large buffers with `rep movsb`,
// which on some processors (AMD Zen 3, 16 bytes off a page) moves 3 GB/s where this moves 30.
using CopyFn = void (*)(void* dst, const void* src, std::size_t bytes);

// The kernels of one instruction set.
class KernelSet {
 public:
  virtual ~KernelSet() = default;
  virtual std::string_view name() const = 0;  // "baseline", "avx2", "avx512", "scalar", "neon"
  virtual bool isUsable() const = 0;          // does this processor have the instructions?
  // Null when the pair cannot be reduced (AVG of bool, MIN of complex, bitwise of floats, ...).
  virtual ReduceFn reduce(ReduceOp op, DType type) const = 0;
  virtual ScaleFn scale(DType type) const = 0;
  virtual CopyFn copy() const = 0;
};

// Every set built into this library, "scalar" (the plain reference) first.
std::span<const KernelSet* const> allKernelSets();

// The best usable set. `SMDDP_KERNELS=name` overrides it, for tests and bug reports.
const KernelSet& kernels();

// kernels().reduce(op, type), or throws Error(kUnsupported) that says what can be done instead.
ReduceFn reduceOrThrow(ReduceOp op, DType type);

// kernels().copy()(dst, src, bytes).
void copy(void* dst, const void* src, std::size_t bytes);

}  // namespace smd::kernels
