// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether the host at the other end of a connection still answers. Kernels acknowledge also for a
// process that is stopped, or too slow to read: that is not silence.
#pragma once

#include <chrono>

namespace smd::transport::tcp {

// A host that leaves unacknowledged what was sent to it for so long is taken for dead. Longer than
// a link takes to come back when a cable is moved, or a switch fails over.
inline constexpr std::chrono::seconds kSilenceLimit{10};
// Between looks.
inline constexpr std::chrono::seconds kSilenceLook{2};

// Of one connection.
class Silence {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether nothing has been acknowledged for kSilenceLimit, though there was something to be
  // acknowledged at every look. (TCP_USER_TIMEOUT would also end a connection whose receiver is
  // merely stopped, with its window full.)
  bool isOver(int socket, Clock::time_point now);

 private:
  Clock::time_point begin_{};
  Clock::time_point lastLook_{};
  bool wasOutstanding_ = false;
};

}  // namespace smd::transport::tcp
