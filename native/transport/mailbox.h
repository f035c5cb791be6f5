// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Matches arriving frames with the receives that wait for them, above any mix of transports: peers
// on this host talk through rings, others over TCP. A frame that nobody waits for yet is kept.
//
// Matching: a receive names a channel, a tag and a peer (or any); frames of one peer, channel and
// tag are taken in the order they were sent, receives in the order they were posted. Frames of
// Channel::kMessage wait for nobody's receive: they are taken whole, in the order of their arrival.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

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
  // Once done: who sent it and what it was. If header.length != bytes nothing was stored.
  int source = -1;
  FrameHeader header;

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
  void post(Receive& receive);
  // The oldest frame of Channel::kMessage that has arrived whole, if there is one.
  std::optional<MessageFrame> takeMessage();
  // As of Transport.
  void expect(int peer);
  void catchUp();
  // All transports are closed: nobody touches a receive or a ticket any more.
  void noteClosed() { isClosed_.store(true, std::memory_order_release); }
  bool isClosed() const { return isClosed_.load(std::memory_order_acquire); }
  // Takes a posted receive back. False: it is done, or its frame is arriving right now.
  bool cancel(Receive& receive);
  // The sender and signature of a message that belongs to collective `sequence` or an earlier one
  // and that nobody asked for. Ask after the end of that collective: there is none if ranks agree.
  std::optional<std::pair<int, Signature>> findStray(std::uint64_t sequence);
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
    int peer;
    FrameHeader header;
    std::unique_ptr<std::byte[]> data;  // header.length bytes
    bool isWhole = false;
    Receive* claimedBy = nullptr;  // posted while it was still arriving
  };
  struct InFlight {  // the frame that is arriving on a stream
    Receive* receive = nullptr;
    std::list<Arrival>::iterator arrival;
    bool isArrival = false;
    std::unique_ptr<std::byte[]> discard;
    std::list<MessageFrame> message;  // of Channel::kMessage: one, to be published as it is
  };

  static bool matches(const Receive& receive, int peer, const FrameHeader& header);
  InFlight& inFlight(Stream from);
  static void finish(Receive& receive, int peer, const FrameHeader& header);

  Events events_;
  std::vector<Transport*> transports_;  // by peer
  std::vector<Transport*> distinct_;    // each once
  Transport* waitable_ = nullptr;
  std::mutex mutex_;
  std::list<Receive*> posted_;
  std::list<Arrival> arrivals_;
  std::list<MessageFrame> messages_;
  std::atomic<std::size_t> numMessages_{0};      // looked at without the lock
  std::vector<std::vector<InFlight>> inFlight_;  // by peer and index of its stream
  std::atomic<bool> isClosed_{false};
};

}  // namespace smd::transport
