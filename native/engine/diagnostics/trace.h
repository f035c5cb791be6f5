// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What the operations of this process did and when, for profilers: one event per completed
// operation of any communicator, kept in memory until fetched. While off, an operation pays one
// relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "algorithms/request.h"
#include "common/clock.h"
#include "common/error.h"
#include "engine/choose/select.h"

namespace smd::engine {

namespace trace {

// Times are nanoseconds of CLOCK_MONOTONIC; 0: did not happen, or not known.
struct Event {
  std::string group;
  Signature signature;              // its sequence is 0 for send and recv
  std::uint64_t bytes = 0;          // that this rank put in or took out, whichever is more
  const char* algorithm = "";       // a name of select.h as it came out, or "message" (send, recv)
  std::int64_t queuedNs = 0;        // the call
  std::int64_t startedNs = 0;       // at the head of its queue
  std::int64_t arrivedNs = 0;       // all ranks had arrived; known where memory is shared
  std::int64_t finishedNs = 0;      // just before those who wait are told
  bool isDrivenByProgress = false;  // it ended on the progress thread
  std::string error;                // empty: it went well
};

struct Recording {
  std::deque<Event> events;  // in the order of completion
  std::uint64_t numDropped = 0;
};

// Discards what was recorded, and records up to `capacity` events from now on. Later events are
// only counted: so the recording has no gaps, and begins where the user said.
void start(std::size_t capacity);
// Returns what was recorded since start(); nothing if off. Later events are ignored.
Recording stop();
void record(Event event);

extern std::atomic<bool> recording;
inline bool isOn() { return recording.load(std::memory_order_relaxed); }

}  // namespace trace

// The part of an event that is gathered while an operation runs; touched by its driver only.
class OperationTrace {
 public:
  OperationTrace(const std::string& group, TimePoint queued);
  void start(std::optional<Algorithm> algorithm = std::nullopt);
  trace::Event finish(const algorithms::Context& context, const std::optional<Error>& error);

  std::int64_t arrivedNs = 0;
  bool isDrivenByProgress = false;

 private:
  trace::Event event_;
  std::optional<Algorithm> algorithm_;  // of a collective
};

}  // namespace smd::engine
