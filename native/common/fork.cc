// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/fork.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <mutex>

namespace smd {
namespace {

// One bit per descriptor number. A fixed table, because the child handler may neither allocate nor
// walk a structure. The kernel hands out the lowest free number, so numbers beyond the table mean
// more than a million open descriptors; those are only closed on exec.
constexpr std::size_t kBitsPerWord = 64;
constexpr std::size_t kMaxDescriptors = std::size_t{1} << 20;

constinit std::array<std::atomic<std::uint64_t>, kMaxDescriptors / kBitsPerWord> registered{};
constinit std::atomic<std::size_t> usedWords{0};  // words at and above it were never touched
constinit std::atomic<std::uint64_t> generation{0};

// A table too, for the same reason. Only touched with forkMutex held, in the child by inheritance.
struct PrivateCopy {
  void* address;
  std::size_t bytes;
  off_t offset;
  int fd;
};
constexpr std::size_t kMaxCopies = 4096;
constinit std::array<PrivateCopy, kMaxCopies> copies{};
constinit std::size_t numCopies = 0;

// A plain mutex: the thread that forks locks it, and glibc lets its copy in the child unlock it
// (a recursive mutex would compare thread ids, which differ).
constinit std::mutex forkMutex;

void beforeFork() { forkMutex.lock(); }

void afterForkInParent() { forkMutex.unlock(); }

// Async-signal-safe: atomics, close(), and mmap(), which is a plain system call on Linux.
void afterForkInChild() {
  generation.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < numCopies; ++i) {  // before the descriptors are closed
    const PrivateCopy& copy = copies[i];
    if (copy.bytes == 0) continue;  // what an exception has left of it
    // Not over what another library's handler may have mapped there since.
    mmap(copy.address, copy.bytes, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED_NOREPLACE, copy.fd, copy.offset);
  }
  numCopies = 0;
  const std::size_t words = usedWords.load(std::memory_order_relaxed);
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t bits = registered[word].exchange(0, std::memory_order_relaxed);
    while (bits != 0) {
      const auto bit = static_cast<std::size_t>(std::countr_zero(bits));
      ::close(static_cast<int>(word * kBitsPerWord + bit));
      bits &= bits - 1;
    }
  }
  forkMutex.unlock();
}

// At load time, so before any handler of ours that is installed on first use: handlers that run
// before a fork are called last-installed first, hence their locks are taken before forkMutex.
const int kInstalled = pthread_atfork(beforeFork, afterForkInParent, afterForkInChild);

}  // namespace

std::uint64_t forkGeneration() noexcept { return generation.load(std::memory_order_relaxed); }

ForkGuard::ForkGuard() noexcept {
  static_cast<void>(kInstalled);
  forkMutex.lock();
}

ForkGuard::~ForkGuard() { forkMutex.unlock(); }

void registerDescriptor(int fd, const ForkGuard&) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (fd < 0 || number >= kMaxDescriptors) {
    return;
  }
  const std::size_t word = number / kBitsPerWord;
  registered[word].fetch_or(std::uint64_t{1} << (number % kBitsPerWord), std::memory_order_relaxed);
  if (usedWords.load(std::memory_order_relaxed) <= word) {
    usedWords.store(word + 1, std::memory_order_relaxed);
  }
}

void unregisterDescriptor(int fd, const ForkGuard&) noexcept {
  const auto number = static_cast<std::size_t>(fd);
  if (fd < 0 || number >= kMaxDescriptors) {
    return;
  }
  registered[number / kBitsPerWord].fetch_and(~(std::uint64_t{1} << (number % kBitsPerWord)),
                                              std::memory_order_relaxed);
}

void registerPrivateCopy(void* address, std::size_t bytes, int fd, off_t offset,
                         const ForkGuard&) noexcept {
  if (numCopies < kMaxCopies) copies[numCopies++] = {address, bytes, offset, fd};
}

bool exceptFromPrivateCopy(void* address, std::size_t bytes, const ForkGuard&) noexcept {
  auto* begin = static_cast<std::byte*>(address);
  auto* end = begin + bytes;
  const auto last = copies.begin() + static_cast<std::ptrdiff_t>(numCopies);
  const auto found = std::find_if(copies.begin(), last, [begin, end](const PrivateCopy& copy) {
    auto* from = static_cast<std::byte*>(copy.address);
    return from <= begin && end <= from + copy.bytes;
  });
  if (found == last || numCopies == kMaxCopies) return false;
  const PrivateCopy whole = *found;
  auto* from = static_cast<std::byte*>(whole.address);
  found->bytes = static_cast<std::size_t>(begin - from);
  copies[numCopies++] = {end, static_cast<std::size_t>(from + whole.bytes - end),
                         whole.offset + (end - from), whole.fd};
  return true;
}

void unregisterPrivateCopies(void* address, std::size_t bytes, const ForkGuard&) noexcept {
  auto* begin = static_cast<std::byte*>(address);
  for (std::size_t i = 0; i < numCopies;) {
    auto* from = static_cast<std::byte*>(copies[i].address);
    if (begin <= from && from + copies[i].bytes <= begin + bytes) {
      copies[i] = copies[--numCopies];
    } else {
      ++i;
    }
  }
}

}  // namespace smd
