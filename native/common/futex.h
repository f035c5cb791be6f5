// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Sleeping on a word of memory that other processes may share.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "common/clock.h"

namespace smd {

using FutexWord = std::atomic<std::uint32_t>;

enum class FutexResult { kWokenOrChanged, kTimedOut, kInterrupted };

// Sleeps while `word` holds `expected`, for at most `timeout`.
FutexResult futexWait(FutexWord& word, std::uint32_t expected, nanoseconds timeout);

// Sleeps while every word holds its expected value. Kernels before Linux 5.16 cannot wait for
// several words: there the last one is waited for, in slices of at most 200 us.
struct FutexWaiter {
  FutexWord* word;
  std::uint32_t expected;
};
FutexResult futexWaitAny(std::span<const FutexWaiter> waiters, nanoseconds timeout);

void futexWakeAll(FutexWord& word);

// Orders an earlier store before a later load, also against other processes.
inline void fullFence() { __sync_synchronize(); }

// Tells a processor that this is a spin loop.
inline void cpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Where one thread sleeps and others wake it. Lives in shared memory; one cache line.
// The sleeper announces itself, looks at its condition once more, then sleeps; the waker makes the
// condition true, fences, then looks for sleepers: whatever the order, no wake-up is lost.
struct alignas(64) Doorbell {
  FutexWord rings{0};
  std::atomic<std::uint32_t> sleepers{0};

  // Says that a thread is about to sleep, until leave(). Returns what to wait on `rings` with,
  // after one more look at the condition.
  std::uint32_t announce() {
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = rings.load(std::memory_order_seq_cst);
    fullFence();
    return seen;
  }
  void leave() { sleepers.fetch_sub(1, std::memory_order_relaxed); }

  // Call after the store that makes a peer's condition true, and after fullFence().
  void ringIfAsleep() {
    if (sleepers.load(std::memory_order_relaxed) != 0) ring();
  }
  void ring() {
    rings.fetch_add(1, std::memory_order_seq_cst);
    futexWakeAll(rings);
  }
};

}  // namespace smd
