// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/receiver.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/tcp/socket.h"

namespace smd::transport::tcp {
namespace {

// One call reads no more than this straight into a payload, so that peers take turns.
constexpr std::uint64_t kMaxDirectBytes = std::uint64_t{1} << 20;

}  // namespace

Receiver::Receiver(FileDescriptor socket, int peer, std::string endpoint, FrameSink& sink)
    : socket_(std::move(socket)), peer_(peer), endpoint_(std::move(endpoint)), sink_(sink) {}

Receiver::Result Receiver::receive(std::size_t budget, std::span<std::byte> scratch) {
  Result result;
  while (result.bytes < budget) {
    // The rest of a payload goes straight to its place; whatever follows it (often a burst of small
    // frames) comes with the same call.
    const std::uint64_t direct = inFrame_ ? std::min(missing_, kMaxDirectBytes) : 0;
    const std::size_t extra = direct == missing_ || !inFrame_ ? scratch.size() : 0;
    const std::array<iovec, 2> parts = {{{destination_, direct}, {scratch.data(), extra}}};
    const auto got = ::readv(socket_.get(), parts.data(), static_cast<int>(parts.size()));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0 && errno == EAGAIN) {
      break;
    }
    if (got <= 0) {
      result.end = hasLeft_ ? leftInGoodOrder(endpoint_)
                            : closedUnexpectedly(endpoint_, got < 0 ? errnoText(errno) : "");
      break;
    }
    const auto bytes = static_cast<std::size_t>(got);
    result.bytes += bytes;
    const std::size_t placed = std::min<std::size_t>(bytes, direct);
    if (placed > 0) {
      advanceFrame(placed);
    }
    if (const auto reason = consume(scratch.first(bytes - placed)); reason.has_value()) {
      result.end = LinkEnd{false, endpoint_ + " broke the protocol: " + *reason};
      break;
    }
    if (bytes < direct + extra) {
      break;  // the socket is empty: no need to be told so by another call
    }
  }
  return result;
}

std::optional<std::string> Receiver::consume(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (inFrame_) {
      const std::size_t part = std::min<std::uint64_t>(bytes.size(), missing_);
      std::memcpy(destination_, bytes.data(), part);
      advanceFrame(part);
      bytes = bytes.subspan(part);
      continue;
    }
    if (hasLeft_) {
      return "it sent bytes after its goodbye";
    }
    const std::size_t part = std::min(bytes.size(), headerBytes_.size() - headerFilled_);
    std::memcpy(headerBytes_.data() + headerFilled_, bytes.data(), part);
    headerFilled_ += part;
    bytes = bytes.subspan(part);
    if (headerFilled_ == headerBytes_.size()) {
      headerFilled_ = 0;
      if (auto reason = beginFrame(); reason.has_value()) {
        return reason;
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> Receiver::beginFrame() {
  std::memcpy(&header_, headerBytes_.data(), sizeof(header_));
  switch (checkHeader(header_)) {
    case HeaderVerdict::kGoodbye:
      hasLeft_ = true;
      return std::nullopt;
    case HeaderVerdict::kTooLong:
      return "it announced a frame of " + std::to_string(header_.length) +
             " bytes, expected at most " + std::to_string(kMaxFrameBytes);
    case HeaderVerdict::kUnknownChannel:
      return "it used channel " + std::to_string(static_cast<int>(header_.channel)) +
             ", which does not exist";
    case HeaderVerdict::kFrame:
      break;
  }
  destination_ = sink_.frameBegin(peer_, header_);
  missing_ = header_.length;
  inFrame_ = true;
  advanceFrame(0);
  return std::nullopt;
}

void Receiver::advanceFrame(std::size_t bytes) {
  missing_ -= bytes;
  if (missing_ == 0) {
    inFrame_ = false;
    destination_ = nullptr;
    sink_.frameEnd(peer_, header_);
    return;
  }
  destination_ += bytes;
}

}  // namespace smd::transport::tcp
