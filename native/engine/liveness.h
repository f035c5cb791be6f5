// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which peers are still there. On this host the kernel tells at once, through a process descriptor
// (pidfd): a dead rank's sockets may live on in its forked children, its process does not. Remote
// peers are reported by their link.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/file_descriptor.h"
#include "executor/event_loop.h"

namespace smd::engine {

class Liveness {
 public:
  explicit Liveness(int worldSize);
  ~Liveness();

  // Watches the process `pid` of `peer`. `wake` is called (on the loop thread) when it is gone.
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

  std::shared_ptr<executor::EventLoop> loop_;
  std::vector<FileDescriptor> processes_;
  std::atomic<int> numLost_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> lost_;  // by rank; empty: not lost
};

}  // namespace smd::engine
