// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/peers.h"

#include <algorithm>

namespace smd::engine {

bool Peers::sharesMemoryWith(int peer) const {
  return std::ranges::binary_search(membership.localRanks, peer);
}

std::vector<std::pair<int, std::string>> Peers::gone() const {
  std::vector<std::pair<int, std::string>> gone;
  if (liveness->anyLost()) {
    for (int peer = 0; peer < size; ++peer) {
      std::string how = peer == rank ? "" : liveness->howLost(peer);
      if (!how.empty()) gone.emplace_back(peer, std::move(how));
    }
  }
  for (int position = 0; memory && position < memory->size(); ++position) {
    const transport::RankCells& cells = memory->cells(position);
    if (cells.presence.load(std::memory_order_acquire) != transport::Presence::kLeft) continue;
    const int peer = membership.localRanks[static_cast<std::size_t>(position)];
    auto known = std::ranges::find(gone, peer, &std::pair<int, std::string>::first);
    if (known == gone.end()) known = gone.emplace(gone.end(), peer, "");
    known->second = "left the group (it closed it, or its program ended)";
  }
  return gone;
}

Error Peers::withPrefix(const std::string& operation, const Error& error) const {
  return Error(error.kind(),
               operation + " on rank " + std::to_string(rank) + " of " + std::to_string(size) +
                   " (" + (membership.jobRanks.empty() ? "" : membership.nameOf(rank) + ", ") +
                   "host " + membership.identities[static_cast<std::size_t>(rank)].host +
                   ", group '" + name + "'): " + error.what());
}

}  // namespace smd::engine
