// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a transport that moves messages. (The other capability, loading and storing in a
// peer's memory, is transport/shm/region.h.) Implementations live in folders beside this file, each
// with one public factory; they include this header and never one another.
//
// Promises of every implementation, checked by tests/native/support/transport_conformance.h:
//  1. Frames of one (sender, receiver) pair arrive whole and unchanged. They arrive in the order of
//     send(); only frames of collectives, which have tags of their own, may overtake one another,
//     on streams of their own.
//  2. send() never blocks. The payload is only read until its ticket completes; a ticket completes
//     exactly once, also when the link fails or the transport closes.
//  3. FrameSink functions are called by one thread at a time for each peer, never from inside
//     send(), and never after close() has returned.
//  4. A failed link is reported once through linkFailed(); later sends to that peer fail at once.
//     What cannot be received is reported once through frameRefused(): nothing more comes then.
//  5. Any thread may call any function.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "common/error.h"
#include "common/futex.h"
#include "common/signature.h"

namespace smd::transport {

enum class Channel : std::uint8_t {
  kPointToPoint = 0,  // send/recv of the user
  kCollective = 1,    // data of a collective; tag = sequence and step
  kControl = 2,       // aborts and goodbyes between engines
  kMessage = 3,       // messages of unknown size, which nobody posts receives for
};

inline constexpr std::size_t kNumChannels = 4;

// What a frame is for flow control (transport/flow.h). Those without a payload are of length 0.
enum class FrameKind : std::uint8_t {
  kWhole = 0,         // header and payload, unannounced
  kAnnouncement = 1,  // of a payload of `amount` bytes
  kClearance = 2,     // the oldest that is or will be announced may come
  kPayload = 3,       // of what was announced and cleared
  kReturn = 4,        // `amount` bytes of the window are free again
};

// Travels as raw bytes in front of each payload.
struct FrameHeader {
  std::uint64_t length = 0;  // payload bytes, 0 allowed
  std::uint64_t tag = 0;
  Signature signature;       // of the operation that sends
  std::uint64_t amount = 0;  // see FrameKind
  Channel channel = Channel::kPointToPoint;
  FrameKind kind = FrameKind::kWhole;
  std::uint8_t reserved[6] = {};
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);

// A longer frame is a protocol error (a corrupted or hostile stream), not an allocation request.
inline constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 42;
// Of Channel::kControl; more than the engine has. The tag of a kMessage is at most its length.
inline constexpr std::uint64_t kNumControlTags = 64;
// Of what spread() says. So few that a connection which has carried nothing yet takes them at once.
inline constexpr std::uint64_t kMostLastWords = std::uint64_t{8} << 10;

// The sender's view of one frame. Must outlive its completion.
class SendTicket {
 public:
  enum class State : std::uint8_t { kPending, kSent, kFailed };
  State state() const { return state_.load(std::memory_order_acquire); }
  void complete(State state) { state_.store(state, std::memory_order_release); }
  void reset() { state_.store(State::kPending, std::memory_order_relaxed); }

 private:
  std::atomic<State> state_{State::kPending};
};

// Where frames come from: a rank, and one of the connections with it.
struct Stream {
  // NOLINTNEXTLINE(google-explicit-constructor): most transports have one connection with a peer
  Stream(int rank, int connection = 0) : peer(rank), index(connection) {}

  int peer;
  int index;
};

struct Refusal;  // refusal.h

// Who receives. `peer` is the sender's rank in the communicator. Frames come through a FrameParser
// (frame_parser.h): after frameBegin() either frameEnd() or frameCancelled() is called.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Where the payload goes: header.length writable bytes that stay valid until the frame ends or is
  // cancelled. Null if header.length is 0, or if the payload is to be thrown away as it comes.
  // Throws std::bad_alloc, and has done nothing then, if there is no memory for so many; a Refusal
  // for what no peer of ours would send.
  virtual std::byte* frameBegin(Stream from, const FrameHeader& header) = 0;
  // The payload is whole. Throws std::bad_alloc if what a control frame asks for needs more memory
  // than there is.
  virtual void frameEnd(Stream from, const FrameHeader& header) = 0;
  // The rest of the payload will not come: as if it had never begun.
  virtual void frameCancelled(Stream from) noexcept = 0;
  // Nothing of `peer` is received any more, but it may still be sent to.
  virtual void frameRefused(int peer, const Refusal& refusal) noexcept = 0;
  // A ticket has completed: threads that wait for one should look again.
  virtual void sendCompleted(int peer) = 0;
  virtual void linkFailed(int peer, const Error& error) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // `payload` may be null if header.length is 0; `ticket` may be null, then the payload is copied
  // before send() returns (small control frames).
  virtual void send(int peer, const FrameHeader& header, const void* payload,
                    SendTicket* ticket) = 0;

  // Makes sure the death of `peer` will be noticed (opens the link if need be): called before
  // waiting for a frame from a peer that may never have talked to us.
  virtual void expect(int peer) = 0;

  // Lets the calling thread move bytes instead of waiting for a background thread. Returns whether
  // anything moved. Never blocks; returns false at once if another thread is already at it.
  virtual bool poll() = 0;

  // Returns once the sink has all that peers of this host had sent when it was called; waits for a
  // thread that is at it. Not from inside the sink. What came over a network is there already when
  // its link is reported as failed.
  virtual void catchUp() {}

  // Between these two the background thread stays away while the caller polls and waits: it would
  // be woken for each message as well, and compete for it. It returns when the last caller has
  // ended its wait: at once, or, if that `isBackSoon`, some milliseconds after the last
  // beginWait(): then short operations, one after the other, wake nobody. letReturn(): at once,
  // unless somebody waits now.
  virtual void beginWait() {}
  virtual void endWait(bool /*isBackSoon*/) {}
  virtual void letReturn() {}

  // Like poll(), but the calling thread, which has called beginWait(), sleeps until something can
  // move: for `limit` at most, or until interruptWait(). kNothing, at once, if `rings` is no
  // longer as `seen`: another thread has delivered something since the caller looked. kBusy, at
  // once: another thread is at it, or this transport cannot be waited for.
  enum class Waited : std::uint8_t { kBusy, kMoved, kNothing, kSignal };
  virtual bool canWait() const { return false; }
  virtual Waited wait(std::chrono::nanoseconds /*limit*/, const FutexWord& /*rings*/,
                      std::uint32_t /*seen*/) {
    return Waited::kBusy;
  }
  virtual void interruptWait() {}

  // The group has failed, and this frame of Channel::kControl, of kMostLastWords at most, says why.
  // Tells it to every peer with which there is a connection, whichever side opened it, and to peers
  // that connect later; opens none. Never blocks; may be called from inside the sink. What is said
  // first stays. Throws std::bad_alloc, and has told nobody then. Peers of this host see the error
  // in their region.
  virtual void spread(const FrameHeader& /*header*/, const void* /*payload*/) {}

  // Why a transport is closed. Peers are told that this rank leaves, or that it has failed; and
  // why, if spread() was called before. Then peers that connect later hear it too, until another
  // close().
  enum class Ending : std::uint8_t { kInOrder, kFailure };
  // Hands over what was sent so far, for at most `grace`, then closes. Idempotent.
  void close(std::chrono::milliseconds grace) { close(grace, Ending::kInOrder); }
  virtual void close(std::chrono::milliseconds grace, Ending ending) = 0;
};

}  // namespace smd::transport
