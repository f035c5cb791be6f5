// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Where tensors lie side by side as one bucket: in memory that all ranks share where there is such
// memory, else in ordinary memory. Fresh pages for 25 MiB cost more than to reduce them, and steps
// of a training loop ask for the same sizes again and again: what comes back is kept, until no step
// has needed it for a while. A thread gives it back then; it is there only while something is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>

#include "common/clock.h"
#include "common/fork.h"
#include "plugin_api/group.h"

namespace smd::tensorflow_ops {

// Of one group. Safe to use from any thread, and in a forked child, where memory of the parent's is
// neither given out nor kept.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  // Begins on a cache line, as TensorFlow wants it.
  class Lease;
  // Longer than most steps take; what is needed less often may as well be fresh.
  static constexpr nanoseconds kIdleTime = std::chrono::seconds(60);

  explicit MemoryPool(std::shared_ptr<plugin_api::Group> group, nanoseconds idleTime = kIdleTime)
      : group_(std::move(group)), idleTime_(idleTime) {}

  // Memory of at least `bytes` bytes, with whatever was last written there. Throws bad_alloc.
  std::shared_ptr<Lease> take(std::size_t bytes);
  // Nothing is kept any more: the group is closed.
  void close();
  std::size_t keptBytes() const;

 private:
  struct Block {
    std::shared_ptr<std::byte> data;
    std::size_t size = 0;
    TimePoint since = {};  // it has been kept
  };
  // Lists, so that blocks change hands without an allocation, which could fail.
  using Blocks = std::list<Block>;
  Block allocate(std::size_t bytes);
  void giveBack(Blocks&& one) noexcept;
  void expire(TimePoint now, Blocks& expired) noexcept;
  static void expireLater(const std::weak_ptr<MemoryPool>& pool) noexcept;
  std::optional<nanoseconds> expireNow() noexcept;

  const std::shared_ptr<plugin_api::Group> group_;
  const nanoseconds idleTime_;
  const std::uint64_t generation_ = forkGeneration();
  // What follows is guarded by ForkGuard: so a child finds it whole, and nobody in it.
  Blocks kept_;             // the one that came back last first
  bool hasShared_ = false;  // some memory of the group was to be had
  bool isClosed_ = false;
  bool hasThread_ = false;  // one that gives back what is no longer needed
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

}  // namespace smd::tensorflow_ops
