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
#include <utility>
#include <vector>

#include "common/network.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/link_end.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/rails.h"
#include "transport/tcp/silence.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

// How long to go on trying to connect, and what it means if that was in vain.
struct Patience {
  std::chrono::milliseconds limit;
  const char* meaning;
};

// Thread-safe. Never calls the sink: it tells what has happened, and the transport, which holds no
// lock then, passes it on. Small until used, as there is one for each rank.
class Sender {
 public:
  // What the senders of a transport have in common; outlives them.
  struct Context {
    Identity self;
    const Poller* poller = nullptr;
    const TlsContext* tls = nullptr;  // null: in the clear
    // Arranges for retry() of that sender after `delay`. May be called under the sender's lock.
    std::function<void(Stream peer, std::chrono::milliseconds delay)> retryAfter;
  };

  struct Progress {
    bool hasMoved = false;
    bool hasCompletedTickets = false;
    std::vector<std::byte> lastWords;  // of the peer: the frame that says why its group has failed
    std::optional<LinkEnd> end;        // the connection has ended; call disconnect() or fail()
  };

  // Before any other call.
  void configure(const Context& context, Stream peer, const Rail& rail);

  // See Transport::expect() and Transport::send(). A ticket may complete before send() returns.
  void open();
  void send(const FrameHeader& header, const void* payload, SendTicket* ticket);
  // As send() without a ticket, if there is a connection or one is being made; else nothing.
  void sendIfOpen(const FrameHeader& header, const void* payload);

  // Called with the right to make progress.
  Progress handleEvents(std::uint32_t events);
  Progress retry();
  // To be called every kSilenceLook.
  Progress look();
  // Closes the connection but keeps what is queued, until fail().
  void disconnect();
  // Fails what is queued and whatever will be sent. Returns whether there were tickets.
  bool fail();

  // Whether a connection was ever asked for, and whether it ever came to be.
  bool isInUse();
  bool hasBeenConnected();
  // How much it has to do: bytes that the peer's system has not acknowledged, then those it was
  // ever given. None if it cannot take anything now.
  using Load = std::pair<std::uint64_t, std::uint64_t>;
  std::optional<Load> load();
  // No more frames: says goodbye behind the last one. Returns whether nothing is left to hand over
  // to the peer's kernel; call again, after making progress, until it does.
  bool finish();

 private:
  using Clock = std::chrono::steady_clock;

  enum class State : std::uint8_t {
    kIdle,
    kConnecting,         // the connection is being made
    kSecuring,           // TLS is being agreed on
    kAwaitingChallenge,  // the hello is sent
    kAwaitingWelcome,    // the proof is sent
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
  void connectFailedLocked(const std::string& reason, const Patience& patience);
  void finishConnectLocked(Progress& progress);
  void secureLocked(Progress& progress);
  void readChallengeLocked(Progress& progress);
  void readWelcomeLocked(Progress& progress);
  void readFarewellLocked(Progress& progress);
  void readLastWordsLocked(Progress& progress);
  void flushLocked(Progress& progress);
  void noteFailedWriteLocked(int error);
  void endSocketLocked(int error);
  void watchLocked(bool isForWriting);
  void dropSocketLocked();
  enum class ReadResult : std::uint8_t { kComplete, kIncomplete, kEnd };
  ReadResult readAnswerLocked();
  bool readHandshakeAnswerLocked();

  const Context* context_ = nullptr;
  Rail rail_;
  Stream peer_ = -1;

  std::mutex mutex_;  // guards what follows
  State state_ = State::kIdle;
  bool hasBeenConnected_ = false;
  bool isWatchedForWriting_ = false;
  bool hasPeerLeft_ = false;
  bool hasPeerFailed_ = false;
  bool hasSaidGoodbye_ = false;
  bool isShutDown_ = false;
  std::uint8_t answerFilled_ = 0;
  int socketError_ = 0;  // errno of a failed call, if any; the kernel tells it only once
  Connection connection_;
  std::list<Outgoing> queue_;
  std::uint64_t numBytesGiven_ = 0;
  std::array<std::byte, kAnswerBytes> answer_;
  std::vector<std::byte> lastWords_;  // a header, then with its payload; as far as they have come
  std::size_t lastWordsFilled_ = 0;
  std::unique_ptr<OpenerHandshake> handshake_;  // of the connection, or of the last attempt
  Clock::time_point firstAttempt_;
  Clock::time_point attemptBegan_;
  Silence silence_;
  std::chrono::milliseconds backoff_{};
  std::string unreportedEnd_;
};

}  // namespace smd::transport::tcp
