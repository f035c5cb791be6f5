// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Many small collectives of one kind as one. A small operation costs its meeting of the ranks, not
// its bytes; so the buffers are packed one after the other, one operation is carried out on the
// packed copy, by any algorithm, and the results are put where they belong.
//
// With pieces p, q, r:
//   all_reduce      p q r, in place
//   all_gather      input p q r; of every rank an output p q r
//   reduce_scatter  for every rank an input p q r (its shares of them); output p q r
//
// Elements are combined one by one, in rank order, so the bits are those of the single operations.
// Cost: each byte is copied once more on its way in and once more on its way out, in the cache if
// there are few.
#pragma once

#include <cstddef>
#include <memory>

#include "algorithms/request.h"

namespace smd::algorithms {

// Packs request.pieces and makes `request` one on the packed copy, which is returned: it must live
// as long as the operation. Null, and nothing done, if there are no pieces. The kind must be one of
// those above; the inputs are not read again.
std::unique_ptr<std::byte[]> pack(Request& request, int size);

// Writes the results of a packed request into the outputs of its pieces.
void unpack(const Request& request);

}  // namespace smd::algorithms
