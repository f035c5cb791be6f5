// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Who talks to whom in logarithmic patterns: pure arithmetic on ranks.
#pragma once

#include <vector>

namespace smd::patterns {

// Binomial tree over `size` ranks rooted at `root`: ceil(log2(size)) rounds. Rank r's distance from
// the root, d = (r - root) mod size, has as parent d with its lowest set bit cleared.
struct TreeNode {
  int parent = -1;            // -1: the root
  std::vector<int> children;  // farthest subtree first, as a broadcast should send
};

inline TreeNode binomialTree(int size, int root, int rank) {
  const int distance = (rank - root + size) % size;
  TreeNode node;
  int bit = 1;
  for (; bit < size; bit <<= 1) {
    if ((distance & bit) != 0) {
      node.parent = (distance - bit + root) % size;
      break;
    }
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (distance + bit < size) node.children.push_back((distance + bit + root) % size);
  }
  return node;
}

// Dissemination barrier: in round k (1, 2, 4, ... < size) tell rank + k, hear from rank - k.
inline std::vector<int> disseminationDistances(int size) {
  std::vector<int> distances;
  for (int distance = 1; distance < size; distance <<= 1) distances.push_back(distance);
  return distances;
}

}  // namespace smd::patterns
