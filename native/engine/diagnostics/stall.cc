// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/diagnostics/stall.h"

#include <algorithm>

namespace smd::engine {
namespace {

constexpr nanoseconds kFirstLook = milliseconds(1000);
constexpr nanoseconds kLookInterval = milliseconds(250);
constexpr nanoseconds kAskAhead = milliseconds(500);

}  // namespace

void StallWatch::begin(TimePoint now, TimePoint deadline, nanoseconds reportAfter) {
  begun_ = now;
  const nanoseconds half = std::max<nanoseconds>((deadline - now) / 2, nanoseconds(0));
  const nanoseconds report = reportAfter.count() > 0 ? reportAfter : nanoseconds::max();
  nextLook_ = now + std::min({kFirstLook, half, report / 2});
  nextAsk_ = nextLook_;
  nextReport_ = reportAfter.count() > 0 ? now + reportAfter : TimePoint::max();
  lastAsk_ = std::max(nextLook_, deadline - kAskAhead);
}

StallWatch::Todo StallWatch::look(TimePoint now) {
  Todo todo;
  todo.report = now >= nextReport_;
  todo.ask = now >= nextAsk_;
  if (todo.report) {
    nextReport_ = begun_ + 2 * (nextReport_ - begun_);
    if (nextReport_ <= now) nextReport_ = now + (now - begun_);  // nobody looked for long
  }
  if (todo.ask || todo.report) {
    const auto ifLater = [now](TimePoint time) { return time > now ? time : TimePoint::max(); };
    const TimePoint forReport =
        nextReport_ == TimePoint::max() ? TimePoint::max() : nextReport_ - kAskAhead;
    nextAsk_ = std::min(ifLater(forReport), ifLater(lastAsk_));
  }
  nextLook_ = std::min({now + kLookInterval, nextAsk_, nextReport_});
  return todo;
}

}  // namespace smd::engine
