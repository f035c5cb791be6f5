// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How large the arenas of a region are made. A range nobody touches costs address space only, so
// they are generous: together all the memory of the machine. But address space may be rationed too
// (ulimit -v), a file's size as well (ulimit -f; growing one beyond it ends the program), and a
// process may be in many groups.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smd::transport::shm {

struct MemoryLimits {
  std::uint64_t physicalBytes;
  std::uint64_t addressSpaceBytes;  // RLIMIT_AS; the largest value means unlimited
  std::uint64_t fileBytes;          // RLIMIT_FSIZE; likewise
};

MemoryLimits memoryLimitsOfThisProcess();

// Bytes of each of the arenas of `ranks` ranks, a multiple of 2 MiB, in a region whose other parts
// take `otherBytes`; 0: too little for arenas.
std::size_t arenaBytesFor(const MemoryLimits& limits, int ranks, std::size_t otherBytes);

}  // namespace smd::transport::shm
