// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The communicators of this process, for what concerns all of them: the exit of the process, flight
// records, and notes that tell the ranks of one group that this rank waits in another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/diagnostics/flight_record.h"

namespace smd::engine {

class Communicator;

void addToRegistry(const std::shared_ptr<Communicator>& communicator);
// In the order in which they were made. In a forked child: only those made in the child.
std::vector<std::shared_ptr<Communicator>> liveCommunicators();

// The flight record of every group. Any thread; takes each group's lock for a moment.
std::vector<GroupRecord> flightRecords();
// The same as text for people.
std::string flightRecordText();

// From now on groups with other names show that this process waits in `where`; of several such
// waits they show the first. Returns a number for `endElsewhere`, which is never 0.
std::uint64_t beginElsewhere(const FlightNote& where);
void endElsewhere(std::uint64_t number);

}  // namespace smd::engine
