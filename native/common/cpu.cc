// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/cpu.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>

namespace smd {
namespace {

// cgroup v2 "max 100000" or "150000 100000"; v1 has the two numbers in two files. 0: no limit.
int readQuota() {
  double quota = 0, period = 0;
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string first;
  if (v2 >> first >> period) {
    if (first == "max") return 0;
    quota = std::strtod(first.c_str(), nullptr);
  } else {
    std::ifstream q("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
        p("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(q >> quota) || !(p >> period)) return 0;
  }
  if (quota <= 0 || period <= 0) return 0;
  return std::max(1, static_cast<int>((quota + period - 1) / period));
}

// How many more threads than processors the busiest communicator knows of, for one thread per rank
// and for two. Negative: processors to spare.
std::atomic<int> excessOfCallers{0};
std::atomic<int> excessWithProgress{0};

void raiseTo(std::atomic<int>& value, int candidate) {
  int seen = value.load();
  while (seen < candidate && !value.compare_exchange_weak(seen, candidate)) {
  }
}

// About half a millisecond. Two ranks that compute the same step come to its end up to some 100 us
// apart, and one that has slept is late by as much: for the next operation the other sleeps then,
// and so on in turns. (benchmarks/ddp_step, tiny model: with a fifth of this, and no waiting thread
// that drives, 1.41 times the step with a free collective; now 1.23.)
constexpr SpinBudget kDedicated{10000, 50};
// About five milliseconds: what a rank of a pipeline waits for is a stage's work. Where that takes
// longer, what sleeping costs does not show.
constexpr SpinBudget kDedicatedPatient{100000, 50};
// While the other ranks run, a yield takes as long as they do. If all of them wait, so many yields
// take some 50 us, about what sleeping and being woken costs on a virtual machine. A rank that
// gives up sooner is late for the next operation, and then the others are, in turns, as above.
constexpr SpinBudget kShared{0, 200};
// Where the other thread of the processor computes, offering it costs a whole slice: the kernel
// puts a thread that yields last. One that sleeps and is woken comes back first.
constexpr SpinBudget kBackground{0, 0};

}  // namespace

std::vector<int> affinityMask() {
  std::vector<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &set)) processors.push_back(processor);
  }
  return processors;
}

int cpuQuota() {
  static const int quota = readQuota();
  return quota;
}

int usableCores() {
  static const int cores = [] {
    const int mask = static_cast<int>(affinityMask().size());
    return std::max(1, cpuQuota() == 0 ? mask : std::min(mask, cpuQuota()));
  }();
  return cores;
}

void noteHostLoad(int ranks, int cores) {
  raiseTo(excessOfCallers, ranks - cores);
  raiseTo(excessWithProgress, 2 * ranks - cores);
}

SpinBudget callerSpinBudget() {
  return excessOfCallers.load(std::memory_order_relaxed) <= 0 ? kDedicated : kShared;
}

SpinBudget patientSpinBudget() {
  return excessOfCallers.load(std::memory_order_relaxed) <= 0 ? kDedicatedPatient : kShared;
}

SpinBudget progressSpinBudget() {
  return excessWithProgress.load(std::memory_order_relaxed) <= 0 ? kDedicated : kBackground;
}

}  // namespace smd
