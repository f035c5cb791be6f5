// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How ranks that know nothing of each other but a way to exchange bytes become a group: two
// exchanges of at most a few hundred bytes per rank (so n^2 such messages in all through a store
// that gives everyone everything).
//   1. everyone publishes an Identity; the lowest rank of each machine offers a shared region, the
//      others ask for it over a Unix socket: whoever gets the descriptor shares the host;
//   2. everyone publishes whether that worked, so that all draw the same map, and a mark of its job
//      token, so that all see who has another one.
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
  hosts::Hosts hosts;
  // Ranks whose memory is shared with this one's, in order, this one included; and their region
  // (null if there is no other).
  std::vector<int> localRanks;
  std::shared_ptr<transport::shm::Region> region;
  // Whether all ranks of this host map the region's arenas: then memory may be allocated there.
  bool hasArenas = false;
  auth::SessionKey key;
  std::unique_ptr<transport::tcp::TcpTransport> tcp;  // null if nobody is remote; not yet started
};

// Every rank's `value`, by rank. Throws Error(kConfiguration) if the function returned another
// number of them.
std::vector<std::string> exchangeAll(const ExchangeFn& exchange, const std::string& key,
                                     const std::string& value, int worldSize);

Membership bootstrap(int rank, int worldSize, const ExchangeFn& exchange,
                     const EngineOptions& options);

}  // namespace smd::engine
