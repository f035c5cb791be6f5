// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/scratch.h"

#include <utility>

namespace smd::algorithms {

Scratch::Buffer Scratch::take(std::uint64_t bytes) {
  while (!free_.empty()) {
    Buffer buffer = std::move(free_.back());
    free_.pop_back();
    kept_ -= buffer.bytes;
    if (buffer.bytes >= bytes) return buffer;
  }
  return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
}

void Scratch::giveBack(Buffer buffer) {
  if (buffer.bytes > kMostKept - kept_) return;
  kept_ += buffer.bytes;
  free_.push_back(std::move(buffer));
}

}  // namespace smd::algorithms
