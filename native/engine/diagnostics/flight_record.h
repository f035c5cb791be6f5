// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a group are, as data and as text for people: what errors, stall reports and
// flight records show. No I/O and no clock in here: each text is a function of its arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/flight_ring.h"

namespace smd::engine {

// Where one rank is, as far as it shows. Times by the clock of its host.
struct Position {
  std::int64_t nowNs = 0;                // when this was read
  std::uint64_t numCalled = 0;           // collectives, those in its queue included
  std::vector<FlightEntry> collectives;  // oldest first
  std::vector<FlightEntry> messages;
  std::optional<FlightNote> elsewhere;
  std::optional<FlightPurpose> purpose;
  // How it entered collective `sequence`, if it has not been overwritten.
  std::optional<Signature> signatureOf(std::uint64_t sequence) const;
  // What that one is for; empty: it has not said so, or it has been overwritten.
  std::string purposeOf(std::uint64_t sequence) const;
  // The collective or message under way that began first; null if there is none.
  const FlightEntry* underWay() const;
};

Position positionOn(const FlightBoard& board, std::int64_t nowNs);

// For peers on other hosts: the last few entries, and that of `sequence`.
std::vector<std::byte> encodePosition(const Position& position, std::uint64_t sequence);
// Nothing if the bytes are no position.
std::optional<Position> decodePosition(std::span<const std::byte> bytes);

// One rank of a report.
struct RankView {
  int rank = 0;
  std::string name;                  // "rank 1 (host a, pid 77)"
  std::optional<Position> position;  // nothing: it has been asked and has not answered
  bool isStopped = false;            // its process, by SIGSTOP or a debugger
  std::int64_t oldNs = 0;            // it no longer answers, and was there so long ago; 0: it does
};

// "12.3 s"
std::string secondsText(std::int64_t ns);

// Where it is, in one line without its name: "in all_reduce #7 (SUM, float32 x 4) for 31.2 s, waits
// for rank 1. Before: barrier #6, broadcast #5 (...)".
std::string describePosition(const RankView& view);

// A line for each of `ranks`, the first few; begins with a line break. Empty if there are none.
std::string positionTable(const std::vector<RankView>& ranks);

// Why `missing` keep operation `waiting` of their group from going on, as far as that can be told,
// and what to do about it. One or two sentences.
std::string likelyCause(const Signature& waiting, const std::vector<RankView>& missing);

// What it says to do about uneven batches, in words of the framework in use: the end of a sentence.
// Any thread; the last call counts.
void setUnevenBatchesAdvice(const std::string& advice);

// A flight record: the last operations of a group in this process, oldest first.
struct GroupRecord {
  std::string group;
  int rank = 0;
  int size = 1;
  std::string state;  // "open", "failed: ...", "closed"
  Position position;
  std::vector<Signature> queued;  // called, but behind the one under way
};
std::string recordText(const GroupRecord& record);

}  // namespace smd::engine
