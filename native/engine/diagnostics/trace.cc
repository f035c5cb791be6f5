// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/diagnostics/trace.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <numeric>

#include "common/per_process.h"

namespace smd::engine {
namespace trace {
namespace {

struct Recorder {
  std::mutex mutex;
  bool isOn = false;
  std::size_t capacity = 0;
  Recording recorded;
};

// In a forked child it is off.
Recorder& recorder() {
  static PerProcess<Recorder> instance;
  return instance.get();
}

}  // namespace

std::atomic<bool> recording{false};

void start(std::size_t capacity) {
  Recorder& current = recorder();
  const std::lock_guard lock(current.mutex);
  current.isOn = true;
  current.capacity = capacity;
  current.recorded = {};
  recording.store(true, std::memory_order_relaxed);
}

Recording stop() {
  Recorder& current = recorder();
  const std::lock_guard lock(current.mutex);
  current.isOn = false;
  recording.store(false, std::memory_order_relaxed);
  return std::exchange(current.recorded, {});
}

void record(Event event) {
  Recorder& current = recorder();
  const std::lock_guard lock(current.mutex);
  if (!current.isOn) return;
  try {
    if (current.recorded.events.size() < current.capacity) {
      current.recorded.events.push_back(std::move(event));
      return;
    }
  } catch (const std::bad_alloc&) {  // the operation itself went well
  }
  ++current.recorded.numDropped;
}

}  // namespace trace

namespace {

std::uint64_t bytesOf(const algorithms::Request& request) {
  const auto sum = [](const std::vector<std::uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  };
  return std::max({request.count, sum(request.inputCounts), sum(request.outputCounts)}) *
         elementSize(request.dtype);
}

}  // namespace

OperationTrace::OperationTrace(const std::string& group, TimePoint queued) {
  event_.group = group;
  event_.queuedNs = toNs(queued);
}

void OperationTrace::start(std::optional<Algorithm> algorithm) {
  event_.startedNs = toNs(Clock::now());
  algorithm_ = algorithm;
}

trace::Event OperationTrace::finish(const algorithms::Context& context,
                                    const std::optional<Error>& error) {
  event_.signature = context.signature;
  event_.bytes = bytesOf(context.request);
  if (context.signature.sequence == 0) {
    event_.algorithm = "message";
  } else if (algorithm_) {
    const bool isStagedAfterAll = *algorithm_ == Algorithm::kShared && !context.isInPlace;
    event_.algorithm = name(isStagedAfterAll ? Algorithm::kStaged : *algorithm_).data();
  }
  event_.arrivedNs = arrivedNs;
  event_.finishedNs = toNs(Clock::now());
  event_.isDrivenByProgress = isDrivenByProgress;
  if (error) event_.error = error->what();
  return std::move(event_);
}

}  // namespace smd::engine
