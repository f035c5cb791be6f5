// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/file_descriptor.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace smd {
namespace {

constexpr rlim_t kMostDescriptors = 65536;

}  // namespace

FileDescriptor::FileDescriptor(int fd) noexcept : FileDescriptor(fd, ForkGuard()) {}

FileDescriptor::FileDescriptor(int fd, const ForkGuard& guard) noexcept
    : fd_(fd < 0 ? -1 : fd), generation_(forkGeneration()) {
  registerDescriptor(fd_, guard);
}

void FileDescriptor::reset() noexcept {
  if (fd_ < 0) {
    return;
  }
  const int fd = std::exchange(fd_, -1);
  if (isForkedChild(generation_)) {
    return;
  }
  // Under the guard until closed: otherwise a child forked in between would keep it open.
  const ForkGuard guard;
  unregisterDescriptor(fd, guard);
  ::close(fd);
}

int FileDescriptor::release() noexcept {
  if (fd_ < 0 || isForkedChild(generation_)) {
    fd_ = -1;
    return -1;
  }
  const ForkGuard guard;
  unregisterDescriptor(fd_, guard);
  return std::exchange(fd_, -1);
}

void raiseDescriptorLimit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kMostDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace smd
