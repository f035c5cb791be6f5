// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages over TCP, for ranks on different hosts (or anywhere shared memory is not proven).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace smd::transport::tcp {

// 128 random bits, the same on all ranks of a communicator: a connection that does not present them
// is closed before anything it sends is interpreted.
using Cookie = std::array<std::byte, 16>;

struct Options {
  int rank = 0;
  int worldSize = 1;
  // Interface names or address prefixes in order of preference, comma separated; "^name" excludes;
  // "auto": the interface that routes to `rendezvousAddress`, never loopback if another host is in
  // the group. (SMDDP_INTERFACE)
  std::string interfaces = "auto";
  std::string rendezvousAddress;  // may be empty
};

class TcpTransport : public Transport {
 public:
  // "address:port" (IPv6 in brackets) at which this rank accepts, to be published to all ranks.
  virtual std::string endpoint() const = 0;
  // Gives all ranks' endpoints (by rank) and the cookie, before the first send. Connections are
  // opened on first use. Until then accepted connections wait unread.
  virtual void start(std::vector<std::string> endpoints, const Cookie& cookie, FrameSink& sink) = 0;
  // Connections that were closed because they did not present the cookie of this communicator, or
  // not in time: port scanners, other jobs. They disturb nobody; a number that grows is worth a
  // look.
  virtual std::uint64_t rejectedConnections() const = 0;
};

// Binds a listening socket (port chosen by the system). Throws Error(kConfiguration) when no
// interface matches, with the list of those there are.
std::unique_ptr<TcpTransport> create(const Options& options);

}  // namespace smd::transport::tcp
