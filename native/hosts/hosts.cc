// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "hosts/hosts.h"

#include <algorithm>
#include <map>

namespace smd::hosts {

int Hosts::fewestRanks() const {
  return static_cast<int>(
      std::ranges::min(ranks, {}, [](const auto& host) { return host.size(); }).size());
}

int Hosts::mostRanks() const {
  return static_cast<int>(
      std::ranges::max(ranks, {}, [](const auto& host) { return host.size(); }).size());
}

Hosts makeHosts(int rank, const std::vector<int>& leaders, const std::vector<bool>& canShare) {
  std::map<int, bool> isWhole;  // by leader
  for (std::size_t each = 0; each < leaders.size(); ++each) {
    const auto known = isWhole.try_emplace(leaders[each], true).first;
    known->second = known->second && canShare[each];
  }
  Hosts hosts;
  std::map<int, std::size_t> hostOf;  // by leader
  for (std::size_t each = 0; each < leaders.size(); ++each) {
    const int leader = leaders[each];
    if (!isWhole[leader] || !hostOf.contains(leader)) {
      hostOf[leader] = hosts.ranks.size();
      hosts.ranks.emplace_back();
    }
    std::vector<int>& host = hosts.ranks[hostOf[leader]];
    if (static_cast<int>(each) == rank) {
      hosts.self = static_cast<int>(hostOf[leader]);
      hosts.position = static_cast<int>(host.size());
    }
    host.push_back(static_cast<int>(each));
  }
  return hosts;
}

}  // namespace smd::hosts
