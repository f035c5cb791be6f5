// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Who sends which part of a buffer to whom, and when, for `parties` (hosts) that each have one:
// tables, made for one party. A buffer is cut into as many segments as there are parties
// (shares.h).
//
//   pattern            steps            segments sent by a party   reduced by
//   exchange           1                n (n - 1)                  everyone, everything
//   doubling           log2 n           n log2 n                   everyone, everything
//   direct             2                2 (n - 1)                  the owner of each segment
//   halving-doubling   2 log2 n         2 (n - 1)                  halves, as they are passed on
//   ring               2 (n - 1)        2 (n - 1)                  along the ring
//
// 2 (n - 1) is the least there is (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", 2009); doubling and halving-doubling: Thakur, Rabenseifner and Gropp,
// "Optimization of collective communication operations in MPICH", 2005. These two need a power of
// two. In exchange and direct the operands of every segment are combined in the order of the
// parties; in doubling and halving-doubling the same tree serves all segments; along a ring each
// segment begins with another party.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace smd::step_tables {

enum class Pattern : std::uint8_t { kExchange, kDoubling, kDirect, kHalvingDoubling, kRing };
inline constexpr std::array<Pattern, 5> kPatterns = {Pattern::kExchange, Pattern::kDoubling,
                                                     Pattern::kDirect, Pattern::kHalvingDoubling,
                                                     Pattern::kRing};

std::string_view name(Pattern pattern);

// Segments [first, first + count), to or from `peer`.
struct Move {
  int peer;
  int first;
  int count;
};

// All moves of a step are under way at once; the next step begins when they are done. What is
// received in a reducing step is combined with what this party has; else it takes its place.
struct Step {
  std::vector<Move> sends;
  std::vector<Move> receives;
  bool isReducing = false;
};
using Table = std::vector<Step>;

// Doubling and halving-doubling: powers of two only.
bool isPossible(Pattern pattern, int parties);

// Afterwards every party has the whole result.
Table allReduceTable(Pattern pattern, int parties, int self);
// Afterwards party p has segment p of the result. Of direct, halving-doubling and ring.
Table reduceScatterTable(Pattern pattern, int parties, int self);
// Party p has segment p before, everyone everything afterwards. Likewise.
Table allGatherTable(Pattern pattern, int parties, int self);
// Party p has segment p before, `root` everything afterwards.
Table gatherTable(int parties, int self, int root);

// `root` has everything before, everyone afterwards. Cut into broadcastSegments(). Of
//   exchange   the root sends everything to each
//   doubling   a binomial tree: whoever has everything sends it on (any number of parties)
//   direct     the root sends each party a segment, which that sends to the others: two steps, in
//              which nobody sends or receives more than the buffer once
Table broadcastTable(Pattern pattern, int parties, int self, int root);
// One for each party but the root.
int broadcastSegments(int parties);

}  // namespace smd::step_tables
