// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Seconds, as Python gives them, on the engine's clock. Any float may come: what is too large to be
// counted in nanoseconds, inf too, is as good as no end.
#pragma once

#include <cstdint>

#include "common/clock.h"

namespace smd::bindings {

// 30 years: far from the end of what 64 bits hold, also when it is added to the time of day.
inline constexpr double kLongestSeconds = 1e9;

// Zero for what is not positive (nan too), and at most kLongestSeconds.
inline nanoseconds toDuration(double seconds) {
  if (!(seconds > 0)) return nanoseconds(0);
  const double counted = seconds < kLongestSeconds ? seconds : kLongestSeconds;
  return nanoseconds(static_cast<std::int64_t>(counted * 1e9));
}

// So long from now; never, if that is longer than kLongestSeconds.
inline TimePoint endAfter(double seconds) {
  if (seconds > kLongestSeconds) return TimePoint::max();
  return Clock::now() + toDuration(seconds);
}

}  // namespace smd::bindings
