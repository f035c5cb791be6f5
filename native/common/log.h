// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Lines for people, from threads that must not wait for Python's interpreter lock.
#pragma once

#include <string_view>

namespace smd {

// Writes "[smdistributed] WARNING: <text>" to stderr, as one piece: the form that Python's fallback
// handler gives to warnings. For what happens seldom; who calls sees to it.
void logWarning(std::string_view text);

}  // namespace smd
