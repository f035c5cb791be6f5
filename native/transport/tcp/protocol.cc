// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/protocol.h"

#include <cstring>
#include <string_view>
#include <type_traits>

#include "transport/tcp/rails.h"

namespace smd::transport::tcp {
namespace {

constexpr std::uint64_t kHelloMagic = 0x4F4C4C4548444D53;  // "SMDHELLO"
constexpr std::uint32_t kByteOrderMark = 0x01020304;

struct Hello {
  std::uint64_t magic = kHelloMagic;
  std::uint32_t byteOrder = kByteOrderMark;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t headerBytes = sizeof(FrameHeader);
  std::int32_t rank = 0;
  std::int32_t worldSize = 0;
  std::int32_t target = 0;
  std::int32_t stream = 0;
  Nonce nonce{};
};
static_assert(sizeof(Hello) == kHelloBytes && std::is_trivially_copyable_v<Hello>);
static_assert(sizeof(Nonce) == kAnswerBytes && sizeof(auth::Digest) == kAnswerBytes);

// Each role has a label of its own, so none can stand for another.
auth::Digest prove(const auth::SessionKey& key, std::string_view role, const HelloBytes& hello,
                   const Nonce& challenge, auth::Bytes binding) {
  return auth::hmacSha256(key.bytes, {std::as_bytes(std::span(role)), hello, challenge, binding});
}

}  // namespace

Nonce makeNonce() {
  Nonce nonce;
  auth::fillRandom(nonce);
  return nonce;
}

HelloBytes makeHello(const Identity& self, Stream target, const Nonce& nonce) {
  Hello hello;
  hello.rank = self.rank;
  hello.worldSize = self.worldSize;
  hello.target = target.peer;
  hello.stream = target.index;
  hello.nonce = nonce;
  HelloBytes bytes;
  std::memcpy(bytes.data(), &hello, sizeof(hello));
  return bytes;
}

HelloResult checkHello(std::span<const std::byte, kHelloBytes> bytes, const Identity& self) {
  Hello hello;
  std::memcpy(&hello, bytes.data(), sizeof(hello));
  if (hello.magic != kHelloMagic) {
    return {HelloVerdict::kForeign};
  }
  if (hello.version != kProtocolVersion || hello.headerBytes != sizeof(FrameHeader) ||
      hello.byteOrder != kByteOrderMark) {
    return {HelloVerdict::kVersion};
  }
  if (hello.worldSize != self.worldSize) {
    return {HelloVerdict::kWorldSize};
  }
  if (hello.rank < 0 || hello.rank >= self.worldSize || hello.rank == self.rank) {
    return {HelloVerdict::kRank};
  }
  if (hello.target != self.rank) {
    return {HelloVerdict::kTarget};
  }
  if (hello.stream < 0 || hello.stream >= static_cast<int>(kMostRails)) {
    return {HelloVerdict::kStream};
  }
  return {HelloVerdict::kAccepted, {hello.rank, hello.stream}};
}

const char* describe(HelloVerdict verdict) {
  switch (verdict) {
    case HelloVerdict::kAccepted:
      return "it introduced itself properly";
    case HelloVerdict::kForeign:
      return "it does not speak this library's protocol";
    case HelloVerdict::kVersion:
      return "it runs another version of smdistributed, or another kind of machine";
    case HelloVerdict::kWorldSize:
      return "it belongs to a group of another size";
    case HelloVerdict::kRank:
      return "it claims a rank that no other process of this group has";
    case HelloVerdict::kTarget:
      return "it looks for another rank than this one";
    case HelloVerdict::kStream:
      return "it opens more connections than two ranks have";
  }
  return "";
}

Proofs proofsOf(const auth::SessionKey& key, const HelloBytes& hello, const Nonce& challenge,
                auth::Bytes binding) {
  return {prove(key, "smddp proof", hello, challenge, binding),
          prove(key, "smddp welcome", hello, challenge, binding),
          prove(key, "smddp farewell", hello, challenge, binding),
          prove(key, "smddp failure", hello, challenge, binding)};
}

}  // namespace smd::transport::tcp
