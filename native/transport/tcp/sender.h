// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The sending end: opens the connection to one peer on first use, queues what the socket does not
// take at once, and watches the connection for the peer's end.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/file_descriptor.h"
#include "common/network.h"
#include "transport/tcp/link_end.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/protocol.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

// Thread-safe. Never calls the sink: it tells what has happened, and the transport, which holds no
// lock then, passes it on. Small until used, as there is one for each rank.
class Sender {
 public:
  // What the senders of a transport have in common; outlives them.
  struct Context {
    Identity self;
    const Poller* poller = nullptr;
    // Arranges for retry() of the sender to `peer` after `delay`. May be called under the
    // sender's lock.
    std::function<void(int peer, std::chrono::milliseconds delay)> retryAfter;
  };

  struct Progress {
    bool hasMoved = false;
    bool hasCompletedTickets = false;
    std::optional<LinkEnd> end;  // the connection has ended; call disconnect() or fail()
  };

  // Before any other call.
  void configure(const Context& context, int peer, const SocketAddress& address);

  // See Transport::expect() and Transport::send(). A ticket may complete before send() returns.
  void open();
  void send(const FrameHeader& header, const void* payload, SendTicket* ticket);

  // Called with the right to make progress.
  Progress handleEvents(std::uint32_t events);
  Progress retry();
  // Closes the connection but keeps what is queued, until fail().
  void disconnect();
  // Fails what is queued and whatever will be sent. Returns whether there were tickets.
  bool fail();

  // Whether a connection was ever asked for.
  bool isInUse();
  // No more frames: says goodbye behind the last one. Returns whether nothing is left to hand over
  // to the peer's kernel; call again, after making progress, until it does.
  bool finish();

 private:
  using Clock = std::chrono::steady_clock;

  enum class State : std::uint8_t {
    kIdle,
    kConnecting,     // the connection is being made
    kAwaitingReply,  // the hello is sent
    kConnected,
    kWaiting,       // for the next attempt to connect
    kDisconnected,  // ended, not yet reported
    kFailed,
  };

  struct Outgoing {
    FrameHeader header;
    const std::byte* payload = nullptr;
    std::unique_ptr<std::byte[]> copy;  // owns the payload of a frame without a ticket
    SendTicket* ticket = nullptr;
    std::uint64_t written = 0;  // of header and payload together

    std::uint64_t size() const { return sizeof(FrameHeader) + header.length; }
  };

  void openLocked();
  void connectLocked();
  void connectFailedLocked(const std::string& reason);
  void finishConnectLocked(Progress& progress);
  void readReplyLocked(Progress& progress);
  void readFarewellLocked(Progress& progress);
  void flushLocked(Progress& progress);
  void watchLocked(bool isForWriting);
  void dropSocketLocked();
  enum class ReadResult : std::uint8_t { kComplete, kIncomplete, kEnd };
  ReadResult readAnswerLocked();

  const Context* context_ = nullptr;
  SocketAddress address_;
  int peer_ = -1;

  std::mutex mutex_;  // guards what follows
  State state_ = State::kIdle;
  bool isWatchedForWriting_ = false;
  bool hasPeerLeft_ = false;
  bool hasSaidGoodbye_ = false;
  bool isShutDown_ = false;
  std::uint8_t answerFilled_ = 0;
  int socketError_ = 0;  // errno of a failed call, if any; the kernel tells it only once
  FileDescriptor socket_;
  std::list<Outgoing> queue_;
  std::array<std::byte, kReplyBytes> answer_;
  Clock::time_point firstAttempt_;
  std::chrono::milliseconds backoff_{};
  std::string unreportedEnd_;
};

}  // namespace smd::transport::tcp
