// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The capability of a transport that can load and store in a peer's memory: what the ranks of one
// host share. Algorithms see only this view; transport/shm/region.h makes and maps it.
//
// Who writes what: everything in a RankCells, a slot or a staging buffer is written by its owner
// alone (a Doorbell also by those who ring it) and read by all. An arena holds buffers of the
// owner's application: peers read from and write into those that take part in an operation, between
// beginUsingPeers() and endUsingPeers(), for as long as their owners have not withdrawn them.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "common/flight_ring.h"
#include "common/futex.h"
#include "common/signature.h"

namespace smd::transport {

inline constexpr std::size_t kInlineBytes = 24;
inline constexpr std::size_t kSlotBytes = std::size_t{64} << 10;
// Of each rank: where all are on one host, and where what is staged crosses to other hosts too.
inline constexpr std::size_t kStagingBytes = std::size_t{1} << 20;
inline constexpr std::size_t kCrossingStagingBytes = std::size_t{8} << 20;

// How a rank enters an operation: one cache line carries the sequence number, the signature that
// must match and, if it is tiny, the data. Two lines alternate by sequence number: a rank can reach
// operation s + 2 only after every peer has arrived at s + 1, so has finished reading line s.
struct alignas(64) ArrivalLine {
  std::atomic<std::uint64_t> sequence{0};
  Signature signature;
  std::byte payload[kInlineBytes] = {};
};
static_assert(sizeof(ArrivalLine) == 64);

enum class Presence : std::uint32_t { kAbsent = 0, kPresent = 1, kLeft = 2 };

struct RankCells {
  ArrivalLine arrivals[2];
  // Progress through the blocks of staged operations; counts on from one operation to the next.
  alignas(64) std::atomic<std::uint64_t> contributed{0};  // my blocks that peers may read
  alignas(64) std::atomic<std::uint64_t> reduced{0};    // my shares that are reduced and published
  alignas(64) std::atomic<std::uint64_t> consumed{0};   // blocks of peers I will not read again
  alignas(64) std::atomic<std::uint64_t> completed{0};  // sequence of my last finished operation
  std::atomic<Presence> presence{Presence::kAbsent};
  std::atomic<int> processor{-1};  // on which I last came here
  Doorbell bell;
  // A line each: the first changes with every piece moved, the second, read just as often, once.
  alignas(64) std::atomic<std::uint32_t> usesPeers{0};    // I am at peers' buffers
  alignas(64) std::atomic<std::uint32_t> isWithdrawn{0};  // nobody may touch mine any more
  FlightBoard flight;  // my last operations, for reports of others
};

// The first error of a group: the rank that swaps `state` from 0 to 1 writes it, then sets 2.
struct AbortBlock {
  static constexpr std::size_t kTextBytes = 3072;
  std::atomic<std::uint32_t> state{0};
  std::uint32_t kind = 0;
  std::uint64_t unfinished = 0;  // the first collective that the rank which failed did not complete
  Signature during;              // the collective in which it failed; sequence 0: in none
  char text[kTextBytes] = {};
};

// Indices are positions within the host's part of the group (0 .. size-1), in rank order.
class PeerMemory {
 public:
  // `arenaBytes` 0: there are none.
  PeerMemory(int index, int size, AbortBlock* abort, std::byte* cells, std::size_t cellsStride,
             std::byte* slots, std::byte* staging, std::size_t stagingBytes, std::byte* arenas,
             std::size_t arenaBytes)
      : index_(index),
        size_(size),
        abort_(abort),
        cells_(cells),
        cellsStride_(cellsStride),
        slots_(slots),
        staging_(staging),
        stagingBytes_(stagingBytes),
        arenas_(arenas),
        arenaBytes_(arenaBytes) {}

  int index() const { return index_; }
  int size() const { return size_; }
  AbortBlock& abortBlock() const { return *abort_; }

  RankCells& cells(int peer) const {
    return *reinterpret_cast<RankCells*>(cells_ + static_cast<std::size_t>(peer) * cellsStride_);
  }
  RankCells& mine() const { return cells(index_); }
  ArrivalLine& arrival(int peer, std::uint64_t sequence) const {
    return cells(peer).arrivals[sequence & 1];
  }
  // kSlotBytes for the payload of one arrival that does not fit inline.
  std::byte* slot(int peer, std::uint64_t sequence) const {
    return slots_ + (static_cast<std::size_t>(peer) * 2 + (sequence & 1)) * kSlotBytes;
  }
  // Through which large buffers pass block by block.
  std::byte* staging(int peer) const {
    return staging_ + static_cast<std::size_t>(peer) * stagingBytes_;
  }

