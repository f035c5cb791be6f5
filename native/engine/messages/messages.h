// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages of unknown size from anybody: a header, and a body put together from segments. Nobody
// posts a receive for them; they are taken in the order in which they have arrived. What carries
// the requests, activations and gradients of a pipeline, where a rank serves whatever comes next.
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
// Who owns a block: the sender's process, from the arena's point of view all the time. From when it
// has been sent until `released` is set it must neither be written nor given back, whatever happens
// to either communicator: the body in it may outlive both. A sender that goes meanwhile leaves it
// to the region, which goes with the last process that maps it.
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

// Of a body and of each segment in it.
inline constexpr std::size_t kSegmentAlignment = transport::kMessageAlignment;

// Memory that becomes a part of a body.
struct Segment {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

// Of the body that they make: segment i + 1 begins at the first multiple of kSegmentAlignment at or
// behind the end of segment i. Throws Error(kConfiguration) for more than a frame may hold.
std::uint64_t bodyBytes(std::span<const Segment> segments);

// At the beginning of a block: whether its receiver is through with it.
struct alignas(kSegmentAlignment) BlockControl {
  std::atomic<std::uint32_t> isReleased{0};
};

struct ReleaseBlock {
  void operator()(BlockControl* block) const;
  std::shared_ptr<transport::shm::Region> region;  // keeps it mapped
  std::uint64_t generation = 0;
};

// A message that has arrived. Its memory is let go of on destruction: on any thread, at any time,
// and in a forked child (which has a private copy) without effect on the sender.
class Message {
 public:
  // `frame` as it came; `region` and `localRanks` of this rank's host, to find blocks. Throws
  // Error(kInternal) for what no sender of ours would say.
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
  // It is about to be sent: it comes back once it is released.
  void lend(Buffer block);
  // Of blocks that receivers have not released.
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

  // All is copied when it returns. kLeft: a part is still here, of which there was nothing before:
  // somebody must poll the mailbox and sweep() until hasUnsent() is false. kFailed: the peer cannot
  // be reached any more. Throws Error(kConfiguration) above the limit.
  enum class Posted { kDone, kLeft, kFailed };
  Posted post(int peer, std::span<const std::byte> header, std::span<const Segment> segments);
  bool hasUnsent() const { return numUnsent_.load(std::memory_order_acquire) != 0; }
  // Lets go of what has gone out meanwhile, or never will. Returns whether there was any.
  bool sweep();
  // Of messages that were posted here: what has not been taken where they go, and blocks that have
  // been and are not released.
  std::uint64_t heldBytes();
  // To whom something is still to go.
  std::vector<int> unsentTo();

  std::optional<Message> take();

  // The transports are closed: what has not been taken is let go of.
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
