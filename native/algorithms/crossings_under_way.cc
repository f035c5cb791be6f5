// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/crossings_under_way.h"

#include <algorithm>

namespace smd::algorithms {

void Crossings::advance() {
  if (tasks_.empty()) return;
  mailbox_.poll();
  for (Task& task : tasks_) task.advance();
  while (!tasks_.empty() && tasks_.front().isDone()) {
    tasks_.pop_front();
    ++numDone_;
  }
}

std::vector<int> Crossings::missingRanks() const {
  std::vector<int> missing;
  for (const Task& task : tasks_) {
    if (task.awaited() == nullptr) continue;
    for (const int rank : task.awaited()->missingRanks()) {
      if (std::ranges::find(missing, rank) == missing.end()) missing.push_back(rank);
    }
  }
  return missing;
}

}  // namespace smd::algorithms
