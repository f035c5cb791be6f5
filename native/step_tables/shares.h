// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How a range of elements is cut: pure arithmetic, no memory touched.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace smd::step_tables {

struct Range {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
};

// The share of `part` when `count` elements are divided among `parts`: contiguous, in order, each
// but the last a multiple of `unit` elements (a cache line's worth, so that two ranks never write
// the same line), differing by at most `unit` plus the remainder. Shares at the end may be empty.
constexpr Range shareOf(std::uint64_t count, int parts, int part, std::uint64_t unit) {
  const auto n = static_cast<std::uint64_t>(parts);
  const std::uint64_t units = (count + unit - 1) / unit;
  const std::uint64_t each = (units + n - 1) / n * unit;
  const std::uint64_t begin = std::min(count, each * static_cast<std::uint64_t>(part));
  return {begin, std::min(count, begin + each) - begin};
}

// Piece `index` of `count` elements cut into pieces of `each` (the last may be shorter or, past the
// end, empty).
constexpr Range pieceOf(std::uint64_t count, std::uint64_t each, std::uint64_t index) {
  const std::uint64_t begin = std::min(count, each * index);
  return {begin, std::min(count - begin, each)};
}

constexpr std::uint64_t numPieces(std::uint64_t count, std::uint64_t each) {
  return (count + each - 1) / each;
}

}  // namespace smd::step_tables
