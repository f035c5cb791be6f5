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

int coresInAffinityMask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// cgroup v2 "max 100000" or "150000 100000"; v1 has the two numbers in two files. 0: no limit.
int coresInQuota() {
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

std::atomic<int> ranksOnHost{1};

// Trials on two cores: a flag travels in 0.04-0.3 us, so a peer that is not there after some tens of
// microseconds is late for a reason and the processor is better used otherwise.
constexpr SpinBudget kDedicated{2000, 50};
constexpr SpinBudget kShared{0, 60};
constexpr SpinBudget kBackground{0, 4};

}  // namespace

int usableCores() {
  static const int cores = [] {
    const int mask = coresInAffinityMask();
    const int quota = coresInQuota();
    return quota == 0 ? mask : std::min(mask, quota);
  }();
  return cores;
}

void noteRanksOnHost(int ranks) {
  int seen = ranksOnHost.load();
  while (seen < ranks && !ranksOnHost.compare_exchange_weak(seen, ranks)) {
  }
}

SpinBudget callerSpinBudget() {
  return ranksOnHost.load(std::memory_order_relaxed) <= usableCores() ? kDedicated : kShared;
}

SpinBudget progressSpinBudget() {
  return 2 * ranksOnHost.load(std::memory_order_relaxed) <= usableCores() ? kDedicated
                                                                          : kBackground;
}

}  // namespace smd
