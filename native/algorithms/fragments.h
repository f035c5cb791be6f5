// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The input of an all_reduce that lies in fragments: many tensors as one bucket. On one host what
// other ranks read of it is copied anyway, and this rank's own share is read where it lies; for
// other algorithms the fragments are joined in the output first.
#pragma once

#include "algorithms/request.h"

namespace smd::algorithms {

// The input of an all_reduce or reduce, in one piece or in fragments.
class Input {
 public:
  explicit Input(const Request& request) : request_(request) {}

  // Bytes [begin, begin + bytes) of it.
  void copy(std::byte* to, std::uint64_t begin, std::uint64_t bytes) const;
  // The same, where they lie; in `room`, copied, if that is not one place.
  const std::byte* read(std::uint64_t begin, std::uint64_t bytes, std::byte* room) const;

 private:
  // The first fragment that ends behind `begin`.
  Fragments::const_iterator find(std::uint64_t begin) const;

  const Request& request_;
};

// Makes it an all_reduce in place, of one piece.
void joinFragments(Request& request);

}  // namespace smd::algorithms
