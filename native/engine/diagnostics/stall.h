// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// When a thread that waits for an operation looks where the other ranks are: pure arithmetic on
// times.
//
//   first look      where are the missing ranks? After 1 s, or half the operation's timeout if that
//                   is shorter; then every 250 ms
//   questions       to ranks on other hosts: at the first look, half a second before each report,
//                   and before the deadline: so the answers are there when they are needed, and
//                   nothing waits for them
//   reports         after `reportAfter`, and again when twice, four times ... as much has passed
#pragma once

#include "common/clock.h"

namespace smd::engine {

class StallWatch {
 public:
  bool isBegun() const { return nextLook_ != TimePoint{}; }
  // `reportAfter` zero: no reports.
  void begin(TimePoint now, TimePoint deadline, nanoseconds reportAfter);
  bool isDue(TimePoint now) const { return now >= nextLook_; }

  struct Todo {
    bool ask = false;
    bool report = false;
  };
  Todo look(TimePoint now);

  nanoseconds waited(TimePoint now) const { return now - begun_; }

 private:
  TimePoint begun_{}, nextLook_{}, nextAsk_{}, nextReport_{}, lastAsk_{};
};

}  // namespace smd::engine
