// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What travels over a connection, as pure functions of bytes: no sockets here.
//
//   opener                                  acceptor
//     Hello (64 bytes)            -->
//                                 <--       Reply (32 bytes)
//     FrameHeader (56) + payload  -->
//     ...
//     Goodbye (a header)          -->       when the opener leaves in good order
//                                 <--       Farewell (32 bytes), when the acceptor does
//
// Frames flow from the opener to the acceptor only; two ranks that talk both ways use two
// connections. So connections that are opened at the same moment never compete.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/tcp/factory.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

inline constexpr std::uint16_t kProtocolVersion = 1;
inline constexpr std::size_t kHelloBytes = 64;
inline constexpr std::size_t kReplyBytes = 32;

// What both ends of a connection must agree on, seen from one end.
struct Identity {
  Cookie cookie{};
  int rank = 0;
  int worldSize = 1;
};

std::array<std::byte, kHelloBytes> makeHello(const Identity& self, int target);

enum class HelloVerdict : std::uint8_t {
  kAccepted,
  kForeign,    // not our protocol
  kVersion,    // another version, header size or byte order
  kCookie,     // another job, or a stranger
  kWorldSize,  // the opener believes in a group of another size
  kRank,       // no rank of this group, or ourselves
  kTarget,     // meant for another rank
};
struct HelloResult {
  HelloVerdict verdict = HelloVerdict::kForeign;
  int rank = -1;  // of the opener, if accepted
};
// The cookie is compared in constant time.
HelloResult checkHello(std::span<const std::byte, kHelloBytes> bytes, const Identity& self);

// The reply shows that whoever answered knows the cookie too and is the rank that was meant. (Not a
// cryptographic proof: the cookie itself crosses the network. See the trust section of the design.)
std::array<std::byte, kReplyBytes> makeReply(const Identity& self, int opener);
bool checkReply(std::span<const std::byte, kReplyBytes> bytes, const Identity& self, int target);

std::array<std::byte, kReplyBytes> makeFarewell(const Identity& self, int opener);
bool checkFarewell(std::span<const std::byte, kReplyBytes> bytes, const Identity& self, int target);

// Headers on the wire carry either a Channel or one of these marks in FrameHeader::channel.
FrameHeader makeGoodbye();

enum class HeaderVerdict : std::uint8_t {
  kFrame,
  kGoodbye,
  kTooLong,         // length > kMaxFrameBytes
  kUnknownChannel,  // neither a channel nor a mark
};
HeaderVerdict checkHeader(const FrameHeader& header);

}  // namespace smd::transport::tcp
