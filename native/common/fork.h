// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What a fork means for us. Training scripts fork while a rank holds connections (DataLoader
// workers). A child that kept the rank's sockets open would hide the rank's death from its peers,
// and a child that used the rank's descriptors would corrupt its streams. So: every descriptor is
// closed in forked children, before fork() returns there; shared memory with data of the
// application is replaced by a private copy; and objects made before the fork can ask whether they
// still belong to this process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace smd {

// How many forks lie between the process that loaded this library and this one.
std::uint64_t forkGeneration() noexcept;

// Whether an object that noted forkGeneration() when it was made has been inherited through a fork:
// its threads do not exist here, its descriptors are closed, its locks may be held for ever.
inline bool isForkedChild(std::uint64_t generation) noexcept {
  return generation != forkGeneration();
}

// While one exists no fork happens in this process, and there is one at a time: held from the
// system call that makes a descriptor until it is registered, so that no child can inherit it
// unnoticed, and instead of a mutex where a child must find whole what it guards. Keep it short, do
// not nest it, and do not call fork() under it.
class ForkGuard {
 public:
  ForkGuard() noexcept;
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
};

// Descriptors that forked children close. The guard is the proof that no fork is under way.
// A descriptor that is registered must be unregistered before it is closed.
void registerDescriptor(int fd, const ForkGuard& guard) noexcept;
void unregisterDescriptor(int fd, const ForkGuard& guard) noexcept;

// Shared memory that the application's own data lies in, and that children must not write through,
// so they do not inherit the mapping (MADV_DONTFORK). Instead each gets a private one in its place,
// as after any fork: what it writes is its own. What the parent writes later may be seen in pages
// that the child has not written to.
//
// `address` maps `bytes` of `fd`, a registered descriptor, from `offset` on. Best effort: beyond
// some thousand ranges, or where the kernel has no room, the child has no memory there, and
// touching it ends the child.
void registerPrivateCopy(void* address, std::size_t bytes, int fd, off_t offset,
                         const ForkGuard& guard) noexcept;
// [address, address + bytes), whole pages of one registered range, is this process's own memory
// from now on: children inherit it as they do any other. False, and nothing is changed, if there is
// no room to note that.
bool exceptFromPrivateCopy(void* address, std::size_t bytes, const ForkGuard& guard) noexcept;
// All of [address, address + bytes). Before the range is unmapped.
void unregisterPrivateCopies(void* address, std::size_t bytes, const ForkGuard& guard) noexcept;

}  // namespace smd
