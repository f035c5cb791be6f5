// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which connections lead to a peer, where two hosts have several interfaces: pure, told by table.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "common/network.h"

namespace smd::transport::tcp {

// Of one connection. The first one takes whatever route the system has.
struct Rail {
  std::optional<SocketAddress> source;  // the address to bind; port 0
  SocketAddress target;
};

// Connections with one peer, at most.
inline constexpr std::size_t kMostRails = 16;

// With each peer over each interface: SMDDP_TCP_CONNECTIONS, or 1. More than one pays where a
// network limits what a single connection may carry. Throws Error(kConfiguration).
std::size_t connectionsPerInterface();

// The first is from main interface to main interface, and always there. Then those over pairs of
// other interfaces that are in one network, and all of them as often as `connections` says. `own`
// and `theirs`, of which the first are the main ones, are not empty.
std::vector<Rail> railsTo(const std::vector<InterfaceAddress>& own,
                          const std::vector<SocketAddress>& theirs, std::size_t connections);

}  // namespace smd::transport::tcp
