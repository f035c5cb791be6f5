// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Each ordered pair of ranks has a ring of bytes in the region. The sender streams header and
// payload into it as space allows; the receiver drains it whenever it polls. A message longer than
// the ring flows through in pieces, so sender and receiver copy at the same time.
//
// What is drained goes to a FrameParser: this file knows nothing of frames that arrive. Counters
// are in shared memory, where a stray write of any rank may change them: they are checked before
// they are used. A peer whose ring cannot be read any more is not read from, and the sink is told.
//
// Locks: outgoing_[peer].mutex guards one peer's queue and ring; receiveMutex_ makes one thread at
// a time the receiver. The receiver never holds an outgoing lock while it calls the sink.
#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "transport/frame_parser.h"
#include "transport/shm/factory.h"

namespace smd::transport::shm {
namespace {

class RingTransport final : public Transport {
 public:
  RingTransport(std::shared_ptr<Region> region, int index, std::vector<int> ranks, FrameSink& sink)
      : region_(std::move(region)),
        memory_(region_->view(index)),
        index_(index),
        ranks_(std::move(ranks)),
        sink_(sink),
        outgoing_(ranks_.size()) {
    incoming_.reserve(ranks_.size());
    for (const int rank : ranks_) incoming_.emplace_back(rank, sink);
  }

  void send(int peer, const FrameHeader& header, const void* payload, SendTicket* ticket) override {
    Outgoing& out = outgoing_[static_cast<std::size_t>(positionOf(peer))];
    std::lock_guard lock(out.mutex);
    Pending pending{header, static_cast<const std::byte*>(payload), ticket, 0, {}};
    if (closed_) {
      if (ticket != nullptr) ticket->complete(SendTicket::State::kFailed);
      return;
    }
    const bool wasEmpty = out.queue.empty();
    if (ticket == nullptr && header.length != 0) {
      pending.copy.assign(pending.payload, pending.payload + header.length);
    }
    out.queue.push_back(std::move(pending));  // throws, like the line above it, with nothing done
    if (wasEmpty) push(positionOf(peer), out);
  }

  void expect(int) override {}  // the engine watches the processes of this host itself

  bool poll() override {
    bool moved = false;
    for (int position = 0; position < static_cast<int>(ranks_.size()); ++position) {
      if (position == index_) continue;
      Outgoing& out = outgoing_[static_cast<std::size_t>(position)];
      if (!out.hasMore.load(std::memory_order_relaxed)) continue;
      std::unique_lock lock(out.mutex, std::try_to_lock);
      if (lock.owns_lock() && push(position, out)) {
        moved = true;
        out.hasCompleted = true;
        anyCompleted_ = true;
      }
    }
    do {
      std::unique_lock receiving(receiveMutex_, std::try_to_lock);
      if (!receiving.owns_lock() || closed_) return moved;
      tellCompleted();
      for (int position = 0; position < static_cast<int>(ranks_.size()); ++position) {
        if (position != index_ && drain(position)) moved = true;
      }
      // Once more if another thread completed a send meanwhile and could not get in to tell.
    } while (anyCompleted_);
    return moved;
  }

  void catchUp() override {
    const std::lock_guard receiving(receiveMutex_);
    for (int position = 0; position < static_cast<int>(ranks_.size()) && !closed_; ++position) {
      if (position == index_) continue;
      // Not what comes meanwhile: that may go on for long.
      drain(position, region_->ringControl(position, index_).written.load());
    }
  }

