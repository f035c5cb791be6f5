// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Words for ranks that disagree.
#pragma once

#include <span>
#include <string>

#include "common/error.h"
#include "common/signature.h"

namespace smd::algorithms {

// What one rank called.
struct Call {
  int rank = 0;
  Signature signature;
  std::string purpose;  // empty: it has none, or it is not known
};

// Of those ranks that are known to have come, in order; at least two differ.
Error mismatchError(std::span<const Call> calls);
// When only two ranks' views are known.
Error mismatchError(int rankA, const Signature& a, int rankB, const Signature& b);
// all_to_all, gather, scatter: `sender` offers another number of elements than `receiver` expects.
Error splitMismatchError(const Signature& signature, int sender, std::uint64_t offered,
                         int receiver, std::uint64_t expected);

}  // namespace smd::algorithms
