// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Memory that operations need for a while, used again by later ones: fresh pages are slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace smd::algorithms {

// Not thread-safe: for the driver of one communicator.
class Scratch {
 public:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    std::uint64_t bytes = 0;
  };
  // Of at least `bytes`; with whatever was in it.
  Buffer take(std::uint64_t bytes);
  // What is not given back is freed by its owner.
  void giveBack(Buffer buffer);

 private:
  // Kept for later operations.
  static constexpr std::uint64_t kMostKept = std::uint64_t{16} << 20;

  std::vector<Buffer> free_;
  std::uint64_t kept_ = 0;
};

}  // namespace smd::algorithms
