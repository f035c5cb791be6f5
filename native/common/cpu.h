// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How many processors this process may really use, and how long waiting threads may spin on them.
#pragma once

#include <vector>

namespace smd {

// Processors this process may run on, ascending.
std::vector<int> affinityMask();

// The cgroup's CPU quota in processors, rounded up; 0 if there is none.
int cpuQuota();

// Processors in the affinity mask, capped by the quota; at least 1.
int usableCores();

// Tells how busy the host is: each communicator reports how many ranks it knows to be here, and how
// many processors they have together (launchers often bind each rank to one of its own).
void noteHostLoad(int ranks, int cores);

struct SpinBudget {
  int spins;   // polls with a pause instruction between them: only when there are cores to spare
  int yields;  // then polls with the processor offered to others; then sleep
};
// For a thread that has nothing else to do (a blocking call) and for the background thread, which
// must not take the processor from a computing one.
SpinBudget callerSpinBudget();
// For one that waits for what another rank has to compute first.
SpinBudget patientSpinBudget();
SpinBudget progressSpinBudget();

}  // namespace smd
