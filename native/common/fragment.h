// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A buffer that does not lie in one piece: some fragments of it lie anywhere, the rest is zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace smd {

struct Fragment {
  const std::byte* data = nullptr;
  std::uint64_t offset = 0;  // in the buffer
  std::uint64_t bytes = 0;   // not 0
};
// In the order of their offsets. They do not overlap.
using Fragments = std::vector<Fragment>;

}  // namespace smd
