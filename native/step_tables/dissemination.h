// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Who talks to whom in a barrier: pure arithmetic on ranks.
#pragma once

#include <vector>

namespace smd::step_tables {

// Dissemination barrier: in round k (1, 2, 4, ... < size) tell rank + k, hear from rank - k.
inline std::vector<int> disseminationDistances(int size) {
  std::vector<int> distances;
  for (int distance = 1; distance < size; distance <<= 1) distances.push_back(distance);
  return distances;
}

}  // namespace smd::step_tables
