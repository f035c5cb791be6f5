// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/work.h"

#include <utility>

namespace smd::engine {
namespace {

thread_local bool callsBack = false;

// Until the end of a scope, also when something throws.
class CallingBack {
 public:
  CallingBack() = default;
  ~CallingBack() { callsBack = before_; }
  CallingBack(const CallingBack&) = delete;
  CallingBack& operator=(const CallingBack&) = delete;

 private:
  const bool before_ = std::exchange(callsBack, true);
};

}  // namespace

bool Work::isCallingBack() { return callsBack; }

bool Work::waitUntil(TimePoint end, const std::function<bool()>& interrupted) {
  constexpr nanoseconds kSlice = milliseconds(100);  // how long Ctrl-C may go unnoticed
  if (!isCompleted()) startClock(Clock::now());
  while (!isCompleted()) {
    const TimePoint now = Clock::now();
    if (now >= end) return false;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (done_.load(std::memory_order_seq_cst) == 0) {
      futexWait(done_, 0, std::min<nanoseconds>(kSlice, end - now));
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    if (!isCompleted() && interrupted && interrupted()) return false;
  }
  return true;
}

void Work::startClock(TimePoint from) {
  TimePoint none = TimePoint::max();
  if (deadline() == none) deadline_.compare_exchange_strong(none, from + limit);
}

void Work::onCompletion(std::function<void()> callback) {
  if (isCompleted()) return callback();
  std::vector<std::function<void()>> mine;
  {
    std::lock_guard lock(mutex_);
    callbacks_.push_back(std::move(callback));
    hasCallbacks_.store(true, std::memory_order_seq_cst);
    // Either complete() sees it, or this thread that it is complete; both may.
    if (done_.load(std::memory_order_seq_cst) == 0) return;
    mine.swap(callbacks_);
  }
  for (auto& each : mine) each();
}

void Work::complete(std::optional<Error> error) {
  body.reset();
  error_ = std::move(error);
  done_.store(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futexWakeAll(done_);
  if (!hasCallbacks_.load(std::memory_order_seq_cst)) return;  // what comes now sees done_
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard lock(mutex_);
    callbacks.swap(callbacks_);
  }
  const CallingBack here;
  for (auto& callback : callbacks) callback();
}

}  // namespace smd::engine
