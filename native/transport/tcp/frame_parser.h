// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Turns the bytes of one peer, however they are cut, into frames for the sink. No sockets here, so
// that tests and fuzzers can feed it what no socket would bring.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "transport/tcp/protocol.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

// Not thread-safe. Calls the sink, so no lock may be held.
class FrameParser {
 public:
  // `sink` must outlive this.
  FrameParser(Stream from, FrameSink& sink) : from_(from), sink_(sink) {}

  // Where the next bytes belong if they are payload: whoever can should put them there and call
  // placed(), instead of consume(). Empty between frames.
  std::byte* destination() const { return destination_; }
  std::uint64_t missing() const { return isInFrame_ ? missing_ : 0; }
  // `bytes`, at most missing(), were written to destination().
  void placed(std::size_t bytes);

  // Takes `bytes`, whatever they are. Returns a reason ("it ...") if they cannot be frames; nothing
  // may follow then.
  std::optional<std::string> consume(std::span<const std::byte> bytes);

  bool hasLeft() const { return hasLeft_; }  // the peer said goodbye

 private:
  std::optional<std::string> beginFrame();

  const Stream from_;
  FrameSink& sink_;

  std::array<std::byte, sizeof(FrameHeader)> headerBytes_;
  std::size_t headerFilled_ = 0;

  // The frame that is being received, if `isInFrame_`.
  bool isInFrame_ = false;
  FrameHeader header_;
  std::byte* destination_ = nullptr;  // of the bytes that are missing
  std::uint64_t missing_ = 0;

  bool hasLeft_ = false;
};

}  // namespace smd::transport::tcp
