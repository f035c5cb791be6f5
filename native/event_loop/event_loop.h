// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// One background thread per process that waits for file descriptors and timers (epoll). Sockets,
// process descriptors (pidfd) and heartbeats of all communicators live here. See
// docs/thread_model.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace smd::event_loop {

class EventLoop {
 public:
  // The loop of this process, started on first use and ended with its last user. A forked child
  // starts its own; the parent's is unusable there.
  static std::shared_ptr<EventLoop> process();

  virtual ~EventLoop() = default;

  // What a function that the loop calls throws is logged and otherwise ignored.

  // Calls `callback(events)` on the loop thread whenever epoll reports `events` (EPOLLIN, ...) on
  // `fd`, until unwatch(). Level-triggered. The loop does not own `fd`.
  virtual void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> callback) = 0;
  virtual void modify(int fd, std::uint32_t events) = 0;
  // After it returns the callback is not running and will not run again (waits for a running one,
  // unless called on the loop thread).
  virtual void unwatch(int fd) = 0;

  // Runs `function` on the loop thread, soon / after `delay`.
  virtual void defer(std::function<void()> function) = 0;
  virtual void runAfter(std::chrono::milliseconds delay, std::function<void()> function) = 0;

  virtual bool isLoopThread() const = 0;
};

}  // namespace smd::event_loop
