// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Matches arriving frames with the receives that wait for them, above any mix of transports: peers
// on this host talk through rings, others over TCP. A frame that nobody waits for yet is kept.
//
// Matching: a receive names a channel, a tag and a peer (or any); frames of one peer, channel and
// tag are taken in the order they were sent, receives in the order they were posted. Frames of
// Channel::kMessage wait for nobody's receive: they are taken whole, in the order of their arrival.
//
// Both ends of flow control (flow.h) are here: what is sent goes through the peer's Outflow; what
// is announced is matched like a frame, and its receive waits for the payload.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/flow.h"
#include "transport/matching.h"
#include "transport/refusal.h"
#include "transport/transport.h"

namespace smd::transport {

inline constexpr int kAnyPeer = -1;

// One awaited frame. Must stay in place from post() until isDone() or cancel().
struct Receive {
  int peer = kAnyPeer;
  Channel channel = Channel::kPointToPoint;
  std::uint64_t tag = 0;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;

  enum class State : std::uint8_t { kPosted, kStreaming, kDone };
  std::atomic<State> state{State::kPosted};
  std::atomic<int> source{-1};  // who sends it: once it is streaming
  // What it was, once done. If header.length != bytes nothing was stored.
  FrameHeader header;

  // The mailbox's own.
  QueuePlace<Receive> place;
  std::uint64_t order = 0;  // of posting
  bool isCleared = false;   // its peer may send the frame unannounced

  bool isStreaming() const { return state.load(std::memory_order_acquire) == State::kStreaming; }
  bool isDone() const { return state.load(std::memory_order_acquire) == State::kDone; }
};

// Of the memory that frames of Channel::kMessage arrive in.
inline constexpr std::size_t kMessageAlignment = 64;

struct FreeFrame {
  void operator()(std::byte* data) const {
    ::operator delete[](data, std::align_val_t{kMessageAlignment});
  }
};
using FrameMemory = std::unique_ptr<std::byte[], FreeFrame>;

// So many bytes, not touched. Throws std::bad_alloc.
inline FrameMemory frameMemory(std::uint64_t bytes) {
  return FrameMemory(
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kMessageAlignment})));
}

// A whole frame of Channel::kMessage.
struct MessageFrame {
  int source = -1;
  FrameHeader header;
  FrameMemory data;  // header.length bytes
  bool wasCleared = false;
};

class Mailbox final : public FrameSink {
 public:
  // What the engine above is told. Called without locks held.
  struct Events {
    std::function<void()> wake;  // something completed
    std::function<void(int peer, const Error&)> linkFailed;
    std::function<void(int peer, const FrameHeader&, std::string_view)> control;
    std::function<void(int peer, const Refusal&)> refused;  // must not throw
  };

  Mailbox(int worldSize, Events events);

  // The transport that reaches `peer`; null for this rank itself.
  void setTransport(int peer, Transport* transport);

  void send(int peer, const FrameHeader& header, const void* payload, SendTicket* ticket);
  // Throws std::bad_alloc, and knows nothing of it then, unless its frame is arriving already.
  void post(Receive& receive);
  // The oldest frame of Channel::kMessage that has arrived whole, if there is one.
  std::optional<MessageFrame> takeMessage();
  // As of Transport.
  void expect(int peer);
  void catchUp();
  void spread(const FrameHeader& header, const void* payload);
  // All transports are closed: nobody touches a receive or a ticket any more, nor takes one.
  void noteClosed();
  bool isClosed() const { return isClosed_.load(std::memory_order_acquire); }
  // Takes a posted receive back. False: it is done, or its frame has been cleared or is arriving.
  bool cancel(Receive& receive);
  // The sender and signature of a message that belongs to collective `sequence` or an earlier one
  // and that nobody asked for. Ask after the end of that collective: there is none if ranks agree.
  std::optional<std::pair<int, Signature>> findStray(std::uint64_t sequence);
  // Of frames that were sent to `peer`: what stays here until a receive asks for it, bytes.
  std::uint64_t announcedTo(int peer) { return outflows_[index(peer)].announcedBytes(); }
  // Of frames that nobody here has asked for: what they take of memory, bytes.
  std::uint64_t unexpectedBytes() const { return unexpectedBytes_.load(std::memory_order_relaxed); }
  // Lets the caller's thread move bytes on every transport.
  bool poll();
  // As of Transport, of the one that reaches other hosts.
  bool canWaitFor(int peer) const { return transports_[static_cast<std::size_t>(peer)]->canWait(); }
  Transport::Waited wait(std::chrono::nanoseconds limit, const FutexWord& rings,
                         std::uint32_t seen) {
    return waitable_ == nullptr ? Transport::Waited::kBusy : waitable_->wait(limit, rings, seen);
  }
  void beginWait() {
    if (waitable_ != nullptr) waitable_->beginWait();
  }
  void endWait(bool isBackSoon) {
    if (waitable_ != nullptr) waitable_->endWait(isBackSoon);
  }
  void letReturn() {
    if (waitable_ != nullptr) waitable_->letReturn();
  }
  void interruptWait() {
    if (waitable_ != nullptr) waitable_->interruptWait();
  }

