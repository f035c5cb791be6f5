// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks on other hosts have said about where they are. Written by the thread that receives,
// read by the one that waits.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "common/clock.h"
#include "engine/diagnostics/flight_record.h"

namespace smd::engine {

// What a control frame is, by its tag. Lower ones are those of ErrorKind: the sender's group has
// failed, and the payload says why; `signature` is that of the collective in which it did, if any,
// and `amount` the first one that a rank has not completed.
inline constexpr std::uint64_t kAskPosition = 16;   // signature.sequence: of special interest
inline constexpr std::uint64_t kTellPosition = 17;  // payload: encodePosition()

// Whoever lives answers sooner, also on a busy machine.
inline constexpr nanoseconds kAnswerTime = std::chrono::milliseconds(400);

class Positions {
 public:
  // What one rank has said.
  struct Answer {
    std::optional<Position> position;  // of its last answer; nothing: it has given none
    TimePoint received{};
    TimePoint asked{};  // the first question after that answer; zero: none

    // Whether a question has gone unanswered for so long that the answer, if there is one, tells
    // where the rank was, and no longer where it is.
    bool isOld(TimePoint now) const {
      return position && asked != TimePoint{} && now - asked >= kAnswerTime;
    }
  };

  void noteAsked(int rank, TimePoint now) {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[rank];
    if (answer.asked == TimePoint{}) answer.asked = now;
  }
  void noteAnswer(int rank, Position position, TimePoint now) {
    const std::lock_guard lock(mutex_);
    answers_[rank] = {std::move(position), now, {}};
  }
  // Nothing: not asked.
  std::optional<Answer> of(int rank) const {
    const std::lock_guard lock(mutex_);
    const auto found = answers_.find(rank);
    if (found == answers_.end()) return std::nullopt;
    return found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, Answer> answers_;
};

}  // namespace smd::engine
