// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/progress.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <thread>

#include "common/clock.h"
#include "common/cpu.h"
#include "common/per_process.h"
#include "common/signals.h"

namespace smd::engine {
namespace {

// Blocked operations look at deadlines and at the health of their peers at least this often.
constexpr nanoseconds kLongestSleep = milliseconds(100);
// Until memory is asked for again.
constexpr nanoseconds kNoMemoryPause = milliseconds(1);
// The least that Linux accepts.
constexpr std::uint64_t kSliceNs = 100'000;

// On a processor that also computes, a woken thread waits for the rest of the computing one's
// slice (3 ms), and a large operation passes from rank to rank hundreds of times. A thread that
// asks for short slices is let in at once; its share of the processor stays the same. Known to
// Linux 6.12; earlier kernels take no notice, and a refusal changes nothing else.
void askForShortSlices() {
  if (sched_getscheduler(0) != SCHED_OTHER) return;
  struct {  // sched_attr: the C library has neither it nor the call
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};
  attributes.size = sizeof attributes;
  attributes.policy = SCHED_OTHER;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime = kSliceNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace

ProgressThread& ProgressThread::process() {
  static PerProcess<ProgressThread> instance;
  return instance.get();
}

void ProgressThread::add(std::shared_ptr<Advancing> advancing) {
  std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    const NoSignals meanwhile;
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    pthread_setname_np(thread_.native_handle(), "smd-progress");
  }
  added_.push_back(std::move(advancing));
  fullFence();
  bell_.ringIfAsleep();
}

void ProgressThread::shutdown() {
  std::vector<std::shared_ptr<Advancing>> added;  // destroyed without the lock: that may close them
  std::jthread thread;                            // joined first; add() may start another meanwhile
  std::lock_guard lock(mutex_);
  added.swap(added_);
  thread = std::move(thread_);
  thread.request_stop();
  bell_.ring();
}

bool ProgressThread::isStopped() {
  std::lock_guard lock(mutex_);
  return !thread_.joinable();
}

bool ProgressThread::takeAdded(std::vector<std::shared_ptr<Advancing>>& active,
                               const std::stop_token& stop) {
  std::lock_guard lock(mutex_);
  if (stop.stop_requested()) return false;
  active.reserve(active.size() + added_.size());  // so that none gets lost on its way
  for (auto& advancing : added_) {
    if (std::find(active.begin(), active.end(), advancing) == active.end()) {
      active.push_back(std::move(advancing));
    }
  }
  added_.clear();
  return true;
}

void ProgressThread::run(const std::stop_token& stop) {
  askForShortSlices();
  std::vector<std::shared_ptr<Advancing>> active;
  int polls = 0;
  bool goesOn = true;
  while (goesOn) {
    try {
      goesOn = runRound(active, polls, stop);
    } catch (const std::bad_alloc&) {  // to take in what was added, or to sleep: nothing is lost
      std::this_thread::sleep_for(kNoMemoryPause);
    }
  }
}

// False: it is to stop.
bool ProgressThread::runRound(std::vector<std::shared_ptr<Advancing>>& active, int& polls,
                              const std::stop_token& stop) {
  if (!takeAdded(active, stop)) return false;
  bool moved = false;
  for (std::size_t i = 0; i < active.size();) {
    const Advancing::Result result = active[i]->advance();
    moved = moved || result == Advancing::Result::kMoved;
    if (result == Advancing::Result::kIdle) {
      active.erase(active.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  if (moved) {
    polls = 0;
    return true;
  }
  const SpinBudget budget = progressSpinBudget();
  if (!active.empty() && polls < budget.spins + budget.yields) {
    if (polls++ < budget.spins) {
      cpuRelax();
    } else {
      sched_yield();
    }
    return true;
  }
  polls = 0;
  sleep(active, stop);
  return true;
}

void ProgressThread::sleep(const std::vector<std::shared_ptr<Advancing>>& active,
                           const std::stop_token& stop) {
  // Announce, look once more, sleep: see Doorbell.
  std::vector<Doorbell*> bells{&bell_};
  for (const auto& advancing : active) bells.push_back(&advancing->bell());
  std::vector<FutexWaiter> waiters;
  waiters.reserve(bells.size());  // what is announced must be taken back
  for (Doorbell* bell : bells) {
    waiters.push_back({&bell->rings, bell->announce()});
  }
  bool mayGoOn = false;
  {
    std::lock_guard lock(mutex_);
    mayGoOn = !added_.empty() || stop.stop_requested();
  }
  for (const auto& advancing : active) {
    if (mayGoOn) break;
    mayGoOn = advancing->advance() != Advancing::Result::kBlocked;
  }
  if (!mayGoOn)
    futexWaitAny(waiters, active.empty() ? nanoseconds(std::chrono::hours(1)) : kLongestSleep);
  for (Doorbell* bell : bells) bell->leave();
}

}  // namespace smd::engine
