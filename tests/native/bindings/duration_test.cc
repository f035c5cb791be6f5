// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Seconds of Python that are too large to be counted in nanoseconds.
#include "bindings/duration.h"

#include <gtest/gtest.h>

#include <cmath>

namespace smd::bindings {
namespace {

TEST(Duration, WhatCannotBeCountedIsAsGoodAsNoEnd) {
  for (const double seconds : {1e10, 1e300, HUGE_VAL}) {
    EXPECT_EQ(endAfter(seconds), TimePoint::max()) << seconds;
    EXPECT_EQ(toDuration(seconds), std::chrono::seconds(1'000'000'000)) << seconds;
  }
}

TEST(Duration, WhatIsNotPositiveIsNothing) {
  for (const double seconds : {0.0, -1.0, -HUGE_VAL, std::nan("")}) {
    EXPECT_EQ(toDuration(seconds), nanoseconds(0)) << seconds;
  }
}

TEST(Duration, WhatCanBeCountedIsCounted) {
  EXPECT_EQ(toDuration(1.5), milliseconds(1500));
  const TimePoint before = Clock::now();
  const TimePoint end = endAfter(5.0);
  EXPECT_GE(end, before + std::chrono::seconds(5));
  EXPECT_LE(end, Clock::now() + std::chrono::seconds(5));
}

}  // namespace
}  // namespace smd::bindings
