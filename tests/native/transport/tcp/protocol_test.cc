// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The bytes of native/transport/tcp/protocol.h, by table.
#include "transport/tcp/protocol.h"

#include <gtest/gtest.h>

#include <string>

namespace smd::transport::tcp {
namespace {

Identity rankOf(int rank, int worldSize = 4) {
  Identity identity;
  identity.key.bytes.fill(std::byte{1});
  identity.rank = rank;
  identity.worldSize = worldSize;
  return identity;
}

HelloBytes helloOf(const Identity& opener, int target) {
  return makeHello(opener, target, makeNonce());
}

TEST(Hello, IsAcceptedByTheRankItIsMeantFor) {
  for (const int opener : {0, 1, 3}) {
    const HelloResult result = checkHello(helloOf(rankOf(opener), 2), rankOf(2));
    EXPECT_EQ(result.verdict, HelloVerdict::kAccepted);
    EXPECT_EQ(result.from.peer, opener);
  }
}

TEST(Hello, IsRefusedForOneReasonEach) {
  struct Case {
    const char* what;
    Identity opener;
    int target;
    HelloVerdict verdict;
  };
  for (const Case& each : {
           Case{"another world size", rankOf(1, 5), 2, HelloVerdict::kWorldSize},
           Case{"rank beyond the last", rankOf(4), 2, HelloVerdict::kRank},
           Case{"negative rank", rankOf(-1), 2, HelloVerdict::kRank},
           Case{"our own rank", rankOf(2), 2, HelloVerdict::kRank},
           Case{"another target", rankOf(1), 3, HelloVerdict::kTarget},
       }) {
    const HelloResult result = checkHello(helloOf(each.opener, each.target), rankOf(2));
    EXPECT_EQ(result.verdict, each.verdict) << each.what;
    EXPECT_EQ(result.from.peer, -1) << each.what;
    EXPECT_EQ(std::string(describe(result.verdict)).rfind("it ", 0), 0U) << each.what;
  }
  EXPECT_EQ(checkHello(HelloBytes{}, rankOf(2)).verdict, HelloVerdict::kForeign);
}

TEST(Hello, EveryByteThatMeansSomethingIsChecked) {
  const HelloBytes good = helloOf(rankOf(1), 2);
  constexpr std::size_t kNonceFrom = 32;  // which may be anything
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto bytes = good;
    bytes[i] ^= std::byte{0x80};
    const HelloResult result = checkHello(bytes, rankOf(2));
    EXPECT_EQ(result.verdict == HelloVerdict::kAccepted, i >= kNonceFrom) << "byte " << i;
  }
}

TEST(Nonce, IsFreshEachTime) { EXPECT_NE(makeNonce(), makeNonce()); }

TEST(Proofs, DependOnTheKeyAndOnEveryByteOfBothNonces) {
  const HelloBytes hello = helloOf(rankOf(1), 2);
  const Nonce challenge = makeNonce();
  const Proofs proofs = proofsOf(rankOf(2).key, hello, challenge);
  EXPECT_TRUE(auth::isEqual(proofs.proof, proofsOf(rankOf(1).key, hello, challenge).proof));
  const auto expectOther = [&](const Proofs& other, const std::string& what) {
    EXPECT_FALSE(auth::isEqual(other.proof, proofs.proof)) << what;
    EXPECT_FALSE(auth::isEqual(other.welcome, proofs.welcome)) << what;
    EXPECT_FALSE(auth::isEqual(other.farewell, proofs.farewell)) << what;
  };
  auth::SessionKey otherKey = rankOf(2).key;
  otherKey.bytes.back() ^= std::byte{1};
  expectOther(proofsOf(otherKey, hello, challenge), "another key");
  for (std::size_t i = 0; i < hello.size(); ++i) {
    HelloBytes changed = hello;
    changed[i] ^= std::byte{1};
    expectOther(proofsOf(rankOf(2).key, changed, challenge), "hello " + std::to_string(i));
  }
  for (std::size_t i = 0; i < challenge.size(); ++i) {
    Nonce changed = challenge;
    changed[i] ^= std::byte{1};
    expectOther(proofsOf(rankOf(2).key, hello, changed), "challenge " + std::to_string(i));
  }
}

TEST(Proofs, OfOneRoleStandForNoOther) {
  const Proofs proofs = proofsOf(rankOf(2).key, helloOf(rankOf(1), 2), makeNonce());
  EXPECT_FALSE(auth::isEqual(proofs.proof, proofs.welcome));
  EXPECT_FALSE(auth::isEqual(proofs.proof, proofs.farewell));
  EXPECT_FALSE(auth::isEqual(proofs.welcome, proofs.farewell));
}

}  // namespace
}  // namespace smd::transport::tcp
