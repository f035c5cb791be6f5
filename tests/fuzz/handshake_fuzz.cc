// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Whatever a stranger sends to a port of ours: nobody gets in without the key.
//
// Input: the stranger's bytes, cut into pieces by their own values. Bit 0 of the first byte says
// that the stranger knows the key: then the 32 bytes that follow the hello are replaced by the
// right proof, which no fuzzer could guess, so that what lies behind it is reached too.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "transport/tcp/handshake.h"

namespace {

using smd::transport::tcp::AcceptorHandshake;
using smd::transport::tcp::Identity;
using smd::transport::tcp::OpenerHandshake;

void require(bool isTrue) {
  if (!isTrue) std::abort();
}

Identity makeIdentity(int rank) {
  Identity identity;
  identity.key = smd::auth::deriveSessionKey("token", smd::auth::SessionId{});
  identity.rank = rank;
  identity.worldSize = 4;
  return identity;
}

void asAcceptor(std::span<const std::byte> bytes, bool knowsKey) {
  static const Identity self = makeIdentity(1);
  AcceptorHandshake acceptor(self);
  bool isChallenged = false;
  while (!bytes.empty()) {
    const std::span<std::byte> missing = acceptor.missing();
    require(!missing.empty());
    const std::size_t cut = 1 + std::to_integer<std::size_t>(bytes.front());
    const std::size_t part = std::min({missing.size(), bytes.size(), cut});
    std::copy_n(bytes.begin(), part, missing.begin());
    bytes = bytes.subspan(part);
    if (isChallenged && knowsKey && part == missing.size()) {
      // The end of the proof: where it began is known from its size.
      const std::size_t before = smd::transport::tcp::kAnswerBytes - part;
      std::memcpy(missing.data() - before, acceptor.proofs().proof.data(),
                  smd::transport::tcp::kAnswerBytes);
    }
    switch (acceptor.advance(part)) {
      case AcceptorHandshake::Step::kMore:
        break;
      case AcceptorHandshake::Step::kSendChallenge:
        require(!isChallenged);
        isChallenged = true;
        break;
      case AcceptorHandshake::Step::kRefused:
        require(!acceptor.reason().empty());
        require(!isChallenged || !knowsKey);
        return;
      case AcceptorHandshake::Step::kProved:
        require(isChallenged && knowsKey);
        require(acceptor.from().peer >= 0 && acceptor.from().peer < self.worldSize &&
                acceptor.from().peer != self.rank);
        return;
    }
  }
}

// What answers when we open a connection may be a stranger too.
void asOpener(std::span<const std::byte> bytes) {
  static const Identity self = makeIdentity(2);
  constexpr std::size_t kAnswer = smd::transport::tcp::kAnswerBytes;
  if (bytes.size() < 2 * kAnswer) {
    return;
  }
  OpenerHandshake opener(self, 1);
  smd::transport::tcp::Nonce challenge;
  smd::auth::Digest welcome;
  std::copy_n(bytes.begin(), kAnswer, challenge.begin());
  std::copy_n(bytes.begin() + kAnswer, kAnswer, welcome.begin());
  opener.answerChallenge(self, challenge);
  require(!opener.isWelcome(welcome) && !opener.isFarewell(welcome));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  if ((data[0] & 2) != 0) {
    asOpener(bytes);
  } else {
    asAcceptor(bytes, (data[0] & 1) != 0);
  }
  return 0;
}
