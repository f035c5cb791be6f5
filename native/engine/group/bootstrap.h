// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How ranks become a group that have nothing but a function to exchange bytes. It takes two
// exchanges of at most a few hundred bytes per rank (n^2 such messages through a store in which
// every rank reads every value):
//   1. Every rank publishes an Identity. The lowest rank of each machine offers a shared region;
//      the others ask for it over a Unix socket. Ranks that get the descriptor share the host.
//   2. Every rank publishes whether that worked, so that all draw the same map, and a mark of its
//      job token, so that all see which rank has another token.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "auth/session_key.h"
#include "engine/group/options.h"
#include "hosts/hosts.h"
#include "hosts/identity.h"
#include "transport/shm/region.h"
#include "transport/tcp/factory.h"

namespace smd::engine {

// Returns every rank's value, by rank. Called in the same order on all ranks.
using ExchangeFn =
    std::function<std::vector<std::string>(const std::string& key, const std::string& value)>;

struct Membership {
  std::vector<hosts::Identity> identities;  // by rank
  std::vector<int> jobRanks;                // by rank; empty: the same
  hosts::Hosts hosts;
  // The ranks that share memory with this one, in order and including it; and their region (null
  // if this rank shares memory with none).
  std::vector<int> localRanks;
  std::shared_ptr<transport::shm::Region> region;
  // Whether all ranks of this host have mapped the region's arenas. Only then may memory be
  // allocated there.
  bool hasArenas = false;
  auth::SessionKey key;
  std::unique_ptr<transport::tcp::TcpTransport> tcp;  // null if nobody is remote; not yet started

  // For people, who look for the log of a process: "rank 3 of the job", or "rank 3" in a group of
  // all ranks.
  std::string nameOf(int rank) const;
};

// Every rank's `value`, by rank. Throws Error(kConfiguration) if `exchange` returns any other
// number of values.
std::vector<std::string> exchangeAll(const ExchangeFn& exchange, const std::string& key,
                                     const std::string& value, int worldSize);

Membership bootstrap(int rank, int worldSize, const ExchangeFn& exchange,
                     const EngineOptions& options);

}  // namespace smd::engine
