// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <ctime>

namespace smd {
namespace {

// linux/futex.h of older distributions lacks these; numbers are the kernel's stable interface.
constexpr long kSysFutexWaitv = 449;
constexpr std::uint32_t kFutex32 = 2;
struct WaitvEntry {
  std::uint64_t value;
  std::uint64_t address;
  std::uint32_t flags;
  std::uint32_t reserved;
};
constexpr std::size_t kMaxWaiters = 128;

timespec toTimespec(nanoseconds duration) {
  const auto count = std::max<nanoseconds::rep>(duration.count(), 0);
  return {static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
}

FutexResult fromErrno(int code) {
  if (code == ETIMEDOUT) return FutexResult::kTimedOut;
  if (code == EINTR) return FutexResult::kInterrupted;
  return FutexResult::kWokenOrChanged;
}

}  // namespace

FutexResult futexWait(FutexWord& word, std::uint32_t expected, nanoseconds timeout) {
  const timespec relative = toTimespec(timeout);
  const long result = syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT,
                              expected, &relative, nullptr, 0);
  return result == 0 ? FutexResult::kWokenOrChanged : fromErrno(errno);
}

FutexResult futexWaitAny(std::span<const FutexWaiter> waiters, nanoseconds timeout) {
  if (waiters.size() == 1) return futexWait(*waiters[0].word, waiters[0].expected, timeout);
  static std::atomic<bool> hasWaitv{true};
  if (hasWaitv.load(std::memory_order_relaxed) && waiters.size() <= kMaxWaiters) {
    std::array<WaitvEntry, kMaxWaiters> entries;
    for (std::size_t i = 0; i < waiters.size(); ++i) {
      entries[i] = {waiters[i].expected, reinterpret_cast<std::uint64_t>(waiters[i].word), kFutex32,
                    0};
    }
    timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    const timespec relative = toTimespec(timeout);
    deadline.tv_sec += relative.tv_sec;
    deadline.tv_nsec += relative.tv_nsec;
    if (deadline.tv_nsec >= 1'000'000'000) {
      deadline.tv_nsec -= 1'000'000'000;
      deadline.tv_sec += 1;
    }
    const long result =
        syscall(kSysFutexWaitv, entries.data(), waiters.size(), 0, &deadline, CLOCK_MONOTONIC);
    if (result >= 0) return FutexResult::kWokenOrChanged;
    if (errno != ENOSYS && errno != EPERM) return fromErrno(errno);
    hasWaitv.store(false, std::memory_order_relaxed);
  }
  constexpr nanoseconds kSlice{200'000};
  // The last one: the progress thread names its own bell first, and is mostly woken by a peer.
  return futexWait(*waiters.back().word, waiters.back().expected, std::min(timeout, kSlice));
}

void futexWakeAll(FutexWord& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
}

}  // namespace smd
