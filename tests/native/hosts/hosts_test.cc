// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The map of hosts, as a table.
#include <gtest/gtest.h>

#include "hosts/hosts.h"

namespace smd::hosts {
namespace {

using Map = std::vector<std::vector<int>>;

TEST(Hosts, Table) {
  struct Row {
    std::vector<int> leaders;
    std::vector<bool> canShare;
    Map expected;
    int fewest, most;
  };
  const std::vector<Row> rows = {
      {{0}, {false}, {{0}}, 1, 1},
      {{0, 0, 0}, {true, true, true}, {{0, 1, 2}}, 3, 3},
      {{0, 0, 2, 2}, {true, true, true, true}, {{0, 1}, {2, 3}}, 2, 2},
      {{0, 1, 0, 1, 0}, {true, true, true, true, true}, {{0, 2, 4}, {1, 3}}, 2, 3},
      {{0, 1, 2}, {false, false, false}, {{0}, {1}, {2}}, 1, 1},
      // One rank of the first machine could not get hold of its memory: it falls apart.
      {{0, 0, 2, 2, 0}, {true, false, true, true, true}, {{0}, {1}, {2, 3}, {4}}, 1, 2},
  };
  for (const Row& row : rows) {
    for (std::size_t rank = 0; rank < row.leaders.size(); ++rank) {
      const Hosts hosts = makeHosts(static_cast<int>(rank), row.leaders, row.canShare);
      EXPECT_EQ(hosts.ranks, row.expected);
      EXPECT_EQ(hosts.ranksOf(hosts.self)[static_cast<std::size_t>(hosts.position)],
                static_cast<int>(rank));
      EXPECT_EQ(hosts.fewestRanks(), row.fewest);
      EXPECT_EQ(hosts.mostRanks(), row.most);
    }
  }
}

}  // namespace
}  // namespace smd::hosts