  // Memory for a frame that nobody waits for is taken without being touched: what a header
  // announces costs addresses, and only what really arrives costs memory.
  std::byte* frameBegin(Stream from, const FrameHeader& header) override;
  void frameEnd(Stream from, const FrameHeader& header) override;
  void frameCancelled(Stream from) noexcept override;
  void frameRefused(int peer, const Refusal& refusal) noexcept override;
  void sendCompleted(int peer) override;
  void linkFailed(int peer, const Error& error) override;

 private:
  struct Arrival {  // a frame nobody has taken yet
    enum class State : std::uint8_t { kArriving, kWhole, kAnnounced };

    int peer;
    FrameHeader header;  // as of a frame sent whole
    State state;
    std::unique_ptr<std::byte[]> data = nullptr;  // header.length bytes, unless announced
    Receive* claimedBy = nullptr;                 // posted while it was still arriving
    std::list<Arrival>::iterator self = {};
    QueuePlace<Arrival> ofPeer = {};
    QueuePlace<Arrival> ofAny = {};
  };
  struct InFlight {  // the frame that is arriving on a stream
    Receive* receive = nullptr;
    Arrival* arrival = nullptr;
    std::list<MessageFrame> message;  // of Channel::kMessage: one, to be published as it is
    std::unique_ptr<std::byte[]> control;
  };
  struct Offer {  // a message that was announced
    int peer;
    std::uint64_t bytes;
  };
  // What is to be said to a peer once the lock is no longer held.
  struct Reply {
    int peer = 0;
    std::optional<FrameHeader> clearance = {};
    std::optional<FrameHeader> takenBack = {};
  };

  using Receives = KeyedQueues<Receive, &Receive::place>;

  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  InFlight& inFlight(Stream from);
  static void beginStreaming(Receive& receive, int peer);
  static void finish(Receive& receive, int peer, const FrameHeader& header);
  Receive* oldestFor(const MatchKey& key);
  void unpost(Receive& receive);
  Arrival& keep(int peer, const FrameHeader& header, Arrival::State state,
                std::unique_ptr<std::byte[]> data);
  void unqueue(Arrival& arrival);
  void drop(Arrival& arrival);
  std::byte* beginMessage(int peer, InFlight& flight, const FrameHeader& header);
  std::byte* beginWhole(Stream from, const FrameHeader& header);
  std::byte* beginPayload(Stream from, const FrameHeader& header);
  static std::byte* fill(int peer, InFlight& flight, Receive& receive, Receives& queue,
                         const FrameHeader& header);
  bool isLong(const FrameHeader& header) const {
    return header.length > windows_.atOnce(header.channel);
  }
  void leaveSpare(const MatchKey& key) noexcept;
  bool takeSpare(const MatchKey& key);
  bool passClearance(const MatchKey& key);
  void admit(int peer, const FrameHeader& header);
  void takeAnnouncement(int peer, const FrameHeader& header);
  void match(Receive& receive, int peer, const FrameHeader& header, Reply& reply);
  void noteTaken(int peer, const FrameHeader& header, Reply& reply);
  void clearMessages();
  void say(const Reply& reply);

  Events events_;
  const Windows windows_;
  std::deque<Outflow> outflows_;        // by peer
  std::vector<Transport*> transports_;  // by peer
  std::vector<Transport*> distinct_;    // each once
  Transport* waitable_ = nullptr;
  std::mutex mutex_;  // guards what follows
  std::uint64_t numPosted_ = 0;
  Receives posted_;
  Receives postedForAny_;
  Receives awaited_;               // cleared, for the payload of an announcement
  std::list<MatchKey> overtaken_;  // announcements that will still come, behind their payloads
  // Clearances of receives that have given up, or got a frame that needed none.
  std::unordered_map<MatchKey, std::uint64_t, MatchHash> spare_;
  std::list<Arrival> arrivals_;
  std::list<Arrival> collectiveArrivals_;
  KeyedQueues<Arrival, &Arrival::ofPeer> arrivalsOfPeer_;
  KeyedQueues<Arrival, &Arrival::ofAny> arrivalsOfAny_;
  std::list<MessageFrame> messages_;
  std::deque<Offer> offers_;
  std::list<Offer> clearedOffers_;
  std::vector<std::uint64_t> numOffers_;  // by peer: of both
  std::uint64_t numAnnounced_ = 0;        // arrivals of that state
  std::uint64_t clearedMessageBytes_ = 0;
  std::vector<std::array<std::uint64_t, kNumChannels>> taken_;  // by peer; not said yet
  // Of what came at once, by peer: what was not said to be taken.
  std::vector<std::array<std::uint64_t, kNumChannels>> used_;
  std::vector<std::vector<InFlight>> inFlight_;  // by peer and index of its stream
  std::atomic<std::size_t> numMessages_{0};      // looked at without the lock
  std::atomic<std::uint64_t> unexpectedBytes_{0};
  std::atomic<bool> isClosed_{false};
};

}  // namespace smd::transport
