// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of a transport that moves messages. (The other capability, loading and storing in a
// peer's memory, is transport/shm/region.h.) Implementations live in folders beside this file, each
// with one public factory; they include this header and never one another.
//
// Promises of every implementation, checked by tests/native/transport_conformance.h:
//  1. Frames of one (sender, receiver) pair arrive whole, unchanged and in the order of send().
//  2. send() never blocks. The payload is only read until its ticket completes; a ticket completes
//     exactly once, also when the link fails or the transport closes.
//  3. FrameSink functions are called by one thread at a time for each peer, never from inside
//     send(), and never after close() has returned.
//  4. A failed link is reported once through linkFailed(); later sends to that peer fail at once.
//  5. Any thread may call any function.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "common/error.h"
#include "common/signature.h"

namespace smd::transport {

enum class Channel : std::uint8_t {
  kPointToPoint = 0,  // send/recv of the user
  kCollective = 1,    // data of a collective; tag = sequence and step
  kControl = 2,       // aborts and goodbyes between engines
};

// Travels as raw bytes in front of each payload.
struct FrameHeader {
  std::uint64_t length = 0;  // payload bytes, 0 allowed
  std::uint64_t tag = 0;
  Signature signature;  // of the operation that sends
  Channel channel = Channel::kPointToPoint;
  std::uint8_t reserved[7] = {};
};
static_assert(sizeof(FrameHeader) == 56 && std::is_trivially_copyable_v<FrameHeader>);

// A longer frame is a protocol error (a corrupted or hostile stream), not an allocation request.
inline constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 42;

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

// Who receives. `peer` is the sender's rank in the communicator.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Where the payload goes: header.length writable bytes that stay valid until frameEnd() or
  // linkFailed(). Never null unless header.length is 0.
  virtual std::byte* frameBegin(int peer, const FrameHeader& header) = 0;
  virtual void frameEnd(int peer, const FrameHeader& header) = 0;
  // A ticket completed: whoever waits for one should look again.
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

  // Hands over what was sent so far, for at most `grace`, then closes. Idempotent.
  virtual void close(std::chrono::milliseconds grace) = 0;
};

}  // namespace smd::transport
