// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/messages/messages.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "kernels/kernels.h"
#include "kernels/stream.h"

namespace smd::engine {
namespace {

using transport::FrameHeader;

// Of FrameHeader::signature.detail. FrameHeader::tag says how long the message's header is.
enum Form : std::uint64_t {
  kOnePiece = 0,
  kAboutBlock = 1,
};

struct Place {
  std::uint64_t offset = 0;  // of the block, in the sender's arena
  std::uint64_t bytes = 0;   // of the body in it
};

// From here on a block costs less than to pass through a ring, where a message is copied three
// times: of 1, 4, 8 and 16 KiB one way took 1.5, 2.2, 3.1 and 5.0 us through a ring, and 2.1 us in
// a block of 16 KiB. Each block takes whole pages, however long its receiver keeps it.
constexpr std::uint64_t kBlockFrom = std::uint64_t{8} << 10;
// Blocks come in eight sizes for each power of two, so that bodies of about one size share them.
constexpr int kSizesPerOctaveBits = 3;
// A larger one than that is left for a larger body.
constexpr std::uint64_t kMostWaste = 4;  // a quarter
// Lent blocks looked at in each post: a cache line of the receiver's each.
constexpr std::size_t kLooks = 16;
// Steps of a training loop need the same blocks again: to get one of 1 MiB from the arena takes as
// long as to fill it, one of 100 MiB ten times as long. What no step needed goes back.
constexpr nanoseconds kIdleTime = std::chrono::seconds(60);

constexpr std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
}

std::uint64_t blockBytes(std::uint64_t bytes) {
  const std::uint64_t needed = sizeof(BlockControl) + bytes;
  const int bits = static_cast<int>(std::bit_width(needed)) - 1 - kSizesPerOctaveBits;
  const std::uint64_t unit = bits > 0 ? std::uint64_t{1} << bits : 1;
  return (needed + unit - 1) / unit * unit;
}

// The one copy. Gaps are zeros: what lies there is not for others to see.
void gather(std::byte* to, std::span<const Segment> segments, bool isStreamed) {
  std::uint64_t end = 0;
  for (const Segment& segment : segments) {
    const std::uint64_t begin = aligned(end);
    if (begin != end) std::memset(to + end, 0, begin - end);
    if (segment.bytes != 0) {
      if (isStreamed) {
        kernels::copyStreaming(to + begin, segment.data, segment.bytes);
      } else {
        kernels::copy(to + begin, segment.data, segment.bytes);
      }
    }
    end = begin + segment.bytes;
  }
}

void append(std::byte* to, std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

BlockControl* controlOf(const MessageBlocks::Buffer& block) {
  return reinterpret_cast<BlockControl*>(block->data());
}

bool isReleased(const MessageBlocks::Buffer& block) {
  // What the receiver did with the body comes before what is written there next.
  return controlOf(block)->isReleased.load(std::memory_order_acquire) != 0;
}

[[noreturn]] void refuse(const transport::MessageFrame& frame, const std::string& what) {
  throw Error(ErrorKind::kInternal,
              "rank " + std::to_string(frame.source) + " sent a message of " +
                  std::to_string(frame.header.length) + " bytes " + what +
                  "; expected one as this release makes them. All ranks must run the same "
                  "release of smdistributed; look for a stray write to memory there.");
}

}  // namespace

std::uint64_t bodyBytes(std::span<const Segment> segments) {
  std::uint64_t end = 0;
  for (const Segment& segment : segments) {
    if (segment.bytes > transport::kMaxFrameBytes ||
        aligned(end) + segment.bytes > transport::kMaxFrameBytes) {
      throw Error(ErrorKind::kConfiguration,
                  "a message of more than " + std::to_string(transport::kMaxFrameBytes) +
                      " bytes was posted; expected less. Check the sizes of its segments.");
    }
    end = aligned(end) + segment.bytes;
  }
  return end;
}

// --- what has arrived ----------------------------------------------------------------------------

Message::Message(transport::MessageFrame frame,
                 const std::shared_ptr<transport::shm::Region>& region,
                 std::span<const int> localRanks)
    : frame_(std::move(frame)) {
  const FrameHeader& header = frame_.header;
  const std::span<std::byte> whole(frame_.data.get(), header.length);
  const std::uint64_t headerBytes = header.tag;
  if (headerBytes > whole.size()) refuse(frame_, "with a header longer than itself");
  if (header.signature.detail == kOnePiece) {
    body_ = whole.first(whole.size() - headerBytes);
    header_ = whole.last(headerBytes);
    return;
  }
  const auto known = std::ranges::lower_bound(localRanks, frame_.source);
  const bool isLocal = known != localRanks.end() && *known == frame_.source;
  if (header.signature.detail != kAboutBlock || region == nullptr || !isLocal ||
      whole.size() != sizeof(Place) + headerBytes) {
    refuse(frame_, "in a form that it cannot have");
  }
  Place place;
  std::memcpy(&place, whole.data(), sizeof place);
  header_ = whole.last(headerBytes);
  const auto position = static_cast<int>(known - localRanks.begin());
  const transport::PeerMemory memory = region->view(position);
  if (place.bytes > memory.arenaBytes() || place.offset % kSegmentAlignment != 0 ||
      !memory.isInArena(place.offset, sizeof(BlockControl) + place.bytes)) {
    refuse(frame_, "about " + std::to_string(place.bytes) + " bytes at " +
                       std::to_string(place.offset) + " of its shared memory, where nothing is");
  }
  std::byte* block = memory.arena(position) + place.offset;
  block_ = std::unique_ptr<BlockControl, ReleaseBlock>(reinterpret_cast<BlockControl*>(block),
                                                       ReleaseBlock{region, forkGeneration()});
  body_ = {block + sizeof(BlockControl), place.bytes};
}

void ReleaseBlock::operator()(BlockControl* block) const {
  if (isForkedChild(generation)) return;
  block->isReleased.store(1, std::memory_order_release);
}

// --- blocks --------------------------------------------------------------------------------------

MessageBlocks::MessageBlocks(std::shared_ptr<transport::shm::Arena> arena)
    : arena_(std::move(arena)) {}

MessageBlocks::~MessageBlocks() {
  for (const Buffer& block : lent_) {
    if (!isReleased(block)) block->leaveTaken();
  }
}

MessageBlocks::Buffer MessageBlocks::take(std::uint64_t bytes) {
  if (arena_ == nullptr) return nullptr;
  const std::uint64_t size = blockBytes(bytes);
  std::vector<Buffer> unneeded;  // goes to the arena without the lock
  {
    const std::lock_guard lock(mutex_);
    const TimePoint now = Clock::now();
    collect(kLooks, now);
    if (Buffer block = fromIdle(size)) {
      expire(now - kIdleTime, unneeded);
      return block;
    }
    collect(lent_.size(), now);  // before there is another one
    if (Buffer block = fromIdle(size)) return block;
    expire(now - kIdleTime, unneeded);
  }
  unneeded.clear();
  Buffer block = arena_->allocate(size, transport::shm::Contents::kAny);
  if (block == nullptr) {  // perhaps for want of what lies idle here
    trim();
    block = arena_->allocate(size, transport::shm::Contents::kAny);
    if (block == nullptr) return nullptr;
  }
  new (block->data()) BlockControl{};
  return block;
}

void MessageBlocks::lend(Buffer block) {
  const std::lock_guard lock(mutex_);
  lent_.push_back(std::move(block));
}

std::uint64_t MessageBlocks::lentBytes() {
  const std::lock_guard lock(mutex_);
  collect(lent_.size(), Clock::now());
  std::uint64_t bytes = 0;
  for (const Buffer& block : lent_) bytes += block->size();
  return bytes;
}

void MessageBlocks::trim() {
  std::vector<Buffer> unneeded;
  const std::lock_guard lock(mutex_);
  collect(lent_.size(), Clock::now());
  expire(TimePoint::max(), unneeded);
}

// The one released last: its lines are the likeliest to be in a cache, and a receiver that has had
// it before has its pages mapped. Caller holds mutex_, from here on.
MessageBlocks::Buffer MessageBlocks::fromIdle(std::uint64_t size) {
  const auto found = std::ranges::find_if(idle_.rbegin(), idle_.rend(), [size](const Idle& idle) {
    const std::uint64_t there = idle.block->size();
    return there >= size && there - size <= size / kMostWaste;
  });
  if (found == idle_.rend()) return nullptr;
  Buffer block = std::move(found->block);
  idle_.erase(std::prev(found.base()));
  controlOf(block)->isReleased.store(0, std::memory_order_relaxed);
  return block;
}

void MessageBlocks::collect(std::size_t most, TimePoint now) {
  for (std::size_t looks = std::min(most, lent_.size()); looks > 0; --looks) {
    if (nextLook_ >= lent_.size()) nextLook_ = 0;
    if (!isReleased(lent_[nextLook_])) {
      ++nextLook_;
      continue;
    }
    idle_.push_back({lent_[nextLook_], now});
    lent_[nextLook_] = lent_.back();
    lent_.pop_back();
  }
}

// Those that have been idle for longest are the first.
void MessageBlocks::expire(TimePoint before, std::vector<Buffer>& unneeded) {
  const auto end =
      std::ranges::find_if(idle_, [before](const Idle& idle) { return idle.since >= before; });
  for (auto it = idle_.begin(); it != end; ++it) unneeded.push_back(std::move(it->block));
  idle_.erase(idle_.begin(), end);
}

// --- sending and receiving -----------------------------------------------------------------------

Messages::Messages(transport::Mailbox& mailbox, const Membership& membership, int rank,
                   std::shared_ptr<transport::shm::Arena> arena, std::uint64_t limit)
    : mailbox_(mailbox),
      region_(membership.region),
      localRanks_(membership.localRanks),
      blocks_(std::move(arena)),
      limit_(limit) {
  if (region_ == nullptr || !region_->mapsArenas()) return;
  const auto self = std::ranges::lower_bound(localRanks_, rank) - localRanks_.begin();
  arenaBegin_ = region_->view(static_cast<int>(self)).arena(static_cast<int>(self));
}

Messages::~Messages() {
  if (!isForkedChild(generation_)) close();
}

Messages::Posted Messages::post(int peer, std::span<const std::byte> header,
                                std::span<const Segment> segments) {
  const std::uint64_t bytes = bodyBytes(segments);
  if (limit_ != 0) requireBelowLimit(peer, bytes + header.size());
  FrameHeader frame;
  frame.channel = transport::Channel::kMessage;
  frame.tag = header.size();
  MessageBlocks::Buffer block;
  if (bytes >= kBlockFrom && std::ranges::binary_search(localRanks_, peer)) {
    block = blocks_.take(bytes);
  }
  if (block == nullptr) {
    frame.signature.detail = kOnePiece;
    frame.length = bytes + header.size();
    transport::FrameMemory data = transport::frameMemory(frame.length);
    gather(data.get(), segments, false);
    append(data.get() + bytes, header);
    return send(peer, frame, std::move(data));
  }
  // It is read once more, by the receiver.
  gather(block->data() + sizeof(BlockControl), segments, kernels::shouldStream(2 * bytes));
  const Place place{static_cast<std::uint64_t>(block->data() - arenaBegin_), bytes};
  frame.signature.detail = kAboutBlock;
  frame.length = sizeof place + header.size();
  transport::FrameMemory data = transport::frameMemory(frame.length);
  std::memcpy(data.get(), &place, sizeof place);
  append(data.get() + sizeof place, header);
  blocks_.lend(std::move(block));
  return send(peer, frame, std::move(data));
}

void Messages::requireBelowLimit(int peer, std::uint64_t bytes) {
  const std::uint64_t held = heldBytes();
  if (held == 0 || held + bytes <= limit_) return;
  throw Error(
      ErrorKind::kConfiguration,
      std::to_string(held) +
          " bytes of messages are here that other ranks have not taken, or on this host still use, "
          "and this one for rank " +
          std::to_string(peer) + " has " + std::to_string(bytes) + "; expected at most " +
          std::to_string(limit_) +
          " (SMDDP_MESSAGE_LIMIT_MB). Look why those ranks are behind or what they keep, post less "
          "at a time, or raise the limit.");
}

std::uint64_t Messages::heldBytes() {
  std::uint64_t bytes = blocks_.lentBytes();
  const std::lock_guard lock(mutex_);
  for (const Unsent& unsent : unsent_) {
    if (unsent.ticket.state() == transport::SendTicket::State::kPending) bytes += unsent.bytes;
  }
  return bytes;
}

Messages::Posted Messages::send(int peer, const FrameHeader& header, transport::FrameMemory data) {
  using transport::SendTicket;
  // Made before it is sent: from then on the ticket must stay where it is.
  std::list<Unsent> one;
  Unsent& unsent = one.emplace_back();
  unsent.peer = peer;
  unsent.bytes = header.length;
  unsent.data = std::move(data);
  mailbox_.send(peer, header, unsent.data.get(), &unsent.ticket);
  switch (unsent.ticket.state()) {
    case SendTicket::State::kSent:
      return Posted::kDone;
    case SendTicket::State::kFailed:
      return Posted::kFailed;
    case SendTicket::State::kPending:
      break;
  }
  const std::lock_guard lock(mutex_);
  unsent_.splice(unsent_.end(), one);
  return numUnsent_.fetch_add(1, std::memory_order_release) == 0 ? Posted::kLeft : Posted::kDone;
}

bool Messages::sweep() {
  std::list<Unsent> gone;
  const std::lock_guard lock(mutex_);
  for (auto it = unsent_.begin(); it != unsent_.end();) {
    const auto next = std::next(it);
    if (it->ticket.state() != transport::SendTicket::State::kPending) {
      gone.splice(gone.end(), unsent_, it);
    }
    it = next;
  }
  numUnsent_.fetch_sub(gone.size(), std::memory_order_release);
  return !gone.empty();
}

std::vector<int> Messages::unsentTo() {
  std::vector<int> peers;
  const std::lock_guard lock(mutex_);
  for (const Unsent& unsent : unsent_) peers.push_back(unsent.peer);
  return peers;
}

std::optional<Message> Messages::take() {
  std::optional<transport::MessageFrame> frame = mailbox_.takeMessage();
  if (!frame) return std::nullopt;
  return Message(std::move(*frame), region_, localRanks_);
}

void Messages::close() {
  for (;;) {
    try {
      if (!take()) break;
    } catch (const Error&) {  // it does not matter any more
    }
  }
  sweep();
  blocks_.trim();
}

}  // namespace smd::engine
