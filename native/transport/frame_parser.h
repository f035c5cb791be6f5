// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Turns the bytes of one peer, however they are cut, into frames for the sink: the one way into
// this process, from rings and from sockets alike. Neither rings nor sockets here, so that tests
// and fuzzers can feed it what neither would bring.
//
// To receive a frame is a transaction:
//   begin    its header is whole: it is checked, and the sink says where the payload goes
//   place    bytes of the payload are written there
//   commit   the payload is whole: the sink publishes the frame
//   cancel   the rest will not come: the sink drops what was begun
// What fails before the commit has published nothing. After a refusal nothing is taken any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/refusal.h"
#include "transport/transport.h"

namespace smd::transport {

// In bytes. Control frames carry the text of an error, or where a rank is.
std::uint64_t longestFrame(Channel channel);

// Headers on a wire carry either a Channel or this mark in FrameHeader::channel: nothing follows.
FrameHeader makeGoodbye();
bool isGoodbye(const FrameHeader& header);

// Nothing if a frame may have this header.
std::optional<Refusal> checkHeader(const FrameHeader& header);

// Not thread-safe. Calls the sink, so no lock may be held.
class FrameParser {
 public:
  // `sink` must outlive the last call.
  FrameParser(Stream from, FrameSink& sink) : from_(from), sink_(sink) {}

  // Where the next missing() bytes belong. A caller that can should put them there and call
  // placed(), instead of consume(). Null between frames, and for a payload that is thrown away.
  std::byte* destination() const { return destination_; }
  std::uint64_t missing() const { return destination_ == nullptr ? 0 : missing_; }
  // `bytes`, at most missing(), were written to destination(). As consume().
  std::optional<Refusal> placed(std::size_t bytes);

  // Takes `bytes`, whatever they are. Returns why they cannot be received, if they cannot; the same
  // again for whatever follows.
  std::optional<Refusal> consume(std::span<const std::byte> bytes);

  // Refuses what follows, for a reason that the caller has found.
  void refuse(const Refusal& refusal);
  // The rest of the frame that is arriving will not come, nor anything else. Idempotent.
  void cancel();

  bool hasLeft() const { return state_ == State::kLeft; }  // the peer said goodbye

 private:
  enum class State : std::uint8_t {
    kInHeader,   // or between frames
    kInPayload,  // begun, and neither committed nor cancelled
    kLeft,
    kRefused,
  };

  std::optional<Refusal> begin();
  std::optional<Refusal> commit();
  std::optional<Refusal> refused(const Refusal& refusal);

  const Stream from_;
  FrameSink& sink_;
  State state_ = State::kInHeader;

  std::array<std::byte, sizeof(FrameHeader)> headerBytes_;
  std::size_t headerFilled_ = 0;

  // The frame that is being received, if the state is kInPayload.
  FrameHeader header_;
  std::byte* destination_ = nullptr;  // of the bytes that are missing; null: they go nowhere
  std::uint64_t missing_ = 0;

  Refusal refusal_;  // what is said again in the state kRefused
};

}  // namespace smd::transport
