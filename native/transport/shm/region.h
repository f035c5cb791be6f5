// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory that the ranks of one host share for one communicator: an anonymous memfd, so nothing
// is left behind whatever happens, and Docker's small /dev/shm does not matter. Pages cost memory
// only once touched: about 1 MiB of staging + 2 kSlotBytes per rank, plus the rings that carry
// point-to-point messages (size^2 rings of kRingBytes, each only if used), plus what is allocated
// in the arenas (arena.h; how large they may become is in arena_size.h).
#pragma once

#include <cstddef>
#include <memory>

#include "common/file_descriptor.h"
#include "transport/peer_memory.h"

namespace smd::transport::shm {

inline constexpr std::size_t kRingBytes = std::size_t{128} << 10;

// One direction of point-to-point messages between two ranks: a byte stream.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written{0};      // by the sender
  alignas(64) std::atomic<std::uint64_t> read{0};         // by the receiver
  alignas(64) std::atomic<std::uint32_t> senderWaits{0};  // the sender has more than fits
};

class Region {
 public:
  // Makes a region for `size` ranks; its descriptor is handed to the peers (attach.h). Without
  // arenas if `arenaBytes`, of each, is 0 or if the address space has no room for them.
  // `stagingBytes` of each too.
  static std::shared_ptr<Region> create(int size, std::size_t arenaBytes = 0,
                                        std::size_t stagingBytes = kStagingBytes);
  // Maps a peer's region. Takes the descriptor. Ranks that are threads of one process share one
  // mapping (that is how ThreadSanitizer sees them). Throws if it is not a region for `size` ranks.
  static std::shared_ptr<Region> attach(FileDescriptor descriptor, int size);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Bytes of a region for `size` ranks without its arenas.
  static std::size_t bytesWithoutArenas(int size, std::size_t stagingBytes = kStagingBytes);

  int descriptor() const { return descriptor_.get(); }
  int size() const { return size_; }
  // Whether they are mapped here. Peers may lack the address space for them: ask all before use.
  bool mapsArenas() const { return arenaBytes_ != 0; }
  PeerMemory view(int index) const;
  // Replaces the pages of [data, data + bytes), in an arena, by copies that only this process (all
  // its ranks) and its children see. What peers write there from now on goes nowhere; what threads
  // of this process write meanwhile is kept. False if there is no memory: some may be shared still.
  bool makePrivate(std::byte* data, std::size_t bytes);
  // Gives pages of an arena to the system, whole ones, those that makePrivate has made included.
  // False if what lies there may be there still.
  bool returnPages(std::byte* data, std::size_t bytes) const;
  RingControl& ringControl(int from, int to) const;
  std::byte* ringData(int from, int to) const;

 private:
  Region(FileDescriptor descriptor, int size, std::size_t stagingBytes, std::byte* base,
         std::size_t arenaBytes);
  std::size_t ringOffset(int from, int to) const;

  FileDescriptor descriptor_;
  int size_;
  std::size_t stagingBytes_;
  std::byte* base_;
  std::size_t arenaBytes_;  // of each rank, as mapped here
};

}  // namespace smd::transport::shm
