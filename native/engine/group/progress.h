// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The one background thread of the process. It advances operations that no other thread drives.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "common/futex.h"

namespace smd::engine {

// Something with operations to advance: a communicator.
class Advancing {
 public:
  virtual ~Advancing() = default;
  enum class Result { kMoved, kBlocked, kIdle };
  // Advances what it can without blocking. After kIdle the thread forgets it until it is added
  // again.
  virtual Result advance() = 0;
  // Rung when advance() may get further.
  virtual Doorbell& bell() = 0;
};

class ProgressThread {
 public:
  // Starts on first use. shutdown() stops it, and a later use starts it again. A forked child has a
  // thread of its own.
  static ProgressThread& process();

  // Throws if the thread cannot be started (a limit of the system) or if there is no memory. Then
  // nothing has been added.
  void add(std::shared_ptr<Advancing> advancing);
  // Ends the thread. What was added stays unfinished: close communicators first.
  void shutdown();
  bool isStopped();

 private:
  void run(const std::stop_token& stop);
  bool runRound(std::vector<std::shared_ptr<Advancing>>& active, int& polls,
                const std::stop_token& stop);
  void sleep(const std::vector<std::shared_ptr<Advancing>>& active, const std::stop_token& stop);
  bool takeAdded(std::vector<std::shared_ptr<Advancing>>& active, const std::stop_token& stop);

  std::mutex mutex_;
  std::vector<std::shared_ptr<Advancing>> added_;
  std::jthread thread_;
  Doorbell bell_;
};

}  // namespace smd::engine
