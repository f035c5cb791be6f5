// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What travels over a connection, as pure functions of bytes: no sockets here.
//
//   opener                                  acceptor
//     Hello (64 bytes)            -->       who, for whom, a fresh nonce
//                                 <--       Challenge (32 bytes): another fresh nonce
//     Proof (32 bytes)            -->
//                                 <--       Welcome (32 bytes): the acceptor's proof
//     FrameHeader (56) + payload  -->
//     ...
//     Goodbye (a header)          -->       when the opener leaves in good order
//                                 <--       Farewell (32 bytes), when the acceptor does
//                                 <--       Failure (32 bytes), FrameHeader and payload: why the
//                                           acceptor's group has failed; then nothing more
//
// Proof, Welcome, Farewell and Failure are HMAC-SHA256 under the group's key over their role, the
// whole Hello, the Challenge and, inside TLS, what only the two ends of that TLS connection share.
// So they hold for these two ranks, this direction and this connection only: what was recorded,
// reflected, relayed from one TLS connection to another or meant for somebody else is of no use.
// The opener proves first, so that nobody who merely connects is handed anything made with the
// key; no frame is sent or interpreted before both have proved. The key itself never crosses the
// network.
//
// Frames flow from the opener to the acceptor only; two ranks that talk both ways use two
// connections. So connections that are opened at the same moment never compete.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "auth/session_key.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

inline constexpr std::uint16_t kProtocolVersion = 4;
inline constexpr std::size_t kHelloBytes = 64;

using HelloBytes = std::array<std::byte, kHelloBytes>;
using Nonce = std::array<std::byte, 32>;
// "tls-exporter" of RFC 9266.
using ChannelBinding = std::array<std::byte, 32>;
// What the acceptor sends, each time: a Nonce or a Digest.
inline constexpr std::size_t kAnswerBytes = 32;

// What both ends of a connection must agree on, seen from one end.
struct Identity {
  auth::SessionKey key;
  int rank = 0;
  int worldSize = 1;
};

// Fresh for every connection and end. Throws Error(kInternal) if the system has no randomness.
Nonce makeNonce();
// `stream`: which of the opener's connections with the target this is, below kMostRails.
HelloBytes makeHello(const Identity& self, Stream target, const Nonce& nonce);

enum class HelloVerdict : std::uint8_t {
  kAccepted,   // so far: nothing is proved yet
  kForeign,    // not our protocol
  kVersion,    // another version, header size or byte order
  kWorldSize,  // the opener believes in a group of another size
  kRank,       // no rank of this group, or ourselves
  kTarget,     // meant for another rank
  kStream,     // no connection that there can be
};
struct HelloResult {
  HelloVerdict verdict = HelloVerdict::kForeign;
  Stream from = -1;  // who and which the opener says it is, if accepted
};
HelloResult checkHello(std::span<const std::byte, kHelloBytes> bytes, const Identity& self);
// For people: "it ...".
const char* describe(HelloVerdict verdict);

// All that is proved over one connection; both ends compute the same. Compare with
// auth::isEqual(). `binding`: a ChannelBinding, or empty in the clear.
struct Proofs {
  auth::Digest proof;
  auth::Digest welcome;
  auth::Digest farewell;  // the acceptor leaves in good order
  auth::Digest failure;   // the acceptor's group has failed
};
Proofs proofsOf(const auth::SessionKey& key, const HelloBytes& hello, const Nonce& challenge,
                auth::Bytes binding = {});

}  // namespace smd::transport::tcp
