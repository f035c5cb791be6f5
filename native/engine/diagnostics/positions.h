// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks on other hosts have said about where they are. The thread that receives writes it, the
// thread that waits reads it.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "common/clock.h"
#include "engine/diagnostics/flight_record.h"

namespace smd::engine {

// The tag says what a control frame is. A lower tag than these is an ErrorKind: the sender's group
// has failed, and the payload is the text of the error. Then `signature` is the collective in which
// it failed, if any, and `amount` is the first collective that a rank has not completed.
inline constexpr std::uint64_t kAskPosition = 16;   // signature.sequence: of special interest
inline constexpr std::uint64_t kTellPosition = 17;  // payload: encodePosition()

// A rank that is alive answers within this time, also on a busy machine.
inline constexpr nanoseconds kAnswerTime = std::chrono::milliseconds(400);

class Positions {
 public:
  // What one rank has said.
  struct Answer {
    std::optional<Position> position;  // of its last answer; nothing: it has given none
    TimePoint received{};
    TimePoint asked{};  // the first question after that answer; zero: none

    // Whether a question has had no answer for so long that the last answer says where the rank
    // was, and no longer where it is.
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
