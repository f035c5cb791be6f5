// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages of unknown size from any rank: a header, and a body made of segments. No rank posts a
// receive for them; a rank takes them in the order in which they have arrived. They carry the
// requests, activations and gradients of a pipeline, where a rank serves whichever comes next.
//
//   one host, large   the sender copies the segments into a block of its arena, and sends a frame
//                     that says where. The receiver uses them there, and marks the block as
//                     released. One copy in all.
//   otherwise         one frame with everything in it, through a ring or over the network. The
//                     memory that it arrives in becomes the message's.
//
//   a block in an arena        a frame of one piece          a frame about a block
//     released (64 bytes)        body                          where: offset, bytes
//     body                       header                        header
//
// Who owns a block: for the arena, always the process of the sender. From the time it is sent until
// `released` is set, the sender must neither write to the block nor give it back, whatever happens
// to either communicator: the body in it may outlive both. If the sender ends meanwhile, the block
// stays in the region, which goes with the last process that maps it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/clock.h"
#include "common/fork.h"
#include "engine/group/bootstrap.h"
#include "transport/mailbox.h"
#include "transport/shm/arena.h"

namespace smd::engine {

// The alignment of a body and of each segment in it.
inline constexpr std::size_t kSegmentAlignment = transport::kMessageAlignment;

// Memory that becomes a part of a body.
struct Segment {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

// The size of the body that `segments` make: segment i + 1 begins at the first multiple of
// kSegmentAlignment at or behind the end of segment i. Throws Error(kConfiguration) for more than a
// frame may hold.
std::uint64_t bodyBytes(std::span<const Segment> segments);

// At the beginning of a block: whether its receiver has released it.
struct alignas(kSegmentAlignment) BlockControl {
  std::atomic<std::uint32_t> isReleased{0};
};

struct ReleaseBlock {
  void operator()(BlockControl* block) const;
  std::shared_ptr<transport::shm::Region> region;  // keeps it mapped
  std::uint64_t generation = 0;
};

// A message that has arrived. Its destructor frees its memory: on any thread, at any time, and in a
// forked child (which has a private copy) without effect on the sender.
class Message {
 public:
  // `frame` as it arrived; `region` and `localRanks` of this rank's host, to find blocks. Throws
  // Error(kInternal) for what no sender of ours would send.
  Message(transport::MessageFrame frame, const std::shared_ptr<transport::shm::Region>& region,
          std::span<const int> localRanks);

  int source() const { return frame_.source; }
  std::span<const std::byte> header() const { return header_; }
  std::span<std::byte> body() const { return body_; }

 private:
  transport::MessageFrame frame_;
  std::unique_ptr<BlockControl, ReleaseBlock> block_;  // null: the body lies in the frame
  std::span<const std::byte> header_;
  std::span<std::byte> body_;
};

// The blocks of one sender. Safe to use from any thread.
class MessageBlocks {
 public:
  using Buffer = std::shared_ptr<transport::shm::SharedBuffer>;

  // `arena` may be null: then there are no blocks.
  explicit MessageBlocks(std::shared_ptr<transport::shm::Arena> arena);
  ~MessageBlocks();
  MessageBlocks(const MessageBlocks&) = delete;
  MessageBlocks& operator=(const MessageBlocks&) = delete;

  // A block for a body of so many bytes, not released; null if there is no room.
  Buffer take(std::uint64_t bytes);
  // `block` is about to be sent. It comes back once it is released.
  void lend(Buffer block);
  // The size of the blocks that receivers have not released.
  std::uint64_t lentBytes();
  // Gives the unused ones back to the arena.
  void trim();

 private:
  struct Idle {
    Buffer block;
    TimePoint since;
  };

  Buffer fromIdle(std::uint64_t size);
  void collect(std::size_t most, TimePoint now);
  void expire(TimePoint before, std::vector<Buffer>& unneeded);

  const std::shared_ptr<transport::shm::Arena> arena_;
  std::mutex mutex_;  // guards what follows
  std::vector<Buffer> lent_;
  std::size_t nextLook_ = 0;  // in lent_
  std::vector<Idle> idle_;    // the one released last is the last
};

// The messages of one communicator. post() may be called by any thread; take() by one at a time.
class Messages {
 public:
  // `arena`: this rank's, if all ranks of its host map arenas, else null. `limit`: of heldBytes(),
  // zero for none.
  Messages(transport::Mailbox& mailbox, const Membership& membership, int rank,
           std::shared_ptr<transport::shm::Arena> arena, std::uint64_t limit = 0);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // Everything is copied when it returns. kLeft: a part could not go out, and nothing was left of
  // earlier messages; so the caller must see to it that the mailbox is polled and sweep() called
  // until hasUnsent() is false. kFailed: the peer cannot be reached any more. Throws
  // Error(kConfiguration) above the limit.
  enum class Posted { kDone, kLeft, kFailed };
  Posted post(int peer, std::span<const std::byte> header, std::span<const Segment> segments);
  bool hasUnsent() const { return numUnsent_.load(std::memory_order_acquire) != 0; }
  // Frees what has gone out meanwhile, or never will. Returns whether there was any.
  bool sweep();
  // The size of the messages that were posted here and that no peer has taken, and of blocks that
  // were taken and are not released.
  std::uint64_t heldBytes();
  // The peers to which something must still go out.
  std::vector<int> unsentTo();

  std::optional<Message> take();

  // The transports are closed: frees the messages that no peer has taken.
  void close();

 private:
  struct Unsent {
    int peer;
    std::uint64_t bytes;
    transport::FrameMemory data;
    transport::SendTicket ticket;
  };
  void requireBelowLimit(int peer, std::uint64_t bytes);
  Posted send(int peer, const transport::FrameHeader& header, transport::FrameMemory data);

  transport::Mailbox& mailbox_;
  const std::shared_ptr<transport::shm::Region> region_;
  const std::vector<int> localRanks_;
  const std::uint64_t generation_ = forkGeneration();
  MessageBlocks blocks_;
  const std::uint64_t limit_;
  const std::byte* arenaBegin_ = nullptr;
  std::atomic<std::size_t> numUnsent_{0};
  std::mutex mutex_;  // guards unsent_
  std::list<Unsent> unsent_;
};

}  // namespace smd::engine
