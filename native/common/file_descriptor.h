// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A file descriptor with an owner. Every descriptor of the engine lives in one of these, so that
// each is closed once here and at once in forked children (common/fork.h).
#pragma once

#include <cstdint>
#include <utility>

#include "common/fork.h"

namespace smd {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  // Takes over `fd`; a negative one means none. Prefer fromCall(), which leaves no moment in which
  // a forked child could inherit the descriptor.
  explicit FileDescriptor(int fd) noexcept;
  ~FileDescriptor() { reset(); }

  FileDescriptor(FileDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      generation_ = other.generation_;
    }
    return *this;
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  // Owns what `open()` returns (socket, accept4, eventfd, ...; it must not block and should ask for
  // close-on-exec). Empty if that is negative; errno is then as open() left it.
  template <typename Open>
  static FileDescriptor fromCall(Open&& open) {
    const ForkGuard guard;
    return FileDescriptor(std::forward<Open>(open)(), guard);
  }

  int get() const noexcept { return fd_; }
  bool isOpen() const noexcept { return fd_ >= 0; }
  // False in a child forked since it was opened.
  bool isOwnedHere() const noexcept { return isOpen() && !isForkedChild(generation_); }

  // Closes. In a forked child the number may already belong to somebody else: nothing happens
  // there.
  void reset() noexcept;
  // Gives the descriptor up without closing it; forked children will no longer close it either.
  int release() noexcept;

 private:
  FileDescriptor(int fd, const ForkGuard& guard) noexcept;

  int fd_ = -1;
  std::uint64_t generation_ = 0;
};

// Lets this process open as many files as the system allows it to, but no more than programs that
// it starts can be expected to close one by one. Many groups of many ranks need more than the usual
// 1,024, which stands for those that use select().
void raiseDescriptorLimit() noexcept;

}  // namespace smd