  // Where a rank's shared buffers lie (transport/shm/arena.h gives them out).
  std::byte* arena(int peer) const {
    return arenas_ + static_cast<std::size_t>(peer) * arenaBytes_;
  }
  std::size_t arenaBytes() const { return arenaBytes_; }
  bool isInArena(std::uint64_t offset, std::uint64_t bytes) const {
    return offset <= arenaBytes_ && bytes <= arenaBytes_ - offset;
  }
  // Where in my arena [data, data + bytes) lies, if it lies there.
  std::optional<std::uint64_t> offsetInArena(const std::byte* data, std::uint64_t bytes) const {
    const auto at = reinterpret_cast<std::uintptr_t>(data);
    const auto begin = reinterpret_cast<std::uintptr_t>(arena(index_));
    if (at < begin || !isInArena(at - begin, bytes)) return std::nullopt;
    return at - begin;
  }

  static constexpr int kAll = -1;  // instead of a peer

  // Announce, then look; withdrawBuffers() withdraws, then looks: so either this rank sees that it
  // may not touch the buffers of `owner` (kAll: of any rank), or the one that withdraws them sees
  // that it does. False: touch nothing, now or later.
  bool beginUsingPeers(int owner = kAll) const {
    mine().usesPeers.store(1, std::memory_order_seq_cst);
    if (!isAnyWithdrawn(owner)) return true;
    endUsingPeers();
    return false;
  }
  void endUsingPeers() const { mine().usesPeers.store(0, std::memory_order_release); }
  // Whether `owner`, or any rank, has withdrawn its buffers. False: what was read from them before
  // was theirs to be read.
  bool haveWithdrawn(int owner = kAll) const {
    fullFence();  // what was read, then the look
    return isAnyWithdrawn(owner);
  }
  // What becomes of a peer that still uses this rank's buffers.
  enum class Wait : std::uint8_t {
    kGoesOn,
    kIsNeedless,  // it has died, or will not touch them
    kHasEnded,    // it may touch them yet, whenever it goes on
  };
  // From when it returns nobody uses this rank's buffers; false: except peers for which it did
  // not wait to the end. May be called again, to go on waiting.
  bool withdrawBuffers(const std::function<Wait(int peer)>& waitFor) const {
    mine().isWithdrawn.store(1, std::memory_order_seq_cst);
    bool areUnused = true;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == index_) continue;
      Wait wait = Wait::kGoesOn;
      while (cells(peer).usesPeers.load(std::memory_order_seq_cst) != 0 &&
             (wait = waitFor(peer)) == Wait::kGoesOn) {
        sched_yield();  // it may need this processor to get to the end of its piece
      }
      if (wait == Wait::kHasEnded) areUnused = false;
    }
    return areUnused;
  }

  // Whether a peer last came here on this processor; negative: it is not known.
  bool hasPeerOn(int processor) const {
    if (processor < 0) return false;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == index_) continue;
      if (cells(peer).processor.load(std::memory_order_relaxed) == processor) return true;
    }
    return false;
  }

  // Call after a store that peers may be asleep waiting for.
  void ringPeers() const {
    fullFence();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != index_) cells(peer).bell.ringIfAsleep();
    }
  }

 private:
  bool isAnyWithdrawn(int owner) const {
    const int begin = owner == kAll ? 0 : owner;
    const int end = owner == kAll ? size_ : owner + 1;
    for (int peer = begin; peer < end; ++peer) {
      if (cells(peer).isWithdrawn.load(std::memory_order_seq_cst) != 0) return true;
    }
    return false;
  }

  int index_;
  int size_;
  AbortBlock* abort_;
  std::byte* cells_;
  std::size_t cellsStride_;
  std::byte* slots_;
  std::byte* staging_;
  std::size_t stagingBytes_;
  std::byte* arenas_;
  std::size_t arenaBytes_;
};

}  // namespace smd::transport
