// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Several tensors as one buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensorflow_ops/invocation.h"

namespace smd::tensorflow_ops {

// Below it a copy costs less than to look for memory, and results are tensors of their own: a
// metric that somebody keeps does not keep a bucket. Every rank decides alike, by size.
inline constexpr std::size_t kSmallBytes = std::size_t{32} << 10;

// Where tensors lie in the buffer.
struct Layout {
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
  DType dtype{};
  std::uint64_t digest = 0;  // of the shapes

  std::uint64_t count() const { return bytes / elementSize(dtype); }
  bool isSmall() const { return bytes <= kSmallBytes; }
};

// Small ones one after the other, others each on cache lines of its own. Throws Error for a type
// that is not taken.
Layout layOut(const std::vector<TensorView>& tensors);

// Clears what lies between the tensors: it is reduced as well.
void pack(const Layout& layout, const std::vector<TensorView>& tensors, std::byte* target);
void copyBytes(std::byte* target, const std::byte* source, std::size_t bytes);

std::vector<TensorView> tensorsOf(const Invocation& invocation);
// Outputs like `tensors`, by number.
std::vector<TensorView> allocateLike(Invocation& invocation,
                                     const std::vector<TensorView>& tensors);

}  // namespace smd::tensorflow_ops
