// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/patience.h"

#include <algorithm>
#include <exception>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/fork.h"
#include "common/signals.h"

namespace smd::tensorflow_ops {
namespace {

// The pause between two looks at what waits. It is not too short, because most operations have
// ended long before their time is over; and not too long, because one that begins meanwhile may
// have less time.
constexpr std::chrono::milliseconds kShortestPause{25};
constexpr std::chrono::milliseconds kLongestPause{250};

struct Entry {
  TimePoint end;
  std::weak_ptr<Waiting> waiting;
};
using Entries = std::list<Entry>;

struct Waitings {
  Entries entries;
  bool hasThread = false;
};

// Never destroyed: operations may run while static destructors do. Guarded by ForkGuard: a forked
// child finds it whole, and nobody in it.
Waitings& waitings() {
  static auto* instance = new Waitings;
  return *instance;
}

// The entries whose time is over, without those that wait no longer. The caller holds the lock.
Entries takeDue(TimePoint now, Entries& gone) {
  Entries due;
  Entries& all = waitings().entries;
  for (auto each = all.begin(); each != all.end();) {
    const auto next = std::next(each);
    if (each->waiting.expired()) {
      gone.splice(gone.end(), all, each);
    } else if (each->end <= now) {
      due.splice(due.end(), all, each);
    }
    each = next;
  }
  return due;
}

// TensorFlow may run all that follows on the thread that calls it back, and wait there.
void askOnThreadOfItsOwn(std::shared_ptr<Waiting> waiting) noexcept {
  if (waiting == nullptr) return;
  try {
    const NoSignals meanwhile;
    std::thread([waiting] {
      if (!waiting->giveUp()) giveUpAfter(kShortestPause, waiting);
    }).detach();
  } catch (const std::exception&) {  // no room for a thread
    if (!waiting->giveUp()) giveUpAfter(kShortestPause, waiting);
  }
}

// Until there is something to do again; nothing: nobody waits, and the thread ends.
std::optional<nanoseconds> look() noexcept {
  Entries gone, due;  // destroyed without the lock
  {
    const ForkGuard lock;
    due = takeDue(Clock::now(), gone);
  }
  for (const Entry& each : due) askOnThreadOfItsOwn(each.waiting.lock());
  gone.splice(gone.end(), due);
  const ForkGuard lock;
  Waitings& all = waitings();
  if (all.entries.empty()) {
    all.hasThread = false;
    return std::nullopt;
  }
  const auto first = std::min_element(all.entries.begin(), all.entries.end(),
                                      [](const Entry& a, const Entry& b) { return a.end < b.end; });
  return std::clamp<nanoseconds>(first->end - Clock::now(), kShortestPause, kLongestPause);
}

void startThread() noexcept {
  try {
    const NoSignals meanwhile;
    std::thread([] {
      while (const auto pause = look()) std::this_thread::sleep_for(*pause);
    }).detach();
  } catch (const std::exception&) {  // no room for a thread: the next one tries again
    const ForkGuard lock;
    waitings().hasThread = false;
  }
}

}  // namespace

void giveUpAfter(std::chrono::milliseconds patience, std::weak_ptr<Waiting> waiting) noexcept {
  Entries one;
  try {
    one.push_back({Clock::now() + patience, std::move(waiting)});
  } catch (const std::exception&) {  // no memory: it waits to its end
    return;
  }
  bool needsThread = false;
  {
    const ForkGuard lock;
    waitings().entries.splice(waitings().entries.end(), one);
    needsThread = !std::exchange(waitings().hasThread, true);
  }
  if (needsThread) startThread();
}

}  // namespace smd::tensorflow_ops
