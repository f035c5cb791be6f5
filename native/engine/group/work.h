// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// An operation under way: what callers hold and wait for, and what a driver advances.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "algorithms/request.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/futex.h"
#include "common/task.h"
#include "engine/diagnostics/stall.h"
#include "engine/diagnostics/trace.h"

namespace smd::engine {

class Work {
 public:
  bool isCompleted() const { return done_.load(std::memory_order_acquire) != 0; }
  // After completion: the error, if there was one. `source` is the sender of a completed receive.
  const std::optional<Error>& error() const { return error_; }
  int source() const { return source_; }
  const Signature& signature() const { return context.signature; }
  // So small that waking a thread for it takes longer than the operation.
  bool isSmall = false;

  // Sleeps until completion or the deadline; returns isCompleted(). Looks at `interrupted` now and
  // then and returns early if it says so.
  bool waitUntil(TimePoint end, const std::function<bool()>& interrupted);

  // Starts the clock of its time limit, unless it runs already. For a collective that is the call;
  // for a message it is the first wait, since a message may be started long before its peer is
  // ready.
  void startClock(TimePoint from);
  bool isClockRunning() const { return deadline() != TimePoint::max(); }
  TimePoint clockStart() const { return deadline() - limit; }
  TimePoint deadline() const { return deadline_.load(std::memory_order_relaxed); }

  // Runs `callback` once the work has completed: on the completing thread, or at once.
  void onCompletion(std::function<void()> callback);
  // Whether this thread runs the callbacks of a work that it has completed. Meanwhile it drives
  // nothing else, so a callback that waits for another operation may wait for ever.
  static bool isCallingBack();

  // --- for the communicator ---
  void complete(std::optional<Error> error);
  void setSource(int source) { source_ = source; }

  algorithms::Context context;
  std::vector<std::byte> scratch;       // a pre-multiplied copy of the input
  std::unique_ptr<std::byte[]> packed;  // of a coalesced request
  Task body;
  std::atomic<bool> isStarted{
      false};  // the driver has made the body: the work is at the head of the queue
  std::unique_ptr<OperationTrace> trace;  // null: not traced
  TimePoint started;
  nanoseconds limit{};       // how long it may take
  std::uint64_t flight = 0;  // its entry in the flight record; 0: none yet
  bool wasQueued = false;    // behind another collective
  StallWatch stall;
  std::uint64_t noteElsewhere = 0;  // the note that tells other groups of this wait; 0: none
  // The error of a comparison with one rank. Before it becomes the error of the group, the other
  // ranks are asked, until `suspectedUntil` (disagreements.h). The body stays as it is meanwhile.
  std::optional<Error> suspicion;
  TimePoint suspectedUntil, nextQuestion;

 private:
  std::atomic<TimePoint> deadline_{TimePoint::max()};
  FutexWord done_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  std::optional<Error> error_;
  int source_ = -1;
  std::mutex mutex_;
  std::vector<std::function<void()>> callbacks_;
  std::atomic<bool> hasCallbacks_{false};  // true from the first callback on; read without the lock
};

}  // namespace smd::engine
