// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The communicators of this process, for what concerns all of them: the exit, flight records, and
// telling those who miss this rank in one group that it waits in another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/diagnostics/flight_record.h"

namespace smd::engine {

class Communicator;

void addToRegistry(const std::shared_ptr<Communicator>& communicator);
// In the order in which they were made. In a forked child: those made there.
std::vector<std::shared_ptr<Communicator>> liveCommunicators();

// Of every group that exists. Any thread; takes each group's lock for a moment.
std::vector<GroupRecord> flightRecords();
// The same for people.
std::string flightRecordText();

// From now on groups of other names show that this process waits in `where`; of several such waits,
// the one that was told first. Returns its number, for `endElsewhere`; never 0.
std::uint64_t beginElsewhere(const FlightNote& where);
void endElsewhere(std::uint64_t number);

}  // namespace smd::engine
