// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How a thread waits that has nothing else to do: it moves what can be moved, spins and offers its
// processor for a while, then sleeps. docs/thread_model.md says why so.
#pragma once

#include <functional>

#include "common/clock.h"
#include "common/cpu.h"
#include "common/futex.h"
#include "transport/mailbox.h"

namespace smd::engine {

// Asked by threads that block on behalf of a user: "did Ctrl-C arrive?" Set once by the bindings.
// It must not throw.
using InterruptCheck = std::function<bool()>;
void setInterruptCheck(InterruptCheck check);
// By a thread that waits with this mailbox, which is a group's.
bool wasInterrupted(const transport::Mailbox& mailbox);
// Whether this thread is in it: in a signal handler of the user's, within a call of that group.
bool isHandlingSignals(const transport::Mailbox* mailbox);

// Whoever called was interrupted while waiting. Not an Error: the caller knows better what it is.
struct Interrupted {};

// What is waited for.
class Driven {
 public:
  virtual ~Driven() = default;
  // Moves what can be moved. Returns whether there is nothing left to wait for, well or not.
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

// When the calling thread stops driving what is not complete.
struct Until {
  bool isBrief = false;  // it may spin, but not sleep
  TimePoint end = TimePoint::max();
};

enum class Drive { kDone, kNotYet, kInterrupted };

// Of one rank: where its threads sleep, and its wires.
struct Waiting {
  Doorbell& bell;
  transport::Mailbox& mailbox;
};

// For waits in which messages of other hosts count. They take so long that it costs little to offer
// the processor all the while. The ranks of several containers, or test hosts, may share processors
// without knowing it.
inline constexpr SpinBudget kBetweenHosts{20, 1000};
// With large ones whole milliseconds pass between messages, and sending and receiving them takes
// all the processor there is.
inline constexpr SpinBudget kBetweenHostsLarge{20, 20};

Drive drive(Driven& driven, const Until& until, const SpinBudget& budget, const Waiting& waiting);

}  // namespace smd::engine
