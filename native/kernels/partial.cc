// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Piece by piece, so small that what is converted stays in the first-level cache, with the kernels
// of float32. The conversions are those in software, four elements at a time: exact where they
// widen, and with the rounding of the kernels where they narrow.
#include "kernels/partial.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/kernels.h"
#define SMD_KERNEL_SET partial
#include "kernels/half.h"

namespace smd::kernels {
namespace {

constexpr std::size_t kPiece = 1024;  // elements
constexpr std::size_t kLanes = 4;

typedef float Floats __attribute__((vector_size(sizeof(float) * kLanes)));
typedef std::uint32_t Words __attribute__((vector_size(sizeof(std::uint32_t) * kLanes)));
typedef std::uint16_t Shorts __attribute__((vector_size(sizeof(std::uint16_t) * kLanes)));

void widenFour(DType type, float* to, const std::uint16_t* from) {
  Shorts shorts;
  std::memcpy(&shorts, from, sizeof shorts);
  const Words words = __builtin_convertvector(shorts, Words);
  const Floats floats = type == DType::kFloat16 ? partial::floatFromHalf<Floats>(words)
                                                : partial::floatFromBfloat<Floats>(words);
  std::memcpy(to, &floats, sizeof floats);
}

void narrowFour(DType type, std::uint16_t* to, const float* from) {
  Floats floats;
  std::memcpy(&floats, from, sizeof floats);
  const Words words = type == DType::kFloat16 ? partial::halfFromFloat<Floats, Words>(floats)
                                              : partial::bfloatFromFloat<Floats, Words>(floats);
  const Shorts shorts = __builtin_convertvector(words, Shorts);
  std::memcpy(to, &shorts, sizeof shorts);
}

// The last few, fewer than four, go through buffers of four.
void widen(DType type, float* to, const void* from, std::size_t count) {
  const auto* source = static_cast<const std::byte*>(from);
  std::uint16_t shorts[kLanes] = {};
  float floats[kLanes];
  for (std::size_t i = 0; i < count; i += kLanes) {
    const std::size_t here = std::min(kLanes, count - i);
    std::memcpy(shorts, source + i * sizeof(std::uint16_t), here * sizeof(std::uint16_t));
    widenFour(type, floats, shorts);
    std::memcpy(to + i, floats, here * sizeof(float));
  }
}

void narrow(DType type, void* to, const float* from, std::size_t count) {
  auto* target = static_cast<std::byte*>(to);
  std::uint16_t shorts[kLanes];
  float floats[kLanes] = {};
  for (std::size_t i = 0; i < count; i += kLanes) {
    const std::size_t here = std::min(kLanes, count - i);
    std::memcpy(floats, from + i, here * sizeof(float));
    narrowFour(type, shorts, floats);
    std::memcpy(target + i * sizeof(std::uint16_t), shorts, here * sizeof(std::uint16_t));
  }
}

}  // namespace

void reduceToFloat(ReduceOp op, DType type, float* dst, const void* const* srcs,
                   std::size_t numSrcs, std::size_t count) {
  const ReduceFn reduce = reduceOrThrow(op, DType::kFloat32);
  float next[kPiece];
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t size = std::min(kPiece, count - begin);
    const auto at = [&](std::size_t which) {
      return static_cast<const std::byte*>(srcs[which]) + begin * elementSize(type);
    };
    widen(type, dst + begin, at(0), size);
    for (std::size_t which = 1; which < numSrcs; ++which) {
      widen(type, next, at(which), size);
      const void* operands[] = {dst + begin, next};
      reduce(dst + begin, nullptr, operands, 2, size, 1.0);
    }
  }
}

void reduceFromFloats(ReduceOp op, DType type, void* dst, const void* const* srcs,
                      std::size_t numSrcs, std::size_t count, double divisor) {
  const ReduceFn reduce = reduceOrThrow(op, DType::kFloat32);
  float result[kPiece];
  std::vector<const void*> pieces(numSrcs);
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t size = std::min(kPiece, count - begin);
    for (std::size_t which = 0; which < numSrcs; ++which) {
      pieces[which] = static_cast<const std::byte*>(srcs[which]) + begin * sizeof(float);
    }
    reduce(result, nullptr, pieces.data(), numSrcs, size, divisor);
    narrow(type, static_cast<std::byte*>(dst) + begin * elementSize(type), result, size);
  }
}

}  // namespace smd::kernels
