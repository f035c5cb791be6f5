// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/diagnostics/disagreements.h"

#include <algorithm>
#include <vector>

#include "algorithms/mismatch.h"

namespace smd::engine {
namespace {

constexpr nanoseconds kPatience = milliseconds(1000);
constexpr nanoseconds kAskAgain = milliseconds(250);
constexpr std::uint64_t kHistory = 3;  // earlier operations that an error names

}  // namespace

bool Disagreements::suspect(Work& work, const Error& error) const {
  if (error.kind() != ErrorKind::kMismatch || peers_.areAllLocal ||
      work.signature().sequence == 0) {
    return false;
  }
  if (work.suspicion) return true;
  work.suspicion = error;
  const TimePoint now = Clock::now();
  work.suspectedUntil = std::min(now + kPatience, std::max(now, work.deadline()));
  work.nextQuestion = now;
  return true;
}

std::optional<Error> Disagreements::settle(Work& work) {
  peers_.mailbox->poll();
  const std::uint64_t sequence = work.signature().sequence;
  std::vector<algorithms::Call> known;
  std::vector<int> unknown;
  for (int rank = 0; rank < peers_.size; ++rank) {
    const std::optional<Position> position = positions_.knownOf(rank);
    const auto theirs = position ? position->signatureOf(sequence) : std::nullopt;
    if (theirs) {
      known.push_back({rank, *theirs, position->purposeOf(sequence)});
    } else {
      unknown.push_back(rank);
    }
  }
  const TimePoint now = Clock::now();
  if (!unknown.empty() && now < work.suspectedUntil) {
    if (now >= work.nextQuestion) {
      positions_.ask(unknown, sequence);
      work.nextQuestion = now + kAskAgain;
    }
    return std::nullopt;
  }
  const bool areSame = std::all_of(known.begin(), known.end(), [&known](const auto& one) {
    return one.signature == known.front().signature;
  });
  // All made the same call, yet two ranks disagree about what one of them sends.
  return withHistory(work, areSame ? *work.suspicion : algorithms::mismatchError(known));
}

Error Disagreements::withHistory(const Work& work, const Error& error) {
  const std::uint64_t sequence = work.signature().sequence;
  std::string before;
  const Position position = positionOn(positions_.board(), 0);
  for (std::uint64_t back = 1; back <= kHistory && back < sequence; ++back) {
    const auto signature = position.signatureOf(sequence - back);
    if (signature)
      before += (before.empty() ? " Before it all ranks made " : ", ") + describe(*signature);
  }
  if (sequence == 1) before = " It is the first collective of this group";
  return Error(error.kind(), error.what() + (before.empty() ? "" : before + "."));
}

}  // namespace smd::engine
