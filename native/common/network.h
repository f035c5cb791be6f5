// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Socket addresses, this host's interfaces, and which of them other hosts should talk to.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace smd {

// A numeric IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  // 0.0.0.0:0
  SocketAddress();
  // "10.1.0.2:41212", "[fd00::2]:41212"; without a port ("10.1.0.2", "fd00::2") it is 0. No names
  // are resolved. Empty if `text` is none of these.
  static std::optional<SocketAddress> parse(std::string_view text);
  // Empty if `address` is neither IPv4 nor IPv6.
  static std::optional<SocketAddress> from(const sockaddr& address);

  int family() const { return address_.generic.sa_family; }
  const sockaddr* data() const { return &address_.generic; }
  socklen_t size() const;
  std::uint16_t port() const;
  SocketAddress withPort(std::uint16_t port) const;
  // Only meaningful on one link of one host (fe80::...), hence no use to others.
  bool isLinkLocal() const;
  bool isLoopback() const;
  // Whether the address lies in the network "10.1.0.0/16".
  bool isIn(std::string_view network) const;
  // Whether the first `bits` are those of `other`.
  bool sharesPrefix(const SocketAddress& other, unsigned bits) const;

  std::string host() const;      // "10.1.0.2", "fd00::2"
  std::string toString() const;  // "10.1.0.2:41212", "[fd00::2]:41212"

  bool operator==(const SocketAddress& other) const;

 private:
  // Not sockaddr_storage (128 bytes): one of these is kept for every rank.
  union {
    sockaddr generic;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } address_;
};

struct InterfaceAddress {
  std::string name;
  SocketAddress address;  // port 0
  bool isUp = true;
  unsigned prefixBits = 0;    // of the network behind it; 0: not known
  std::string driver = {};    // that the kernel has for it; empty: not known
  int megabitsPerSecond = 0;  // 0: not known
};

// Addresses of this host's interfaces, in the kernel's order. Throws Error(kInternal).
std::vector<InterfaceAddress> listInterfaceAddresses();

// The address from which the kernel would reach `host` ("node-1", "10.1.0.1", with or without
// ":port"). Sends no packet; a name is resolved (blocking). Empty if it cannot be resolved or
// routed.
std::optional<SocketAddress> routedSource(const std::string& host);

// The decision, without I/O: the interfaces to use, one address of each, all of one family; the
// first is the main one. `wanted` is a comma-separated list:
//   "eth0", "eth"     interfaces whose name begins so
//   "10.1.", "fd00:"  addresses that begin so
//   "10.1.0.0/16"     addresses in the network
//   "auto"            if nothing before it has matched: that of `routed` if there is one; else the
//                     first that is neither loopback nor a container bridge; else loopback; and
//                     with it those of its kind: of the same driver, and no less than half as quick
//   "^docker"         never an interface whose name, or address, begins so
// A list of exclusions only means "auto" as well. Interfaces that are down and link-local addresses
// never match. Throws Error(kConfiguration), with the interfaces there are, if nothing matches.
std::vector<InterfaceAddress> chooseAddresses(std::string_view wanted,
                                              const std::vector<InterfaceAddress>& present,
                                              const std::optional<SocketAddress>& routed);

// chooseAddresses() on this host. A route over loopback counts only if `rendezvous` says loopback
// itself: many distributions map the host's own name to 127.0.1.1, which other hosts cannot reach.
std::vector<InterfaceAddress> chooseLocalAddresses(std::string_view wanted,
                                                   const std::string& rendezvous);

}  // namespace smd
