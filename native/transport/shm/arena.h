// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Buffers of the application in the memory that the ranks of a host share: what lies there can be
// reduced in place, without being copied through staging buffers (algorithms/one_host/shared.cc).
//
// Each rank allocates from its own arena, by first fit; which parts are free is known to the owner
// alone, in private memory, so that no peer can spoil it. A buffer keeps the region mapped, so it
// outlives the communicator that it came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "common/fork.h"
#include "transport/shm/range_set.h"
#include "transport/shm/region.h"

namespace smd::transport::shm {

class SharedBuffer;

enum class Contents { kZeros, kAny };

// Safe to use from any thread.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // The arena of position `index`. The region must map arenas.
  static std::shared_ptr<Arena> create(std::shared_ptr<Region> region, int index);

  // `bytes` bytes, at the start of a page; null if there is no room or the arena is retired. Zeros,
  // or whatever this rank's earlier buffers have left there. Its pages are there when it returns:
  // no memory is told here, not by a signal at first touch.
  std::shared_ptr<SharedBuffer> allocate(std::size_t bytes, Contents contents = Contents::kZeros);

  // Nothing is given out any more, and addresses that come back are not used again, but their pages
  // go to the system: the group has failed, and a peer that has not noticed (one that is stopped)
  // may still write where a buffer was.
  void retire() noexcept;
  // Of a retired arena: takes [data, data + bytes) of a buffer away from peers. See Region.
  bool makePrivate(std::byte* data, std::size_t bytes) const {
    return region_->makePrivate(data, bytes);
  }

 private:
  friend class SharedBuffer;
  Arena(std::shared_ptr<Region> region, int index);

  void giveBack(const ByteRange& range);
  bool bringIn(const ByteRange& range) const;
  bool returnPages(const ByteRange& range) const;

  const std::shared_ptr<Region> region_;
  const PeerMemory memory_;
  const std::uint64_t generation_ = forkGeneration();
  std::mutex mutex_;  // guards what follows
  bool isRetired_ = false;
  RangeSet free_;
  RangeSet recycled_;  // the part of free_ that has pages, with what was last written there
};

// Memory of an arena, given back on destruction: on any thread, and in a forked child (which has
// a private copy) without effect.
class SharedBuffer {
 public:
  SharedBuffer(std::shared_ptr<Arena> arena, ByteRange range, std::size_t size);
  ~SharedBuffer();
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  std::byte* data() const;
  std::size_t size() const { return size_; }
  // It is not given back any more: a peer uses it for as long as it likes. It goes with the region.
  void leaveTaken() { isLeft_ = true; }

 private:
  const std::shared_ptr<Arena> arena_;
  const ByteRange range_;  // of the arena; whole pages
  const std::size_t size_;
  bool isLeft_ = false;
};

}  // namespace smd::transport::shm
