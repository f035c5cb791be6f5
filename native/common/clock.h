// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The one clock deadlines are measured with.
#pragma once

#include <chrono>
#include <cstdint>

namespace smd {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

inline std::int64_t toNs(TimePoint time) { return nanoseconds(time.time_since_epoch()).count(); }

}  // namespace smd
