// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/protocol.h"

#include <cstring>
#include <type_traits>

namespace smd::transport::tcp {
namespace {

constexpr std::uint64_t kHelloMagic = 0x4F4C4C4548444D53;     // "SMDHELLO"
constexpr std::uint64_t kReplyMagic = 0x594C504552444D53;     // "SMDREPLY"
constexpr std::uint64_t kFarewellMagic = 0x4C4C455746444D53;  // "SMDFWELL"
constexpr std::uint32_t kByteOrderMark = 0x01020304;
constexpr auto kGoodbyeMark = static_cast<Channel>(0xFF);

struct Hello {
  std::uint64_t magic = kHelloMagic;
  std::uint32_t byteOrder = kByteOrderMark;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t headerBytes = sizeof(FrameHeader);
  Cookie cookie{};
  std::int32_t rank = 0;
  std::int32_t worldSize = 0;
  std::int32_t target = 0;
  std::array<std::byte, 20> reserved{};
};
static_assert(sizeof(Hello) == kHelloBytes && std::is_trivially_copyable_v<Hello>);

struct Reply {
  std::uint64_t magic = kReplyMagic;
  std::int32_t rank = 0;
  std::uint32_t reserved = 0;
  Cookie echo{};
};
static_assert(sizeof(Reply) == kReplyBytes && std::is_trivially_copyable_v<Reply>);

bool equalInConstantTime(const Cookie& a, const Cookie& b) {
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= a[i] ^ b[i];
  }
  return difference == std::byte{0};
}

// A bijective scrambling of 64 bits (finalizer of the SplitMix64 generator, Steele et al. 2014).
std::uint64_t scramble(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

Cookie echo(const Cookie& cookie, int opener, int acceptor) {
  std::array<std::uint64_t, 2> words;
  std::memcpy(words.data(), cookie.data(), sizeof(words));
  const auto pair = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(opener)) << 32) |
                    static_cast<std::uint32_t>(acceptor);
  words = {scramble(words[0] ^ scramble(pair)), scramble(words[1] ^ words[0])};
  Cookie result;
  std::memcpy(result.data(), words.data(), sizeof(words));
  return result;
}

template <typename T, std::size_t kBytes>
std::array<std::byte, kBytes> toBytes(const T& value) {
  static_assert(sizeof(T) == kBytes);
  std::array<std::byte, kBytes> bytes;
  std::memcpy(bytes.data(), &value, kBytes);
  return bytes;
}

std::array<std::byte, kReplyBytes> answer(std::uint64_t magic, const Identity& self, int opener) {
  Reply reply;
  reply.magic = magic;
  reply.rank = self.rank;
  reply.echo = echo(self.cookie, opener, self.rank);
  return toBytes<Reply, kReplyBytes>(reply);
}

bool checkAnswer(std::uint64_t magic, std::span<const std::byte, kReplyBytes> bytes,
                 const Identity& self, int target) {
  Reply reply;
  std::memcpy(&reply, bytes.data(), sizeof(reply));
  return reply.magic == magic && reply.rank == target &&
         equalInConstantTime(reply.echo, echo(self.cookie, self.rank, target));
}

}  // namespace

std::array<std::byte, kHelloBytes> makeHello(const Identity& self, int target) {
  Hello hello;
  hello.cookie = self.cookie;
  hello.rank = self.rank;
  hello.worldSize = self.worldSize;
  hello.target = target;
  return toBytes<Hello, kHelloBytes>(hello);
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
  // Before the rest, so that nobody without the cookie learns what else would be wrong.
  if (!equalInConstantTime(hello.cookie, self.cookie)) {
    return {HelloVerdict::kCookie};
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
  return {HelloVerdict::kAccepted, hello.rank};
}

std::array<std::byte, kReplyBytes> makeReply(const Identity& self, int opener) {
  return answer(kReplyMagic, self, opener);
}

bool checkReply(std::span<const std::byte, kReplyBytes> bytes, const Identity& self, int target) {
  return checkAnswer(kReplyMagic, bytes, self, target);
}

std::array<std::byte, kReplyBytes> makeFarewell(const Identity& self, int opener) {
  return answer(kFarewellMagic, self, opener);
}

bool checkFarewell(std::span<const std::byte, kReplyBytes> bytes, const Identity& self,
                   int target) {
  return checkAnswer(kFarewellMagic, bytes, self, target);
}

FrameHeader makeGoodbye() {
  FrameHeader header;
  header.channel = kGoodbyeMark;
  return header;
}

HeaderVerdict checkHeader(const FrameHeader& header) {
  if (header.channel == kGoodbyeMark && header.length == 0) {
    return HeaderVerdict::kGoodbye;
  }
  if (header.channel > Channel::kControl) {
    return HeaderVerdict::kUnknownChannel;
  }
  return header.length > kMaxFrameBytes ? HeaderVerdict::kTooLong : HeaderVerdict::kFrame;
}

}  // namespace smd::transport::tcp
