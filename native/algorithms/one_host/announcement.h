// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What a rank tells with its arrival at a large operation on one host, whichever way it is carried
// out: where its buffer lies, if peers can reach it, and for gather, scatter and all_to_all how
// much it offers to each rank and expects from each. In the slot: place, n counts offered, n
// expected.
#pragma once

#include <cstdint>
#include <vector>

#include "algorithms/one_host/arrival.h"

namespace smd::algorithms {

// Where in its owner's arena a buffer begins, plus 1; kNoPlace if it lies elsewhere.
using BufferPlace = std::uint64_t;
inline constexpr BufferPlace kNoPlace = 0;

// Arrives (arrival.h).
void announce(const Context& context, BufferPlace place);

// The rest: after all have arrived, and until the next operation.
BufferPlace placeOf(const Context& context, int peer);

bool hasSplits(OpKind kind);  // whether counts are announced
// How many elements each rank sends to each, in a kind that hasSplits().
class Splits {
 public:
  explicit Splits(const Context& context) : context_(context) {}

  // Every rank compares every pair, so that all raise the same error if two disagree.
  // Returns the longest piece that anyone sends.
  std::uint64_t check() const;
  std::uint64_t offered(int sender, int receiver) const { return entry(sender, receiver); }
  std::vector<std::uint64_t> offeredTo(int receiver) const;
  // What `sender` offers to all ranks before `receiver`; to all there are for the group's size.
  std::uint64_t offeredBefore(int sender, int receiver) const;

 private:
  std::uint64_t entry(int rank, int index) const;

  const Context& context_;
};

}  // namespace smd::algorithms