  void close(milliseconds grace, Ending /*peers see the error in the region*/) override {
    const TimePoint deadline = Clock::now() + grace;
    while (Clock::now() < deadline && hasQueued()) {
      poll();
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::lock_guard receiving(receiveMutex_);
    closed_ = true;
    for (Incoming& in : incoming_) in.parser.cancel();
    for (Outgoing& out : outgoing_) {
      std::lock_guard lock(out.mutex);
      for (Pending& pending : out.queue) {
        if (pending.ticket != nullptr) pending.ticket->complete(SendTicket::State::kFailed);
      }
      out.queue.clear();
      out.hasMore = false;
    }
  }

 private:
  struct Pending {
    FrameHeader header;
    const std::byte* payload;
    SendTicket* ticket;
    std::uint64_t sent;           // bytes of header and payload already in the ring
    std::vector<std::byte> copy;  // owns the payload when there is no ticket
  };
  struct Outgoing {
    std::mutex mutex;
    std::deque<Pending> queue;
    std::atomic<bool> hasMore{false};
    std::atomic<bool> hasCompleted{false};  // a ticket, and the sink has not been told yet
  };
  struct Incoming {
    Incoming(int rank, FrameSink& sink) : parser(rank, sink) {}
    FrameParser parser;
    bool isRefused = false;  // nothing is read any more
  };

  int positionOf(int rank) const {
    return static_cast<int>(std::lower_bound(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
  }

  bool hasQueued() const {
    return std::any_of(outgoing_.begin(), outgoing_.end(), [](const Outgoing& out) {
      return out.hasMore.load(std::memory_order_relaxed);
    });
  }

  // None if the receiver cannot have read so much: it is that rank's to find out.
  static std::uint64_t spaceIn(const RingControl& control, std::uint64_t written) {
    const std::uint64_t unread = written - control.read.load(std::memory_order_acquire);
    return unread <= kRingBytes ? kRingBytes - unread : 0;
  }

  // Moves as much as fits. Returns whether a ticket completed. Caller holds out.mutex.
  bool push(int position, Outgoing& out) {
    RingControl& control = region_->ringControl(index_, position);
    std::byte* ring = region_->ringData(index_, position);
    std::uint64_t written = control.written.load(std::memory_order_relaxed);
    const std::uint64_t start = written;
    bool completed = false;
    while (!out.queue.empty()) {
      Pending& pending = out.queue.front();
      const std::uint64_t total = sizeof(FrameHeader) + pending.header.length;
      std::uint64_t space = spaceIn(control, written);
      if (space == 0) {
        // Ask to be woken, then look once more: the receiver may have drained meanwhile.
        control.senderWaits.store(1, std::memory_order_relaxed);
        fullFence();
        space = spaceIn(control, written);
        if (space == 0) break;
      }
      while (space != 0 && pending.sent < total) {
        const std::byte* source;
        std::uint64_t count;
        if (pending.sent < sizeof(FrameHeader)) {
          source = reinterpret_cast<const std::byte*>(&pending.header) + pending.sent;
          count = sizeof(FrameHeader) - pending.sent;
        } else {
          const std::byte* payload = pending.copy.empty() ? pending.payload : pending.copy.data();
          source = payload + (pending.sent - sizeof(FrameHeader));
          count = total - pending.sent;
        }
        const std::uint64_t offset = written % kRingBytes;
        count = std::min({count, space, kRingBytes - offset, kPiece});
        std::memcpy(ring + offset, source, count);
        written += count;
        pending.sent += count;
        space -= count;
        control.written.store(written, std::memory_order_release);
      }
      if (pending.sent < total) continue;
      if (pending.ticket != nullptr) {
        pending.ticket->complete(SendTicket::State::kSent);
        completed = true;
      }
      out.queue.pop_front();
    }
    out.hasMore.store(!out.queue.empty(), std::memory_order_relaxed);
    if (written != start) {
      fullFence();
      memory_.cells(position).bell.ringIfAsleep();
    }
    return completed;
  }

  // Caller holds receiveMutex_: the sink is called by one thread at a time.
  void tellCompleted() {
    if (!anyCompleted_.exchange(false)) return;
    for (std::size_t position = 0; position < outgoing_.size(); ++position) {
      if (outgoing_[position].hasCompleted.exchange(false)) sink_.sendCompleted(ranks_[position]);
    }
  }

  // Takes what has arrived from one peer; up to `end` at least. Caller holds receiveMutex_.
  bool drain(int position, std::uint64_t end = ~std::uint64_t{0}) {
    RingControl& control = region_->ringControl(position, index_);
    const std::byte* ring = region_->ringData(position, index_);
    std::uint64_t read = control.read.load(std::memory_order_relaxed);
    const std::uint64_t start = read;
    Incoming& in = incoming_[static_cast<std::size_t>(position)];
    std::optional<Refusal> refusal;
    while (read < end && !in.isRefused) {
      const std::uint64_t available = control.written.load(std::memory_order_acquire) - read;
      if (available == 0) break;
      if (available > kRingBytes) {
        refusal = Refusal{Refusal::Reason::kOverrun, {}};
        in.parser.cancel();
      } else {
        const std::uint64_t offset = read % kRingBytes;
        const std::uint64_t count = std::min({available, kRingBytes - offset, kPiece});
        refusal = in.parser.consume({ring + offset, count});
        read += count;
        control.read.store(read, std::memory_order_release);
        if (in.parser.hasLeft()) {  // nobody says goodbye in a ring
          refusal = Refusal{Refusal::Reason::kUnknownChannel, makeGoodbye()};
        }
      }
      if (refusal.has_value()) {
        in.isRefused = true;
        sink_.frameRefused(ranks_[static_cast<std::size_t>(position)], *refusal);
      }
    }
    if (read == start) return false;
    fullFence();
    if (control.senderWaits.load(std::memory_order_relaxed) != 0) {
      control.senderWaits.store(0, std::memory_order_relaxed);
      fullFence();  // or it may undo what a sender says that goes to sleep only now, unseen by us
      memory_.cells(position).bell.ringIfAsleep();
    }
    return true;
  }

  // Publishing in pieces lets the other side copy the first while we copy the next.
  static constexpr std::uint64_t kPiece = 32 << 10;

  std::shared_ptr<Region> region_;
  PeerMemory memory_;
  int index_;
  std::vector<int> ranks_;
  FrameSink& sink_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::mutex receiveMutex_;
  std::atomic<bool> anyCompleted_{false};
  std::atomic<bool> closed_{false};
};

}  // namespace

std::unique_ptr<Transport> createTransport(std::shared_ptr<Region> region, int index,
                                           std::vector<int> ranks, FrameSink& sink) {
  return std::make_unique<RingTransport>(std::move(region), index, std::move(ranks), sink);
}

}  // namespace smd::transport::shm
