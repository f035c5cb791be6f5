// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which peers are still there. On this host their processes are watched (process_watch.h): the
// sockets of a dead rank may live on in its forked children, but its process does not. The loss of
// a peer on another host is reported by its link.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/fork.h"

namespace smd::engine {

// Whether a rank has left in good order. `how` is the text of its link (transport/tcp/link_end.h)
// or of Peers::gone(). A link that fails for want of memory says "no memory left".
inline bool hasLeftInOrder(std::string_view how) {
  return how.starts_with("left the group") || how.find(" left: it closed") != how.npos;
}

class Liveness {
 public:
  explicit Liveness(int worldSize);
  ~Liveness();

  // Watches the process `pid` of `peer`. `wake` is called (on a background thread) when it is
  // gone.
  void watchProcess(int peer, std::int64_t pid, std::function<void()> wake);
  // A link reported that `peer` cannot be reached any more.
  void reportLost(int peer, const std::string& how);

  bool anyLost() const { return numLost_.load(std::memory_order_acquire) != 0; }
  bool isLost(int peer) const;
  // "died", "closed the connection", ...
  std::string howLost(int peer) const;

  // Stops watching. No callback runs afterwards.
  void stop();

 private:
  void markLost(int peer, const std::string& how);

  const std::uint64_t generation_ = forkGeneration();
  std::vector<std::uint64_t> watches_;
  std::atomic<int> numLost_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> lost_;  // by rank; empty: not lost
};

}  // namespace smd::engine
