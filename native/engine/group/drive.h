// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How a thread waits for an operation: it moves what can be moved, spins and offers its processor
// for a while, then sleeps. docs/thread_model.md gives the reasons.
#pragma once

#include <functional>

#include "common/clock.h"
#include "common/cpu.h"
#include "common/futex.h"
#include "transport/mailbox.h"

namespace smd::engine {

// Threads that block on behalf of a user ask it: "did Ctrl-C arrive?" The bindings set it once. It
// must not throw.
using InterruptCheck = std::function<bool()>;
void setInterruptCheck(InterruptCheck check);
// Asks that, for a thread that waits for the group of this mailbox.
bool wasInterrupted(const transport::Mailbox& mailbox);
// Whether this thread is inside that question: in a signal handler of the user, within a call of
// that group.
bool isHandlingSignals(const transport::Mailbox* mailbox);

// Thrown when the user interrupts a wait. Not an Error: the caller knows better what it means.
struct Interrupted {};

// What is waited for.
class Driven {
 public:
  virtual ~Driven() = default;
  // Moves what can be moved. Returns whether the wait is over, with or without an error.
  virtual bool step() = 0;
  // The same, and looks at the clock and at the health of the group.
  virtual bool stepOrDiagnose() = 0;
  // When to do so at the latest, besides every 100 ms.
  virtual TimePoint deadline() const = 0;
  // Whether nothing but messages of other hosts can end the wait.
  virtual bool awaitsOtherHosts() const = 0;
  // Whether a rank that is waited for said that it runs on the processor of the calling thread.
  virtual bool isInTheWay() const = 0;
};

// When the calling thread stops driving an operation that is not complete.
struct Until {
  bool isBrief = false;  // it may spin, but not sleep
  TimePoint end = TimePoint::max();
};

enum class Drive { kDone, kNotYet, kInterrupted };

// Where the threads of a rank sleep, and its wires.
struct Waiting {
  Doorbell& bell;
  transport::Mailbox& mailbox;
};

// For waits for messages of other hosts. These take so long that it costs little to offer the
// processor all the while; and ranks of several containers, or of several test hosts, may share
// processors without knowing it.
inline constexpr SpinBudget kBetweenHosts{20, 1000};
// For large operations: whole milliseconds pass between messages, and to send and receive them
// takes all the processor time there is.
inline constexpr SpinBudget kBetweenHostsLarge{20, 20};

Drive drive(Driven& driven, const Until& until, const SpinBudget& budget, const Waiting& waiting);

}  // namespace smd::engine
