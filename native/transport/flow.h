// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Flow control: what a rank may send before anybody has asked for it, so that a receiver's memory
// for frames that nobody waits for is bounded, whichever transport they come by.
//
//   short, and the peer has room     sent at once. It takes of the peer's window until the peer
//                                    says that it has been taken there.
//   the receive is known to wait     sent at once (a clearance has come before it)
//   otherwise                        announced: its header goes alone. The payload stays with the
//                                    sender until a clearance comes, and goes straight into the
//                                    receive.
//
// Messages are cleared in the order in which they are announced, so their sender announces some at
// a time and keeps the others to itself. Of other frames nobody knows which is asked for next: each
// is announced, and a rank refuses more than it is to remember.
//
// A receive that is posted before its frame is announced clears it beforehand, if it is for one
// peer and longer than what is sent at once. A clearance is for the oldest frame of its key that is
// or will be announced; which receive it came from does not matter, as the receiver counts them.
// One that gives up leaves its clearance to the next, as the frame may be under way; if there is no
// next, the frame is kept.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <mutex>
#include <unordered_map>

#include "transport/matching.h"
#include "transport/transport.h"

namespace smd::transport {

// What all ranks of a group derive alike from its size.
class Windows {
 public:
  explicit Windows(int worldSize);

  // Of a rank, for all that nobody there has asked for.
  static constexpr std::uint64_t kTotalBytes = std::uint64_t{64} << 20;
  // Of those, for messages (Channel::kMessage) that were cleared and have not been taken.
  static constexpr std::uint64_t kClearedMessageBytes = std::uint64_t{16} << 20;
  // What it costs to remember a frame.
  static constexpr std::uint64_t kFrameCost = 256;
  // Of a rank: frames that were announced there, but for messages, and that nobody has asked for.
  static constexpr std::uint64_t kMostAnnounced = kTotalBytes / kFrameCost;

  // The longest frame that is sent at once.
  std::uint64_t atOnce(Channel channel) const { return of(channel).atOnce; }
  // What one peer may have sent at once that has not been taken.
  std::uint64_t bytes(Channel channel) const { return of(channel).bytes; }
  // What a frame takes of it.
  static std::uint64_t costOf(std::uint64_t length) { return length + kFrameCost; }
  // Whether the receiver says now that so much was taken: when it is half of the window, so that it
  // costs little, and the sender has the other half meanwhile. Of users' sends, which somebody may
  // wait for, before it is in the way of one: if all others were taken, any that may go at once
  // does.
  bool isToBeGivenBack(Channel channel, std::uint64_t taken) const;
  // Messages that one peer may have announced and not sent.
  std::uint64_t mostOffers() const { return mostOffers_; }

 private:
  struct Window {
    std::uint64_t atOnce = 0;
    std::uint64_t bytes = 0;
  };

  const Window& of(Channel channel) const { return windows_[static_cast<std::size_t>(channel)]; }

  std::array<Window, kNumChannels> windows_;
  std::uint64_t mostOffers_ = 0;
};

// Of a frame, for clearances: messages are for nobody's receive, so their order is all they have.
inline MatchKey keyOf(const FrameHeader& header, int peer) {
  return {header.channel == Channel::kMessage ? 0 : header.tag, peer, header.channel};
}

// What goes to one peer. Thread-safe. Its lock is held while the transport is given a frame, so
// that announcements go out in the order in which they wait.
class Outflow {
 public:
  explicit Outflow(const Windows& windows) : windows_(windows) {}

  // As of Transport. A frame without a ticket is never announced. Throws std::bad_alloc, and uses
  // neither payload nor ticket any more then.
  void send(Transport& transport, int peer, const FrameHeader& header, const void* payload,
            SendTicket* ticket);
  // The peer has cleared one frame like `header`. Throws std::bad_alloc.
  void clear(Transport& transport, int peer, const FrameHeader& header);
  // The peer has taken so much of what was sent at once.
  void giveBack(Channel channel, std::uint64_t bytes);
  // Nothing will be cleared any more: what was announced has failed, and so has what will be.
  void fail();
  // Payloads that the peer has not asked for.
  std::uint64_t announcedBytes();

 private:
  struct Announced {
    FrameHeader header;
    const void* payload;
    SendTicket* ticket;
    bool isSaid = false;  // to the peer
    std::list<Announced>::iterator self = {};
    QueuePlace<Announced> place = {};
  };

  Announced& announce(Transport& transport, const MatchKey& key, Announced&& frame);
  void say(Transport& transport, int peer, Announced& waiting);
  void sendPayload(Transport& transport, int peer, Announced& waiting);
  void forget(Announced& waiting);

  const Windows& windows_;
  std::mutex mutex_;  // guards what follows
  std::array<std::uint64_t, kNumChannels> used_{};
  std::list<Announced> announced_;
  KeyedQueues<Announced, &Announced::place> byKey_;
  // Beforehand: of keys of which nothing waits.
  std::unordered_map<MatchKey, std::uint64_t, MatchHash> cleared_;
  std::uint64_t announcedBytes_ = 0;
  std::uint64_t numOffers_ = 0;       // messages that are said
  Announced* firstUnsaid_ = nullptr;  // of messages
  bool hasFailed_ = false;
};

}  // namespace smd::transport
