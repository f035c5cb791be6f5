// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Where tensors are packed side by side to be reduced as one: in memory that all ranks share where
// there is such memory, else in ordinary memory. Fresh pages for 25 MiB cost more than to reduce
// them, and steps of a training loop ask for the same sizes again and again: what comes back is
// kept.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "seam/group.h"

namespace smd::tensorflow {

// Of one group. Safe to use from any thread.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  // Begins on a cache line, as TensorFlow wants it.
  class Lease;
  // At most so many bytes are kept while nobody uses them.
  static constexpr std::size_t kKeptBytes = std::size_t{256} << 20;

  explicit MemoryPool(std::shared_ptr<seam::Group> group) : group_(std::move(group)) {}

  // Memory of at least `bytes` bytes, with whatever was last written there. Throws bad_alloc.
  std::shared_ptr<Lease> take(std::size_t bytes);
  // Nothing is kept any more: the group is closed.
  void close();
  std::size_t keptBytes();

 private:
  struct Block {
    std::shared_ptr<std::byte> data;
    std::size_t size = 0;
  };
  // Lists, so that blocks change hands without an allocation, which could fail.
  using Blocks = std::list<Block>;
  Block allocate(std::size_t bytes);
  void giveBack(Blocks&& one) noexcept;

  const std::shared_ptr<seam::Group> group_;
  std::mutex mutex_;  // guards what follows
  Blocks kept_;       // the one that came back last first
  std::size_t keptBytes_ = 0;
  bool hasShared_ = false;  // some memory of the group was to be had
  bool isClosed_ = false;
};

// Goes back when the last reference goes, on any thread.
class MemoryPool::Lease {
 public:
  Lease(std::weak_ptr<MemoryPool> pool, Blocks&& one)
      : pool_(std::move(pool)), block_(std::move(one)) {}
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  std::byte* data() const { return block_.front().data.get(); }
  // It is freed rather than kept: an operation on it has failed, and a peer that has not noticed
  // may still write there.
  void discard() { isDiscarded_ = true; }

 private:
  const std::weak_ptr<MemoryPool> pool_;
  Blocks block_;  // one
  bool isDiscarded_ = false;
};

}  // namespace smd::tensorflow
