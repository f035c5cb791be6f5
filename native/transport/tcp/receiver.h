// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The receiving end of a connection: turns the bytes of one peer into frames for the sink.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/file_descriptor.h"
#include "transport/tcp/link_end.h"
#include "transport/tcp/protocol.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

// Not thread-safe: used with the right to make progress (tcp_transport.cc). Calls the sink, so no
// lock may be held.
class Receiver {
 public:
  // `endpoint` is where `peer` listens (for messages); `sink` must outlive this.
  Receiver(FileDescriptor socket, int peer, std::string endpoint, FrameSink& sink);

  struct Result {
    std::size_t bytes = 0;       // that were read
    std::optional<LinkEnd> end;  // the connection has ended, everything before was delivered
  };
  // Reads until the socket is empty or about `budget` bytes have come. `scratch` takes what belongs
  // to no payload yet; it is empty again on return, so all connections may share one.
  Result receive(std::size_t budget, std::span<std::byte> scratch);

  const FileDescriptor& socket() const { return socket_; }
  int peer() const { return peer_; }

 private:
  // Returns a reason if the bytes cannot be frames.
  std::optional<std::string> consume(std::span<const std::byte> bytes);
  std::optional<std::string> beginFrame();
  void advanceFrame(std::size_t bytes);

  FileDescriptor socket_;
  const int peer_;
  const std::string endpoint_;
  FrameSink& sink_;

  std::array<std::byte, sizeof(FrameHeader)> headerBytes_;
  std::size_t headerFilled_ = 0;

  // The frame that is being received, if `inFrame_`.
  bool inFrame_ = false;
  FrameHeader header_;
  std::byte* destination_ = nullptr;  // of the bytes that are missing
  std::uint64_t missing_ = 0;

  bool hasLeft_ = false;
};

}  // namespace smd::transport::tcp
