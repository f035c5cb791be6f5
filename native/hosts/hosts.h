// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which ranks of a group share a host's memory: the same map on every rank.
#pragma once

#include <cstddef>
#include <vector>

namespace smd::hosts {

struct Hosts {
  // By host, in the order of their lowest ranks; each in rank order. A rank that shares memory with
  // nobody is a host of its own.
  std::vector<std::vector<int>> ranks;
  int self = 0;      // this rank's host
  int position = 0;  // and its place there

  int count() const { return static_cast<int>(ranks.size()); }
  const std::vector<int>& ranksOf(int host) const { return ranks[static_cast<std::size_t>(host)]; }
  int sizeOf(int host) const { return static_cast<int>(ranksOf(host).size()); }
  int fewestRanks() const;
  int mostRanks() const;
};

// `leaders`: for each rank the lowest rank of its machine (identity.h); `canShare`: whether it got
// hold of that machine's memory. A machine on which somebody did not falls apart into hosts of one.
Hosts makeHosts(int rank, const std::vector<int>& leaders, const std::vector<bool>& canShare);

}  // namespace smd::hosts
