// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How long a collective over several hosts is expected to take, pattern by pattern: the tables of
// step_tables/between_hosts.h, run over a modelled network. Pure arithmetic, the same on every
// rank.
#pragma once

#include <cstdint>

#include "step_tables/between_hosts.h"

namespace smd::engine {

// What one host needs to reach another.
struct Link {
  double latencySeconds = 30e-6;   // of a message, until it is seen
  double overheadSeconds = 5e-6;   // of each message, at its sender and at its receiver
  double bytesPerSecond = 1.25e9;  // of the host, in each direction
};

// Of an all_reduce of `bytes` on each of `hosts` hosts. In exchange and doubling each of
// `ranksPerHost` ranks sends everything for itself; the other patterns divide it among them.
double allReduceSeconds(step_tables::Pattern pattern, std::uint64_t bytes, int hosts,
                        int ranksPerHost, const Link& link);

// The quickest. `isFixedOrder`: of those that combine the hosts' parts in the same order whatever
// the size. `mostAtOnce`: bytes up to which exchange and doubling are possible.
step_tables::Pattern quickestPattern(std::uint64_t bytes, int hosts, int ranksPerHost,
                                     const Link& link, std::uint64_t mostAtOnce, bool isFixedOrder);

// Of a broadcast of `bytes`, as by step_tables::broadcastTable(). In exchange and doubling the root
// alone sends for its host.
double broadcastSeconds(step_tables::Pattern pattern, std::uint64_t bytes, int hosts,
                        int ranksPerHost, const Link& link);
// The quickest of exchange and doubling, for up to `mostAtOnce` bytes, and direct.
step_tables::Pattern quickestBroadcast(std::uint64_t bytes, int hosts, int ranksPerHost,
                                       const Link& link, std::uint64_t mostAtOnce);

}  // namespace smd::engine
