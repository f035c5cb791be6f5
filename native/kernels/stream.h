// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Stores that go past the caches. An ordinary store to a line that is in no cache reads the line
// first, and so costs the memory twice. A streaming store does not, but throws the line out of
// every cache: right for results that are larger than the caches, wrong for those that somebody
// finds there, and for lines that have just been read anyway (in place).
#pragma once

#include <cstddef>
#include <cstdint>

namespace smd::kernels {

// As copy() (kernels.h), with streaming stores where kernels() may use AVX2; elsewhere it is
// copy(). When it returns, its stores are ordered before all later ones.
void copyStreaming(void* dst, const void* src, std::size_t bytes);

// Whether results should be streamed of an operation that, on all ranks of the host together, reads
// and writes so many bytes: they do not fit into the last-level cache.
bool shouldStream(std::uint64_t bytes);

}  // namespace smd::kernels
