// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which memory of a rank's arena its peers may write to, now: the buffer that it has announced in
// the operation under way. Looked at when an operation ends with an error and a peer does not let
// go.
#pragma once

#include <cstddef>
#include <mutex>
#include <span>

namespace smd::algorithms {

// Safe to use from any thread.
class ExposedBuffer {
 public:
  // To be called before the buffer is announced. A thread that has withdrawn this rank's buffers
  // and then finds nothing here knows that no peer will reach a buffer that is announced later.
  void set(std::span<std::byte> buffer) {
    const std::lock_guard lock(mutex_);
    buffer_ = buffer;
  }
  std::span<std::byte> get() {
    const std::lock_guard lock(mutex_);
    return buffer_;
  }

 private:
  std::mutex mutex_;
  std::span<std::byte> buffer_;
};

}  // namespace smd::algorithms
