// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What the parts of shared.cc tell each other: how operations on buffers that lie in the ranks'
// arenas are carried out once it is known that all do.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "algorithms/one_host/arrival.h"

namespace smd::algorithms {

// What a rank moves between two looks at whether a rank has withdrawn its buffers; small enough to
// stay in its cache.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 10;

// Shares begin at multiples of it, so that two ranks never write the same line.
inline constexpr std::uint64_t kCacheLine = 64;

// By rank: where the buffer begins that its peers use; null for a rank none of whose buffers they
// do.
using SharedBuffers = std::vector<std::byte*>;

inline bool overlap(Bytes a, Bytes b) {
  const std::less<const std::byte*> isBefore;
  return !a.empty() && !b.empty() && isBefore(a.data(), b.data() + b.size()) &&
         isBefore(b.data(), a.data() + a.size());
}

// Of an input in fragments: puts what peers are going to read into the output.
void bringFragments(const Context& context);

// all_reduce and reduce. Returns whether this rank's part is done; false: a rank whose buffer it
// uses has withdrawn it, and what was read may not be the operation's.
bool reduceInPlace(const Context& context, const SharedBuffers& buffers);

// The other collectives; likewise.
bool pull(const Context& context, const SharedBuffers& inputs);

}  // namespace smd::algorithms
