// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// This rank among the ranks of its group, and the ways to them. The communicator fills it while the
// group is made; then nothing in it changes any more, and any thread may read it. The parts of a
// communicator (group_failure.h, diagnosis.h, group_messages.h) see this, and not the communicator.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "engine/group/bootstrap.h"
#include "engine/group/liveness.h"
#include "transport/mailbox.h"
#include "transport/peer_memory.h"
#include "transport/shm/arena.h"
#include "transport/tcp/factory.h"
#include "transport/transport.h"

namespace smd::engine {

struct Peers {
  Peers(int ownRank, int worldSize, std::string groupName)
      : rank(ownRank), size(worldSize), name(std::move(groupName)) {}

  const int rank;
  const int size;
  const std::string name;  // of the group
  Membership membership;
  std::optional<transport::PeerMemory> memory;   // set if any peer is on this host
  std::shared_ptr<transport::shm::Arena> arena;  // this rank's; null if there is none
  bool areAllLocal = true;                       // all ranks are on this host

  std::vector<std::unique_ptr<transport::Transport>> transports;
  const transport::tcp::TcpTransport* tcp = nullptr;  // one of those; null if nobody is remote
  std::unique_ptr<transport::Mailbox> mailbox;        // null: one rank, there is nobody to send to
  std::unique_ptr<Liveness> liveness;                 // null likewise

  bool sharesMemoryWith(int peer) const;

  // Ranks that have gone, and how each has: first those that are lost, then those of this host that
  // left in order.
  std::vector<std::pair<int, std::string>> gone() const;

  // `error` behind the words that begin every error of an operation: which one, on which rank of
  // which group.
  Error withPrefix(const std::string& operation, const Error& error) const;
};

}  // namespace smd::engine
