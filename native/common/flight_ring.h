// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The last operations of one rank, kept where others can read them at any moment: another thread
// (a report), another process of the host (the ring lies in shared memory then, and outlives the
// rank's own threads being stuck, stopped or dead).
//
// Why not engine/diagnostics/trace.h: a trace is the whole history of a process for a profiler, one
// event allocated per completed operation, off by default. This is always on, so it must cost
// nothing that can be felt: begin() and finish() write one cache line that nobody else touches
// meanwhile, take no lock, allocate nothing, and read no clock unless the operation has waited.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/signature.h"

namespace smd {

enum class FlightState : std::uint8_t { kUnderWay = 1, kDone = 2, kFailed = 3 };

// One operation as a reader gets it. Times are nanoseconds of CLOCK_MONOTONIC, whole milliseconds
// after `queuedNs`.
struct FlightEntry {
  std::uint64_t number = 0;  // order of begin() within the ring, from 1
  Signature signature;
  FlightState state = FlightState::kUnderWay;
  std::int32_t waitsFor = -1;    // first rank that it waits for; -1: nobody, or not known yet
  std::uint32_t numMissing = 0;  // how many it waits for
  std::int64_t queuedNs = 0;     // the call
  std::int64_t startedNs = 0;    // at the head of its queue
  std::int64_t finishedNs = 0;   // 0: has not
};

// N words that are written by one thread at a time and read whole by anybody.
template <std::size_t N>
class PublishedWords {
 public:
  using Words = std::array<std::uint64_t, N>;

  void publish(const Words& words) {
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);  // odd: being written
    // Release, so that nobody who sees one of them misses the odd version.
    for (std::size_t i = 0; i < N; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  // Nothing before the first publish(), or if a writer is at it again and again.
  std::optional<Words> read() const {
    for (int attempt = 0; attempt < 4; ++attempt) {
      const std::uint64_t before = version_.load(std::memory_order_acquire);
      if (before == 0) return std::nullopt;
      Words words;
      for (std::size_t i = 0; i < N; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && version_.load(std::memory_order_relaxed) == before) return words;
    }
    return std::nullopt;
  }

 private:
  std::atomic<std::uint64_t> version_{0};
  std::array<std::atomic<std::uint64_t>, N> words_{};
};

class FlightRing {
 public:
  static constexpr std::size_t kEntries = 32;

  // One writer at a time; readers whenever they like.

  // Notes an operation that begins; returns its number. Entries of operations that are under way
  // are kept as long as there are others to overwrite.
  std::uint64_t begin(const Signature& signature, std::int64_t queuedNs, std::int64_t startedNs) {
    std::uint64_t number = last_.load(std::memory_order_relaxed) + 1;
    for (std::size_t tried = 1; tried < kEntries && isUnderWay(number); ++tried) ++number;
    last_.store(number, std::memory_order_relaxed);
    Slot& slot = slotOf(number);
    slot.head.store(0, std::memory_order_relaxed);  // nobody reads it meanwhile
    // Release, so that nobody who sees one of them misses that.
    const auto words = std::bit_cast<std::array<std::uint64_t, 4>>(signature);
    for (std::size_t i = 0; i < words.size(); ++i) {
      slot.signature[i].store(words[i], std::memory_order_release);
    }
    slot.queuedNs.store(queuedNs, std::memory_order_release);
    slot.startedMs.store(milliseconds(startedNs - queuedNs), std::memory_order_release);
    slot.finishedMs.store(0, std::memory_order_release);
    slot.awaited.store(kNobody, std::memory_order_release);
    slot.head.store(headOf(number, FlightState::kUnderWay), std::memory_order_release);
    return number;
  }

  // Both do nothing if the entry has been overwritten since. `finishedNs` 0: as soon as it started.
  void finish(std::uint64_t number, FlightState state, std::int64_t finishedNs) {
    Slot& slot = slotOf(number);
    if (slot.head.load(std::memory_order_relaxed) != headOf(number, FlightState::kUnderWay)) return;
    const std::uint32_t startedMs = slot.startedMs.load(std::memory_order_relaxed);
    const std::uint32_t passedMs =
        finishedNs == 0 ? startedMs
                        : milliseconds(finishedNs - slot.queuedNs.load(std::memory_order_relaxed));
    slot.finishedMs.store(passedMs, std::memory_order_release);
    slot.head.store(headOf(number, state), std::memory_order_release);
  }
  void noteMissing(std::uint64_t number, const std::vector<int>& ranks) {
    Slot& slot = slotOf(number);
    if (slot.head.load(std::memory_order_relaxed) != headOf(number, FlightState::kUnderWay)) return;
    const std::int32_t first = ranks.empty() ? -1 : ranks.front();
    slot.awaited.store(
        static_cast<std::uint64_t>(ranks.size()) << 32 | static_cast<std::uint32_t>(first),
        std::memory_order_release);
  }

  // Oldest first; without one that is being written at this moment.
  std::vector<FlightEntry> read() const;

 private:
  // One cache line.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> head{0};  // number << 8 | state; 0: nothing, or being written
    std::atomic<std::uint64_t> signature[4] = {};
    std::atomic<std::int64_t> queuedNs{0};
    std::atomic<std::uint32_t> startedMs{0};      // since queuedNs
    std::atomic<std::uint32_t> finishedMs{0};     // since queuedNs; of one that has ended
    std::atomic<std::uint64_t> awaited{kNobody};  // how many << 32 | the first one
  };
  static_assert(sizeof(Slot) == 64);
  static constexpr std::uint64_t kNobody = 0xFFFF'FFFF;

  static std::uint64_t headOf(std::uint64_t number, FlightState state) {
    return number << 8 | static_cast<std::uint64_t>(state);
  }
  static std::uint32_t milliseconds(std::int64_t ns) {
    return ns > 0 ? static_cast<std::uint32_t>(ns / 1'000'000) : 0;
  }
  Slot& slotOf(std::uint64_t number) { return slots_[number % kEntries]; }
  bool isUnderWay(std::uint64_t number) {
    const std::uint64_t head = slotOf(number).head.load(std::memory_order_relaxed);
    return (head & 0xFF) == static_cast<std::uint64_t>(FlightState::kUnderWay);
  }

  std::atomic<std::uint64_t> last_{0};
  std::array<Slot, kEntries> slots_{};
};

// What the process does in another group meanwhile: the beginning of the group's name, the
// operation, and since when. A rank that waits long says so in all its groups: so ranks that miss
// it in one of them can read where it is.
struct FlightNote {
  char group[32] = {};
  Signature signature;
  std::int64_t sinceNs = 0;
};
static_assert(sizeof(FlightNote) == 72);

// What the operation that a rank entered last is for, in its caller's words (their beginning): only
// of operations that have a label.
struct FlightPurpose {
  std::uint64_t sequence = 0;
  char text[120] = {};

  FlightPurpose() = default;
  FlightPurpose(std::uint64_t operation, std::string_view words);
  // Empty: it is of another operation.
  std::string of(std::uint64_t operation) const;
};
static_assert(sizeof(FlightPurpose) == 128);

// All that a rank shows of itself in one group. Written by this rank alone.
struct FlightBoard {
  alignas(64) std::atomic<std::uint64_t> numCalled{0};  // collectives, those in the queue included
  FlightRing collectives;  // those that have reached the head of the queue
  FlightRing messages;     // sends and receives
  PublishedWords<sizeof(FlightNote) / 8> elsewhere;
  PublishedWords<sizeof(FlightPurpose) / 8> purpose;
};

std::optional<FlightPurpose> purposeOn(const FlightBoard& board);

}  // namespace smd
