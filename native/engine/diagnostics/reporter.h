// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes to stderr even if everything else is stuck: stall reports, and the flight record on
// SIGUSR1.
//
// It writes by itself rather than through Python's logging. A rank that hangs often holds the
// interpreter's lock, or waits for a thread that does; a report that needs the interpreter would
// hang with it. A thread of its own writes, so neither a driver nor the event loop ever waits for
// the reader of our stderr.
#pragma once

#include <string>

namespace smd::engine {

// From now on SIGUSR1 prints the flight record of every group of this process. Only if the signal
// has its default action now, which would end the process: a handler of the application, of Python
// or of faulthandler stays in place, and may be set later. Idempotent, cheap. Forked children
// ignore the signal.
void installSignalReport();

// Writes "[smdistributed] <text>" to stderr, soon and in one piece. Does not block.
void report(std::string text);

}  // namespace smd::engine
