// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/drive.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace smd::engine {
namespace {

InterruptCheck interruptCheck;

// A signal handler that waits in another group may itself be interrupted there.
struct Handling {
  const transport::Mailbox* within;
  const Handling* outer;
};
thread_local const Handling* handling = nullptr;

constexpr nanoseconds kLongestSleep = milliseconds(100);
// Polls between two looks at the clock and at the health of the group.
constexpr int kPollsPerCheck = 64;
// A thread that yields gets the processor back after a slice of another thread. If that one
// computes, it is better to sleep: a thread that is woken gets the processor at once.
constexpr nanoseconds kLongestYielding = milliseconds(2);

// While this thread polls the wires, the background thread stays away from them. If the wait ends
// well, the next wait is likely to follow soon.
class Wires {
 public:
  explicit Wires(transport::Mailbox& mailbox) : mailbox_(mailbox) {}
  ~Wires() { leave(); }
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  void come() {
    if (!std::exchange(isAtThem_, true)) mailbox_.beginWait();
  }
  void leave() {
    if (std::exchange(isAtThem_, false)) mailbox_.endWait(isDone);
  }
  bool isDone = false;

 private:
  transport::Mailbox& mailbox_;
  bool isAtThem_ = false;
};

}  // namespace

void setInterruptCheck(InterruptCheck check) { interruptCheck = std::move(check); }

bool wasInterrupted(const transport::Mailbox& mailbox) {
  if (!interruptCheck) return false;
  const Handling here{&mailbox, handling};
  handling = &here;
  const bool isInterrupted = interruptCheck();  // does not throw
  handling = here.outer;
  return isInterrupted;
}

bool isHandlingSignals(const transport::Mailbox* mailbox) {
  const Handling* each = handling;
  while (each != nullptr && each->within != mailbox) each = each->outer;
  return each != nullptr;
}

Drive drive(Driven& driven, const Until& until, const SpinBudget& budget, const Waiting& waiting) {
  Wires wires(waiting.mailbox);
  const int limit = budget.spins + budget.yields;
  int polls = 0;
  int untilCheck = kPollsPerCheck;
  TimePoint yieldsEnd{}, interruptsSeen{};
  FutexResult woken = FutexResult::kWokenOrChanged;
  for (;;) {
    wires.isDone = driven.step();
    if (wires.isDone) return Drive::kDone;
    if (driven.awaitsOtherHosts()) wires.come();
    if (until.isBrief && polls >= budget.spins) return Drive::kNotYet;
    if (--untilCheck == 0) {
      untilCheck = kPollsPerCheck;
      if (driven.stepOrDiagnose()) return Drive::kDone;
    }
    if (polls < budget.spins) {
      cpuRelax();
      ++polls;
      // Ranks that could have a processor each are sometimes put on the same one. A thread that
      // spins there keeps the peer from doing what it waits for. A thread that sleeps leaves the
      // processor to the peer, and is woken on an idle one if there is one.
      if (polls % kPollsPerCheck == 0 && driven.isInTheWay()) polls = limit;
      continue;
    }
    TimePoint now = Clock::now();
    if (polls < limit) {
      if (polls == budget.spins) yieldsEnd = now + kLongestYielding;
      sched_yield();
      polls = now < yieldsEnd ? polls + 1 : limit;
      continue;
    }
    // Only now and then: the check may have to wait for another thread, and the peers wait with it.
    if (interruptsSeen == TimePoint{}) interruptsSeen = now;
    if (woken == FutexResult::kInterrupted || now - interruptsSeen >= kLongestSleep) {
      interruptsSeen = now;
      wires.leave();  // it may take long
      if (wasInterrupted(waiting.mailbox)) return Drive::kInterrupted;
      now = Clock::now();
    }
    // Announce, look once more, sleep: see Doorbell.
    const std::uint32_t seen = waiting.bell.announce();
    const bool isDone = driven.stepOrDiagnose();
    const bool isTooLate = now >= until.end;
    if (!isDone && !isTooLate) {
      const nanoseconds left = std::min(driven.deadline(), until.end) - now;
      const nanoseconds sleep = std::clamp<nanoseconds>(left, nanoseconds(0), kLongestSleep);
      auto waited = transport::Transport::Waited::kBusy;
      if (driven.awaitsOtherHosts()) {
        wires.come();
        waited = waiting.mailbox.wait(sleep, waiting.bell.rings, seen);
      }
      if (waited == transport::Transport::Waited::kBusy) {
        wires.leave();
        woken = futexWait(waiting.bell.rings, seen, sleep);
      } else {
        woken = waited == transport::Transport::Waited::kSignal ? FutexResult::kInterrupted
                                                                : FutexResult::kWokenOrChanged;
      }
    }
    waiting.bell.leave();
    if (isDone) return Drive::kDone;
    if (isTooLate) return Drive::kNotYet;
    polls = budget.spins;
  }
}

}  // namespace smd::engine
