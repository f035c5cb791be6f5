// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Rank arithmetic, as tables.
#include <gtest/gtest.h>

#include <set>

#include "patterns/shares.h"
#include "patterns/tree.h"

namespace smd::patterns {
namespace {

TEST(Shares, Table) {
  struct Row {
    std::uint64_t count;
    int parts;
    std::uint64_t unit;
    std::vector<std::uint64_t> sizes;
  };
  const std::vector<Row> rows = {
      {0, 3, 16, {0, 0, 0}},         {1, 3, 16, {1, 0, 0}},      {16, 1, 16, {16}},
      {17, 2, 16, {16, 1}},          {48, 3, 16, {16, 16, 16}},  {49, 3, 16, {32, 17, 0}},
      {100, 4, 16, {32, 32, 32, 4}}, {5, 5, 1, {1, 1, 1, 1, 1}}, {7, 5, 1, {2, 2, 2, 1, 0}},
  };
  for (const Row& row : rows) {
    for (int part = 0; part < row.parts; ++part) {
      EXPECT_EQ(shareOf(row.count, row.parts, part, row.unit).size,
                row.sizes[static_cast<std::size_t>(part)])
          << row.count << " elements, part " << part << " of " << row.parts;
    }
  }
}

TEST(Shares, CoverEverythingOnceInWholeUnits) {
  for (std::uint64_t count = 0; count < 200; ++count) {
    for (int parts = 1; parts <= 9; ++parts) {
      for (std::uint64_t unit : {1, 4, 16, 64}) {
        std::uint64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          const Range share = shareOf(count, parts, part, unit);
          ASSERT_EQ(share.begin, next);
          next += share.size;
          ASSERT_TRUE(share.size % unit == 0 || next == count);
        }
        ASSERT_EQ(next, count);
      }
    }
  }
}

TEST(Pieces, Table) {
  EXPECT_EQ(numPieces(0, 10), 0u);
  EXPECT_EQ(numPieces(1, 10), 1u);
  EXPECT_EQ(numPieces(10, 10), 1u);
  EXPECT_EQ(numPieces(11, 10), 2u);
  EXPECT_EQ(pieceOf(25, 10, 0).begin, 0u);
  EXPECT_EQ(pieceOf(25, 10, 0).size, 10u);
  EXPECT_EQ(pieceOf(25, 10, 2).begin, 20u);
  EXPECT_EQ(pieceOf(25, 10, 2).size, 5u);
  EXPECT_EQ(pieceOf(25, 10, 3).size, 0u);  // past the end, as for ranks with less than others
  EXPECT_EQ(pieceOf(25, 10, 3).begin, 25u);
  EXPECT_EQ(pieceOf(0, 10, 0).size, 0u);
}

TEST(BinomialTree, OfEightFromRankZero) {
  const std::vector<std::vector<int>> children = {{4, 2, 1}, {}, {3}, {}, {6, 5}, {}, {7}, {}};
  const std::vector<int> parents = {-1, 0, 0, 2, 0, 4, 4, 6};
  for (int rank = 0; rank < 8; ++rank) {
    const TreeNode node = binomialTree(8, 0, rank);
    EXPECT_EQ(node.children, children[static_cast<std::size_t>(rank)]) << "rank " << rank;
    EXPECT_EQ(node.parent, parents[static_cast<std::size_t>(rank)]) << "rank " << rank;
  }
}

TEST(BinomialTree, ReachesEveryRankOnceFromAnyRoot) {
  for (int size = 1; size <= 17; ++size) {
    int rounds = 0;
    while (1 << rounds < size) ++rounds;
    for (int root = 0; root < size; ++root) {
      std::set<int> reached = {root};
      EXPECT_EQ(binomialTree(size, root, root).parent, -1);
      for (int rank = 0; rank < size; ++rank) {
        const TreeNode node = binomialTree(size, root, rank);
        for (int child : node.children) {
          EXPECT_TRUE(reached.insert(child).second) << child << " has two parents";
          EXPECT_EQ(binomialTree(size, root, child).parent, rank);
        }
        int depth = 0;
        for (int at = rank; at != root; at = binomialTree(size, root, at).parent) ++depth;
        EXPECT_LE(depth, rounds);
      }
      EXPECT_EQ(reached.size(), static_cast<std::size_t>(size));
    }
  }
}

TEST(Dissemination, Table) {
  EXPECT_EQ(disseminationDistances(1), (std::vector<int>{}));
  EXPECT_EQ(disseminationDistances(2), (std::vector<int>{1}));
  EXPECT_EQ(disseminationDistances(3), (std::vector<int>{1, 2}));
  EXPECT_EQ(disseminationDistances(8), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(disseminationDistances(9), (std::vector<int>{1, 2, 4, 8}));
}

// After the last round everybody has heard, through others, of everybody.
TEST(Dissemination, TellsEveryoneOfEveryone) {
  for (int size = 1; size <= 17; ++size) {
    std::vector<std::set<int>> knows(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) knows[static_cast<std::size_t>(rank)] = {rank};
    for (int distance : disseminationDistances(size)) {
      auto next = knows;
      for (int rank = 0; rank < size; ++rank) {
        const auto& news = knows[static_cast<std::size_t>(rank)];
        next[static_cast<std::size_t>((rank + distance) % size)].insert(news.begin(), news.end());
      }
      knows = std::move(next);
    }
    for (const auto& each : knows) EXPECT_EQ(each.size(), static_cast<std::size_t>(size));
  }
}

}  // namespace
}  // namespace smd::patterns
