// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages over TCP, for ranks on different hosts (or anywhere shared memory is not proven).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "auth/session_key.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

// Paths of PEM files, each of the form that OpenSSL reads: this rank's certificate (and what leads
// from it to the authority), its key without a password, and the authority that has signed those of
// all ranks. All empty: connections are in the clear.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;

  bool areGiven() const { return !certificate.empty(); }
};

struct Options {
  int rank = 0;
  int worldSize = 1;
  // Which interfaces to use, the main one first: see chooseAddresses(). (SMDDP_INTERFACE)
  std::string interfaces = "auto";
  std::string rendezvousAddress;  // may be empty
  TlsFiles tls;
};

class TcpTransport : public Transport {
 public:
  // "address:port" (IPv6 in brackets), comma separated if there are several, at which this rank
  // accepts; to be published to all ranks.
  virtual std::string endpoint() const = 0;
  // The interfaces in use, for people: "eth0 (10.1.0.2), eth1 (10.2.0.2)".
  virtual std::string interfaces() const = 0;
  // Gives all ranks' endpoints (by rank) and the key that both ends of every connection prove to
  // know, before the first send. Connections are opened on first use. Until then accepted
  // connections wait unread.
  virtual void start(std::vector<std::string> endpoints, const auth::SessionKey& key,
                     FrameSink& sink) = 0;
  // Connections that were closed because they did not prove to know the key, or not in time: port
  // scanners, other jobs. They disturb nobody. The first one is logged, with its address and the
  // reason, and then one a minute at most.
  virtual std::uint64_t rejectedConnections() const = 0;
  // Those of them that may explain why `peer` does not come: that claimed to be it, or nobody ("a
  // connection from ... was refused: ..."). Empty for none. Any thread.
  virtual std::string describeRejections(int peer) const = 0;
};

// Binds a listening socket (port chosen by the system). Throws Error(kConfiguration) when no
// interface matches, with the list of those there are, and for TLS files that cannot work.
std::unique_ptr<TcpTransport> create(const Options& options);

// Throws what create() throws for TLS files that cannot work.
void checkTlsFiles(const TlsFiles& files);

}  // namespace smd::transport::tcp
