// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// float16 and bfloat16 to and from float32 in software, without branches, so that one text serves
// single values (Float = float, Bits = std::uint32_t) and vectors of them (compiler vector types of
// equally many lanes). Integer arithmetic wherever the processor's denormal modes could interfere.
//
// The 16-bit patterns travel in the low half of 32-bit lanes. Rounding is to nearest even; overflow
// gives infinity; a NaN stays a NaN with its sign and the payload bits that fit, and becomes quiet.
//
// Define SMD_KERNEL_SET before including this file: see kernel_table.h for why.
#pragma once

#include <cstdint>

#ifndef SMD_KERNEL_SET
#error "define SMD_KERNEL_SET, the namespace of this copy, before including kernels/half.h"
#endif

namespace smd::kernels::SMD_KERNEL_SET {

// std::bit_cast, also for vector types, without an inline function of the standard library.
template <class To, class From>
[[gnu::always_inline]] inline To bitsAs(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// left < right ? one : other, lane by lane, for left and right below 2^31. By subtraction, as SSE2
// has no comparison of unsigned numbers.
template <class Bits>
[[gnu::always_inline]] inline Bits ifLess(Bits left, std::uint32_t right, Bits one, Bits other) {
  const Bits mask = 0u - ((left - right) >> 31);
  return other ^ ((one ^ other) & mask);
}

template <class Float, class Bits>
[[gnu::always_inline]] inline Float floatFromHalf(Bits half) {
  const Bits sign = (half & 0x8000u) << 16;
  const Bits rest = half & 0x7fffu;
  // Rebias the exponent from 15 to 127; for infinity and NaN go on to 255.
  const Bits normal = (rest << 13) + (112u << 23);
  const Bits special = (rest << 13) | 0x7f800000u;
  // A NaN becomes quiet, as it does in the processors' own conversion.
  const Bits nan = special | 0x00400000u;
  // A float in [0.5, 1) counts in steps of 2^-24, and so do the subnormal halves: exact.
  const Float offset = bitsAs<Float>(Bits(rest | 0x3f000000u)) - 0.5f;
  const Bits subnormal = bitsAs<Bits>(offset);
  const Bits finite = ifLess(rest, 0x0400u, subnormal, normal);
  const Bits infinite = ifLess(rest, 0x7c01u, special, nan);
  return bitsAs<Float>(Bits(ifLess(rest, 0x7c00u, finite, infinite) | sign));
}

template <class Float, class Bits>
[[gnu::always_inline]] inline Bits halfFromFloat(Float value) {
  const Bits bits = bitsAs<Bits>(value);
  const Bits sign = (bits >> 16) & 0x8000u;
  const Bits rest = bits & 0x7fffffffu;
  // Just under half a unit of the last kept place, and one more if that place is odd. A carry out
  // of the mantissa raises the exponent, up to infinity: 65520 and more round there.
  const Bits normal = (rest - (112u << 23) + 0x0fffu + ((rest >> 13) & 1u)) >> 13;
  // Below 2^-14 the addition itself rounds to steps of 2^-24 (see floatFromHalf).
  const Float offset = bitsAs<Float>(rest) + 0.5f;
  const Bits subnormal = bitsAs<Bits>(offset) - 0x3f000000u;
  const Bits nan = ((rest >> 13) & 0x03ffu) | 0x7e00u;
  const Bits infinity = (rest & 0u) | 0x7c00u;
  const Bits finite = ifLess(rest, 0x38800000u, subnormal, normal);
  const Bits infinite = ifLess(rest, 0x7f800001u, infinity, nan);
  return ifLess(rest, 0x47800000u, finite, infinite) | sign;
}

template <class Float, class Bits>
[[gnu::always_inline]] inline Float floatFromBfloat(Bits bfloat) {
  return bitsAs<Float>(Bits(bfloat << 16));
}

// The bfloat16 is left in the high half of the result; the low half is noise. Not for NaN other
// than the canonical one (whose mantissa cannot carry into the sign).
template <class Bits>
[[gnu::always_inline]] inline Bits roundToHighHalf(Bits bits) {
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

template <class Float, class Bits>
[[gnu::always_inline]] inline Bits bfloatFromFloat(Float value) {
  const Bits bits = bitsAs<Bits>(value);
  const Bits rounded = roundToHighHalf(bits) >> 16;
  const Bits nan = (bits >> 16) | 0x0040u;
  return ifLess(Bits(bits & 0x7fffffffu), 0x7f800001u, rounded, nan);
}

}  // namespace smd::kernels::SMD_KERNEL_SET
