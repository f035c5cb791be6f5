// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/arena_size.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

namespace smd::transport::shm {
namespace {

constexpr std::uint64_t kUnit = std::uint64_t{2} << 20;  // a huge page
// A hundred groups of eight ranks still fit into half of the 128 TiB of a process.
constexpr std::uint64_t kLargest = std::uint64_t{64} << 30;
// Of a rationed address space, so that several groups and the application find room.
constexpr std::uint64_t kShareOfAddressSpace = 16;

std::uint64_t softLimit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::uint64_t>::max();
  }
  return limit.rlim_cur;
}

}  // namespace

MemoryLimits memoryLimitsOfThisProcess() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long pageBytes = sysconf(_SC_PAGESIZE);
  const std::uint64_t physical =
      pages > 0 && pageBytes > 0
          ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(pageBytes)
          : 0;
  return {physical, softLimit(RLIMIT_AS), softLimit(RLIMIT_FSIZE)};
}

std::size_t arenaBytesFor(const MemoryLimits& limits, int ranks, std::size_t otherBytes) {
  std::uint64_t total = limits.physicalBytes;
  if (limits.addressSpaceBytes != std::numeric_limits<std::uint64_t>::max()) {
    total = std::min(total, limits.addressSpaceBytes / kShareOfAddressSpace);
  }
  total = std::min(total, limits.fileBytes - std::min<std::uint64_t>(limits.fileBytes, otherBytes));
  const std::uint64_t each = std::min(total / static_cast<std::uint64_t>(ranks), kLargest);
  return each / kUnit * kUnit;
}

}  // namespace smd::transport::shm
