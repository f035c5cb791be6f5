// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What each rank tells the others about itself when a communicator is made, and who may share a
// host with whom.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace smd::hosts {

struct Identity {
  std::string release;  // engine version; all ranks must agree
  std::string host;     // for people: host name
  std::string machine;  // boot id and namespaces: equal on all processes that can share memory
  std::int64_t pid = 0;
  std::string attachSocket;     // abstract Unix socket at which this rank hands out a region
  std::string secret;           // 16 random bytes; rank 0's are the communicator's
  std::vector<int> processors;  // it may run on
  int cpuQuota = 0;             // in processors; 0: none
  std::string link;             // what it knows of the network between hosts; may be empty
  std::string endpoint;         // TCP "address:port", empty if TCP is switched off
};

// This process, without the sockets and the secret.
Identity describeThisProcess();

// A flat, length-prefixed form. parse() throws Error(kConfiguration) on anything malformed.
std::string serialize(const Identity& identity);
Identity parse(std::string_view bytes);

// For each rank, the lowest rank on the same machine ("leader"): only a hint, to be proven by
// passing a descriptor.
std::vector<int> leadersByMachine(const std::vector<Identity>& identities);

// How many processors `ranks` (of one machine) have together.
int coresOf(const std::vector<Identity>& identities, const std::vector<int>& ranks);

}  // namespace smd::hosts
