// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Rank arithmetic, as tables.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "step_tables/between_hosts.h"
#include "step_tables/dissemination.h"
#include "step_tables/shares.h"

namespace smd::step_tables {
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

// ---- Between hosts: who has which segment of a broadcast ----

class Broadcasts : public ::testing::TestWithParam<Pattern> {};

TEST_P(Broadcasts, ReachEveryPartyOnceFromAnyRoot) {
  for (const int size : {1, 2, 3, 4, 5, 8, 11, 16}) {
    for (int root = 0; root < size; ++root) {
      SCOPED_TRACE(std::to_string(size) + " parties, root " + std::to_string(root));
      const int segments = broadcastSegments(size);
      std::vector<std::set<int>> held(static_cast<std::size_t>(size));
      for (int segment = 0; segment < segments; ++segment) {
        held[static_cast<std::size_t>(root)].insert(segment);
      }
      const std::size_t steps = broadcastTable(GetParam(), size, root, root).size();
      for (std::size_t step = 0; step < steps; ++step) {
        std::map<std::pair<int, int>, Move> sent;
        for (int party = 0; party < size; ++party) {
          const Table table = broadcastTable(GetParam(), size, party, root);
          ASSERT_EQ(table.size(), steps);
          EXPECT_FALSE(table[step].isReducing);
          for (const Move& move : table[step].sends) {
            EXPECT_TRUE(sent.emplace(std::pair(party, move.peer), move).second);
            for (int segment = move.first; segment < move.first + move.count; ++segment) {
              EXPECT_TRUE(held[static_cast<std::size_t>(party)].contains(segment)) << "not yet";
            }
          }
        }
        for (int party = 0; party < size; ++party) {
          const Table table = broadcastTable(GetParam(), size, party, root);
          for (const Move& move : table[step].receives) {
            const auto found = sent.find({move.peer, party});
            ASSERT_NE(found, sent.end()) << "awaited, but not sent";
            EXPECT_EQ(found->second.first, move.first);
            EXPECT_EQ(found->second.count, move.count);
            sent.erase(found);
            for (int segment = move.first; segment < move.first + move.count; ++segment) {
              EXPECT_TRUE(held[static_cast<std::size_t>(party)].insert(segment).second) << "twice";
            }
          }
        }
        EXPECT_TRUE(sent.empty()) << "sent, but not awaited";
      }
      for (const std::set<int>& each : held) {
        EXPECT_EQ(each.size(), static_cast<std::size_t>(segments));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Broadcasts,
                         ::testing::Values(Pattern::kExchange, Pattern::kDoubling,
                                           Pattern::kDirect),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST(Broadcast, DirectSendsNothingTwiceFromAnyone) {
  for (const int size : {2, 3, 4, 7, 16}) {
    for (int party = 0; party < size; ++party) {
      int segments = 0;
      for (const Step& step : broadcastTable(Pattern::kDirect, size, party, 0)) {
        for (const Move& move : step.sends) segments += move.count;
      }
      EXPECT_EQ(segments, party == 0 ? size - 1 : size - 2);
    }
  }
}

// ---- Between hosts: what each party holds, as sets of the parties whose parts are in it ----

class Parties {
 public:
  // `isWhole`: every party has its own part of every segment; else only segment p, complete.
  Parties(int size, bool isWhole) : size_(size), held_(static_cast<std::size_t>(size)) {
    for (int party = 0; party < size; ++party) {
      held(party).resize(static_cast<std::size_t>(size));
      for (int segment = 0; segment < size; ++segment) {
        if (isWhole) at(party, segment) = {party};
        if (!isWhole && segment == party) at(party, segment) = everybody();
      }
    }
  }

  // Runs the tables of all parties in step. What is sent must be awaited, and the other way round.
  void run(const std::vector<Table>& tables) {
    for (std::size_t step = 0; step < tables.front().size(); ++step) {
      const auto before = held_;
      std::map<std::pair<int, int>, Move> sent;
      for (int party = 0; party < size_; ++party) {
        for (const Move& move : tables[static_cast<std::size_t>(party)][step].sends) {
          EXPECT_TRUE(sent.emplace(std::pair(party, move.peer), move).second);
        }
      }
      for (int party = 0; party < size_; ++party) {
        const Step& mine = tables[static_cast<std::size_t>(party)][step];
        for (const Move& move : mine.receives) {
          const auto found = sent.find({move.peer, party});
          ASSERT_NE(found, sent.end()) << "awaited, but not sent";
          EXPECT_EQ(found->second.first, move.first);
          EXPECT_EQ(found->second.count, move.count);
          sent.erase(found);
          for (int segment = move.first; segment < move.first + move.count; ++segment) {
            const auto& from =
                before[static_cast<std::size_t>(move.peer)][static_cast<std::size_t>(segment)];
            auto& to = at(party, segment);
            if (!mine.isReducing) to.clear();
            for (const int part : from) {
              EXPECT_TRUE(to.insert(part).second) << "a part is combined twice";
            }
          }
        }
      }
      EXPECT_TRUE(sent.empty()) << "sent, but not awaited";
    }
  }

  bool isComplete(int party, int segment) { return at(party, segment) == everybody(); }

 private:
  using Segments = std::vector<std::set<int>>;
  Segments& held(int party) { return held_[static_cast<std::size_t>(party)]; }
  std::set<int>& at(int party, int segment) {
    return held(party)[static_cast<std::size_t>(segment)];
  }
  std::set<int> everybody() const {
    std::set<int> all;
    for (int party = 0; party < size_; ++party) all.insert(party);
    return all;
  }

  int size_;
  std::vector<Segments> held_;
};

std::vector<Table> tablesOf(int size, const auto& tableOf) {
  std::vector<Table> tables;
  for (int party = 0; party < size; ++party) tables.push_back(tableOf(party));
  return tables;
}

class BetweenHosts : public ::testing::TestWithParam<Pattern> {
 protected:
  static std::vector<int> sizes() {
    std::vector<int> sizes;
    for (int size : {2, 3, 4, 5, 7, 8, 16, 17, 32}) {
      if (isPossible(GetParam(), size)) sizes.push_back(size);
    }
    return sizes;
  }
  static bool isInTwoPhases() {
    return GetParam() != Pattern::kExchange && GetParam() != Pattern::kDoubling;
  }
};

TEST_P(BetweenHosts, AllReduceGivesEveryoneEverything) {
  for (const int size : sizes()) {
    SCOPED_TRACE(std::string(name(GetParam())) + ", " + std::to_string(size));
    Parties parties(size, true);
    parties.run(tablesOf(size, [&](int self) { return allReduceTable(GetParam(), size, self); }));
    for (int party = 0; party < size; ++party) {
      for (int segment = 0; segment < size; ++segment) {
        EXPECT_TRUE(parties.isComplete(party, segment));
      }
    }
  }
}

TEST_P(BetweenHosts, PhasesMeetWhereSegmentsAreOwned) {
  if (!isInTwoPhases()) GTEST_SKIP() << "in one phase";
  for (const int size : sizes()) {
    SCOPED_TRACE(std::string(name(GetParam())) + ", " + std::to_string(size));
    Parties scattered(size, true);
    scattered.run(
        tablesOf(size, [&](int self) { return reduceScatterTable(GetParam(), size, self); }));
    Parties gathered(size, false);
    gathered.run(tablesOf(size, [&](int self) { return allGatherTable(GetParam(), size, self); }));
    for (int party = 0; party < size; ++party) {
      EXPECT_TRUE(scattered.isComplete(party, party));
      for (int segment = 0; segment < size; ++segment) {
        EXPECT_TRUE(gathered.isComplete(party, segment));
      }
    }
    const int root = size / 2;
    Parties atRoot(size, false);
    atRoot.run(tablesOf(size, [&](int self) { return gatherTable(size, self, root); }));
    for (int segment = 0; segment < size; ++segment) {
      EXPECT_TRUE(atRoot.isComplete(root, segment));
    }
  }
}

TEST_P(BetweenHosts, NoMoreIsSentThanTheTableOfPatternsSays) {
  for (const int size : sizes()) {
    int segments = 0;
    for (const Step& step : allReduceTable(GetParam(), size, 0)) {
      for (const Move& move : step.sends) segments += move.count;
    }
    int rounds = 0;
    while ((1 << rounds) < size) ++rounds;
    const std::map<Pattern, int> expected = {{Pattern::kExchange, size * (size - 1)},
                                             {Pattern::kDoubling, size * rounds},
                                             {Pattern::kDirect, 2 * (size - 1)},
                                             {Pattern::kHalvingDoubling, 2 * (size - 1)},
                                             {Pattern::kRing, 2 * (size - 1)}};
    EXPECT_EQ(segments, expected.at(GetParam())) << name(GetParam()) << ", " << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, BetweenHosts, ::testing::ValuesIn(kPatterns),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

}  // namespace
}  // namespace smd::step_tables
