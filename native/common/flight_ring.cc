// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/flight_ring.h"

#include <algorithm>
#include <cstring>

namespace smd {

std::vector<FlightEntry> FlightRing::read() const {
  std::vector<FlightEntry> entries;
  for (const Slot& slot : slots_) {
    const std::uint64_t head = slot.head.load(std::memory_order_acquire);
    if (head == 0) continue;
    FlightEntry entry;
    entry.number = head >> 8;
    entry.state = static_cast<FlightState>(head & 0xFF);
    std::array<std::uint64_t, 4> words;
    for (std::size_t i = 0; i < words.size(); ++i) {
      words[i] = slot.signature[i].load(std::memory_order_acquire);
    }
    entry.signature = std::bit_cast<Signature>(words);
    constexpr std::int64_t kMillisecond = 1'000'000;
    entry.queuedNs = slot.queuedNs.load(std::memory_order_acquire);
    entry.startedNs =
        entry.queuedNs + slot.startedMs.load(std::memory_order_acquire) * kMillisecond;
    const std::uint32_t finishedMs = slot.finishedMs.load(std::memory_order_acquire);
    const std::uint64_t awaited = slot.awaited.load(std::memory_order_acquire);
    entry.waitsFor = static_cast<std::int32_t>(awaited & 0xFFFF'FFFF);
    entry.numMissing = static_cast<std::uint32_t>(awaited >> 32);
    // Overwritten meanwhile: what was read may be of two operations. If it has only ended, it has
    // not ended for this reader.
    if (slot.head.load(std::memory_order_relaxed) >> 8 != entry.number) continue;
    if (entry.state != FlightState::kUnderWay) {
      entry.finishedNs = std::max(entry.queuedNs + finishedMs * kMillisecond, entry.startedNs);
    }
    entries.push_back(entry);
  }
  std::sort(entries.begin(), entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.number < b.number; });
  return entries;
}

FlightPurpose::FlightPurpose(std::uint64_t operation, std::string_view words)
    : sequence(operation) {
  std::size_t size = std::min(words.size(), sizeof text - 1);
  // Whole characters of UTF-8.
  while (size > 0 && size < words.size() &&
         (static_cast<unsigned char>(words[size]) & 0xC0) == 0x80) {
    --size;
  }
  words.copy(text, size);
}

std::string FlightPurpose::of(std::uint64_t operation) const {
  if (sequence == 0 || sequence != operation) return "";
  return {text, strnlen(text, sizeof text)};
}

std::optional<FlightPurpose> purposeOn(const FlightBoard& board) {
  const auto words = board.purpose.read();
  if (!words) return std::nullopt;
  return std::bit_cast<FlightPurpose>(*words);
}

}  // namespace smd
