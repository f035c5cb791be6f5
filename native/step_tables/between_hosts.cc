// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "step_tables/between_hosts.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace smd::step_tables {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"exchange", "doubling", "direct",
                                                    "halving_doubling", "ring"};

int modulo(int value, int parties) { return (value % parties + parties) % parties; }

Table exchangeTable(int parties, int self) {
  Step step;
  step.isReducing = true;
  for (int offset = 1; offset < parties; ++offset) {
    step.sends.push_back({modulo(self + offset, parties), 0, parties});
    step.receives.push_back({modulo(self - offset, parties), 0, parties});
  }
  return {step};
}

Table doublingTable(int parties, int self) {
  Table table;
  for (int distance = 1; distance < parties; distance <<= 1) {
    const Move move{self ^ distance, 0, parties};
    table.push_back({{move}, {move}, true});
  }
  return table;
}

}  // namespace

std::string_view name(Pattern pattern) { return kNames[static_cast<std::size_t>(pattern)]; }

bool isPossible(Pattern pattern, int parties) {
  const bool isForPowers = pattern == Pattern::kDoubling || pattern == Pattern::kHalvingDoubling;
  return !isForPowers || std::has_single_bit(static_cast<unsigned>(parties));
}

Table reduceScatterTable(Pattern pattern, int parties, int self) {
  Table table;
  if (pattern == Pattern::kRing) {
    for (int step = 0; step < parties - 1; ++step) {
      table.push_back({{{modulo(self + 1, parties), modulo(self - step - 1, parties), 1}},
                       {{modulo(self - 1, parties), modulo(self - step - 2, parties), 1}},
                       true});
    }
  } else if (pattern == Pattern::kHalvingDoubling) {
    for (int distance = parties / 2; distance > 0; distance >>= 1) {
      const int peer = self ^ distance;
      table.push_back({{{peer, peer & ~(distance - 1), distance}},
                       {{peer, self & ~(distance - 1), distance}},
                       true});
    }
  } else if (parties > 1) {
    Step step;
    step.isReducing = true;
    for (int offset = 1; offset < parties; ++offset) {
      const int to = modulo(self + offset, parties);
      step.sends.push_back({to, to, 1});
      step.receives.push_back({modulo(self - offset, parties), self, 1});
    }
    table.push_back(step);
  }
  return table;
}

Table allGatherTable(Pattern pattern, int parties, int self) {
  Table table;
  if (pattern == Pattern::kRing) {
    for (int step = 0; step < parties - 1; ++step) {
      table.push_back({{{modulo(self + 1, parties), modulo(self - step, parties), 1}},
                       {{modulo(self - 1, parties), modulo(self - step - 1, parties), 1}}});
    }
  } else if (pattern == Pattern::kHalvingDoubling) {
    for (int distance = 1; distance < parties; distance <<= 1) {
      const int peer = self ^ distance;
      table.push_back(
          {{{peer, self & ~(distance - 1), distance}}, {{peer, peer & ~(distance - 1), distance}}});
    }
  } else if (parties > 1) {
    Step step;
    for (int offset = 1; offset < parties; ++offset) {
      const int from = modulo(self - offset, parties);
      step.sends.push_back({modulo(self + offset, parties), self, 1});
      step.receives.push_back({from, from, 1});
    }
    table.push_back(step);
  }
  return table;
}

Table gatherTable(int parties, int self, int root) {
  Step step;
  for (int peer = 0; peer < parties; ++peer) {
    if (peer == root) continue;
    if (self == root) step.receives.push_back({peer, peer, 1});
    if (self == peer) step.sends.push_back({root, self, 1});
  }
  return {step};
}

int broadcastSegments(int parties) { return std::max(1, parties - 1); }

Table broadcastTable(Pattern pattern, int parties, int self, int root) {
  const int segments = broadcastSegments(parties);
  const int distance = modulo(self - root, parties);  // from the root
  const auto partyAt = [&](int fromRoot) { return modulo(root + fromRoot, parties); };
  Table table;
  if (pattern == Pattern::kDoubling) {
    for (int bit = static_cast<int>(std::bit_ceil(static_cast<unsigned>(parties))) / 2; bit > 0;
         bit >>= 1) {
      Step step;
      const int below = distance % (2 * bit);
      if (below == bit) step.receives.push_back({partyAt(distance - bit), 0, segments});
      if (below == 0 && distance + bit < parties) {
        step.sends.push_back({partyAt(distance + bit), 0, segments});
      }
      table.push_back(std::move(step));
    }
    return table;
  }
  const bool isCut = pattern != Pattern::kExchange;
  const auto move = [&](int peer, int segment) {
    return isCut ? Move{peer, segment, 1} : Move{peer, 0, segments};
  };
  Step first;
  for (int other = 1; other < parties; ++other) {
    if (distance == 0) first.sends.push_back(move(partyAt(other), other - 1));
    if (distance == other) first.receives.push_back(move(root, other - 1));
  }
  table.push_back(std::move(first));
  if (isCut && parties > 2) {
    Step second;
    for (int offset = 1; offset < segments && distance != 0; ++offset) {
      const int to = modulo(distance - 1 + offset, segments);
      const int from = modulo(distance - 1 - offset, segments);
      second.sends.push_back({partyAt(to + 1), distance - 1, 1});
      second.receives.push_back({partyAt(from + 1), from, 1});
    }
    table.push_back(std::move(second));
  }
  return table;
}

Table allReduceTable(Pattern pattern, int parties, int self) {
  if (pattern == Pattern::kExchange) return exchangeTable(parties, self);
  if (pattern == Pattern::kDoubling) return doublingTable(parties, self);
  Table table = reduceScatterTable(pattern, parties, self);
  for (Step& step : allGatherTable(pattern, parties, self)) table.push_back(std::move(step));
  return table;
}

}  // namespace smd::step_tables
