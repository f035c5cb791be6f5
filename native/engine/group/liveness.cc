// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/liveness.h"

#include <utility>

#include "engine/group/process_watch.h"

namespace smd::engine {

Liveness::Liveness(int worldSize) : lost_(static_cast<std::size_t>(worldSize)) {}

Liveness::~Liveness() { stop(); }

void Liveness::watchProcess(int peer, std::int64_t pid, std::function<void()> wake) {
  watches_.reserve(watches_.size() + 1);  // what cannot be noted could not be ended
  const std::uint64_t watch =
      ProcessWatch::process().watch(pid, [this, peer, wake = std::move(wake)] {
        markLost(peer, "died");
        wake();
      });
  if (watch == 0) {
    markLost(peer, "died");
  } else {
    watches_.push_back(watch);
  }
}

void Liveness::reportLost(int peer, const std::string& how) { markLost(peer, how); }

void Liveness::markLost(int peer, const std::string& how) {
  std::lock_guard lock(mutex_);
  std::string& entry = lost_[static_cast<std::size_t>(peer)];
  if (!entry.empty()) return;
  entry = how;
  numLost_.fetch_add(1, std::memory_order_release);
}

bool Liveness::isLost(int peer) const {
  std::lock_guard lock(mutex_);
  return !lost_[static_cast<std::size_t>(peer)].empty();
}

std::string Liveness::howLost(int peer) const {
  std::lock_guard lock(mutex_);
  return lost_[static_cast<std::size_t>(peer)];
}

void Liveness::stop() {
  if (isForkedChild(generation_)) return;  // they are the parent's
  for (const std::uint64_t watch : watches_) ProcessWatch::process().unwatch(watch);
  watches_.clear();
}

}  // namespace smd::engine
