// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/liveness.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace smd::engine {
namespace {

#ifndef SYS_pidfd_open
constexpr long SYS_pidfd_open = 434;  // the same number on every architecture
#endif

}  // namespace

Liveness::Liveness(int worldSize) : lost_(static_cast<std::size_t>(worldSize)) {}

Liveness::~Liveness() { stop(); }

void Liveness::watchProcess(int peer, std::int64_t pid, std::function<void()> wake) {
  FileDescriptor descriptor = FileDescriptor::fromCall(
      [pid] { return static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)); });
  if (!descriptor.isOpen()) {
    if (errno == ESRCH) markLost(peer, "died");
    return;  // kernels before 5.3: deaths are noticed by deadlines only
  }
  if (loop_ == nullptr) loop_ = executor::EventLoop::process();
  const int fd = descriptor.get();
  processes_.push_back(std::move(descriptor));
  loop_->watch(fd, EPOLLIN, [this, peer, fd, wake = std::move(wake)](std::uint32_t) {
    markLost(peer, "died");
    wake();
    loop_->unwatch(fd);  // last: it lets go of this very function
  });
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
  for (const FileDescriptor& process : processes_) {
    if (process.isOwnedHere()) loop_->unwatch(process.get());
  }
  processes_.clear();
  loop_.reset();
}

}  // namespace smd::engine
