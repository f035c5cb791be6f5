// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The two sides of a handshake without sockets: who is let in, and who is not.
#include "transport/tcp/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

namespace smd::transport::tcp {
namespace {

using Step = AcceptorHandshake::Step;

Identity rankOf(int rank, std::string_view token = "token") {
  return {auth::deriveSessionKey(token, auth::SessionId{std::byte{7}}), rank, 4};
}

// Gives all of `bytes`, as much as is asked for at a time.
Step give(AcceptorHandshake& acceptor, std::span<const std::byte> bytes) {
  Step step = Step::kMore;
  while (!bytes.empty() && step == Step::kMore) {
    const std::span<std::byte> missing = acceptor.missing();
    const std::size_t part = std::min(missing.size(), bytes.size());
    std::copy_n(bytes.begin(), part, missing.begin());
    bytes = bytes.subspan(part);
    step = acceptor.advance(part);
  }
  EXPECT_TRUE(bytes.empty());
  return step;
}

TEST(Handshake, LetsInWhoKnowsTheToken) {
  const Identity self = rankOf(1);
  const Identity peer = rankOf(3);
  AcceptorHandshake acceptor(self);
  OpenerHandshake opener(peer, 1);
  ASSERT_EQ(give(acceptor, opener.hello()), Step::kSendChallenge);
  ASSERT_EQ(give(acceptor, opener.answerChallenge(peer, acceptor.challenge())), Step::kProved);
  EXPECT_EQ(acceptor.from().peer, 3);
  EXPECT_TRUE(opener.isWelcome(acceptor.proofs().welcome));
  EXPECT_TRUE(opener.isFarewell(acceptor.proofs().farewell));
  EXPECT_FALSE(opener.isWelcome(acceptor.proofs().farewell));
}

TEST(Handshake, WorksByteByByte) {
  const Identity self = rankOf(1);
  const Identity peer = rankOf(0);
  AcceptorHandshake acceptor(self);
  OpenerHandshake opener(peer, 1);
  const auto giveSingly = [&acceptor](std::span<const std::byte> bytes) {
    Step last = Step::kMore;
    for (const std::byte& each : bytes) {
      EXPECT_EQ(last, Step::kMore);
      last = give(acceptor, std::span(&each, 1));
    }
    return last;
  };
  ASSERT_EQ(giveSingly(opener.hello()), Step::kSendChallenge);
  EXPECT_EQ(giveSingly(opener.answerChallenge(peer, acceptor.challenge())), Step::kProved);
}

TEST(Handshake, RefusesAnotherTokenAndNone) {
  for (const char* token : {"tokem", ""}) {
    const Identity self = rankOf(1);
    const Identity stranger = rankOf(3, token);
    AcceptorHandshake acceptor(self);
    OpenerHandshake opener(stranger, 1);
    ASSERT_EQ(give(acceptor, opener.hello()), Step::kSendChallenge);
    ASSERT_EQ(give(acceptor, opener.answerChallenge(stranger, acceptor.challenge())),
              Step::kRefused);
    EXPECT_EQ(acceptor.reason(), "it does not know the job's token");
    EXPECT_FALSE(opener.isWelcome(acceptor.proofs().welcome));
  }
}

TEST(Handshake, WithoutATokenRefusesWhoHasNotReadTheStore) {
  const Identity self = rankOf(1, "");
  Identity stranger = self;
  stranger.rank = 3;
  stranger.key = auth::deriveSessionKey("", auth::SessionId{std::byte{8}});
  AcceptorHandshake acceptor(self);
  OpenerHandshake opener(stranger, 1);
  ASSERT_EQ(give(acceptor, opener.hello()), Step::kSendChallenge);
  EXPECT_EQ(give(acceptor, opener.answerChallenge(stranger, acceptor.challenge())), Step::kRefused);
}

TEST(Handshake, RefusesWhatWasRecorded) {
  const Identity self = rankOf(1);
  const Identity peer = rankOf(3);
  OpenerHandshake opener(peer, 1);
  AcceptorHandshake first(self);
  ASSERT_EQ(give(first, opener.hello()), Step::kSendChallenge);
  const auth::Digest recorded = opener.answerChallenge(peer, first.challenge());
  ASSERT_EQ(give(first, recorded), Step::kProved);
  AcceptorHandshake second(self);
  ASSERT_EQ(give(second, opener.hello()), Step::kSendChallenge);
  EXPECT_EQ(give(second, recorded), Step::kRefused);
}

// An attacker between two ranks sends an opener's own words back to it.
TEST(Handshake, RefusesItsOwnWords) {
  const Identity self = rankOf(1);
  OpenerHandshake opener(self, 3);
  AcceptorHandshake own(self);
  EXPECT_EQ(give(own, opener.hello()), Step::kRefused);  // rank 1 is not a peer of rank 1
  const auth::Digest proof = opener.answerChallenge(self, makeNonce());
  EXPECT_FALSE(opener.isWelcome(proof));
}

// An attacker who has no key lets rank 3 prove itself to rank 1, for a connection that rank 3 has
// opened to rank 2.
TEST(Handshake, RefusesWhatWasMeantForAnotherRank) {
  const Identity peer = rankOf(3);
  const Identity self = rankOf(1);
  OpenerHandshake opener(peer, 2);
  AcceptorHandshake relayed(self);
  EXPECT_EQ(give(relayed, opener.hello()), Step::kRefused);
  EXPECT_EQ(relayed.reason(), "it looks for another rank than this one");
}

// Somebody with a certificate of the job's authority, but no token, passes on what two ranks say
// over two TLS connections of its own.
TEST(Handshake, RefusesWhatWasSaidOverAnotherTlsConnection) {
  const Identity self = rankOf(1);
  const Identity peer = rankOf(3);
  const ChannelBinding near{std::byte{1}};
  const ChannelBinding far{std::byte{2}};
  const std::optional<ChannelBinding> inTheClear;
  for (const auto& ofOpener : {std::optional(near), std::optional(far), inTheClear}) {
    for (const auto& ofAcceptor : {std::optional(near), inTheClear}) {
      AcceptorHandshake acceptor(self);
      if (ofAcceptor.has_value()) acceptor.bindTo(*ofAcceptor);
      OpenerHandshake opener(peer, 1, ofOpener);
      ASSERT_EQ(give(acceptor, opener.hello()), Step::kSendChallenge);
      const bool isSame = ofOpener == ofAcceptor;
      EXPECT_EQ(give(acceptor, opener.answerChallenge(peer, acceptor.challenge())),
                isSame ? Step::kProved : Step::kRefused);
      EXPECT_EQ(opener.isWelcome(acceptor.proofs().welcome), isSame);
    }
  }
}

TEST(SessionKey, DiffersByTokenSessionAndLevel) {
  const auth::SessionId session{std::byte{7}};
  const auth::SessionId other{std::byte{8}};
  const auth::Digest key = auth::deriveSessionKey("token", session).bytes;
  EXPECT_EQ(auth::deriveSessionKey("token", session).bytes, key);
  EXPECT_NE(auth::deriveSessionKey("token", other).bytes, key);
  EXPECT_NE(auth::deriveSessionKey("tokem", session).bytes, key);
  EXPECT_NE(auth::deriveSessionKey("", session).bytes, key);
  EXPECT_EQ(auth::deriveSessionKey("token", session).level, auth::Level::kToken);
  EXPECT_EQ(auth::deriveSessionKey("", session).level, auth::Level::kStore);
}

// Test case 1 of RFC 5869, appendix A, shortened to the 32 bytes that we take.
TEST(Hkdf, AgreesWithTheStandard) {
  const std::vector<std::byte> secret(22, std::byte{0x0b});
  std::vector<std::byte> salt(13);
  std::vector<std::byte> info(10);
  for (std::size_t i = 0; i < salt.size(); ++i) salt[i] = static_cast<std::byte>(i);
  for (std::size_t i = 0; i < info.size(); ++i) info[i] = static_cast<std::byte>(0xf0 + i);
  std::string hex;
  for (const std::byte each : auth::hkdfSha256(secret, salt, info)) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[std::to_integer<int>(each) >> 4];
    hex += kDigits[std::to_integer<int>(each) & 15];
  }
  EXPECT_EQ(hex, "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
}

// Test case 2 of RFC 4231.
TEST(Hmac, AgreesWithTheStandard) {
  const auto bytesOf = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  const auth::Digest digest =
      auth::hmacSha256(bytesOf("Jefe"), {bytesOf("what do ya want "), bytesOf("for nothing?")});
  EXPECT_EQ(digest[0], std::byte{0x5b});
  EXPECT_EQ(digest[1], std::byte{0xdc});
  EXPECT_EQ(digest[31], std::byte{0x43});
}

}  // namespace
}  // namespace smd::transport::tcp
