// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The bytes of native/transport/tcp/protocol.h, by table.
#include "transport/tcp/protocol.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

namespace smd::transport::tcp {
namespace {

Identity rankOf(int rank, int worldSize = 4, int seed = 1) {
  Identity identity;
  identity.cookie.fill(static_cast<std::byte>(seed));
  identity.rank = rank;
  identity.worldSize = worldSize;
  return identity;
}

TEST(Hello, IsAcceptedByTheRankItIsMeantFor) {
  for (const int opener : {0, 1, 3}) {
    const HelloResult result = checkHello(makeHello(rankOf(opener), 2), rankOf(2));
    EXPECT_EQ(result.verdict, HelloVerdict::kAccepted);
    EXPECT_EQ(result.rank, opener);
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
           Case{"another cookie", rankOf(1, 4, 2), 2, HelloVerdict::kCookie},
           Case{"another cookie and world size", rankOf(1, 5, 2), 2, HelloVerdict::kCookie},
           Case{"another world size", rankOf(1, 5), 2, HelloVerdict::kWorldSize},
           Case{"rank beyond the last", rankOf(4), 2, HelloVerdict::kRank},
           Case{"negative rank", rankOf(-1), 2, HelloVerdict::kRank},
           Case{"our own rank", rankOf(2), 2, HelloVerdict::kRank},
           Case{"another target", rankOf(1), 3, HelloVerdict::kTarget},
       }) {
    const HelloResult result = checkHello(makeHello(each.opener, each.target), rankOf(2));
    EXPECT_EQ(result.verdict, each.verdict) << each.what;
    EXPECT_EQ(result.rank, -1) << each.what;
  }
}

TEST(Hello, EveryByteThatMeansSomethingIsChecked) {
  const auto good = makeHello(rankOf(1), 2);
  constexpr std::size_t kReservedFrom = 44;
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto bytes = good;
    bytes[i] ^= std::byte{0x80};
    const HelloResult result = checkHello(bytes, rankOf(2));
    EXPECT_EQ(result.verdict == HelloVerdict::kAccepted, i >= kReservedFrom) << "byte " << i;
  }
  EXPECT_EQ(checkHello(std::array<std::byte, kHelloBytes>{}, rankOf(2)).verdict,
            HelloVerdict::kForeign);
}

TEST(Reply, IsAcceptedByItsOpenerOnly) {
  const auto reply = makeReply(rankOf(2), 1);
  EXPECT_TRUE(checkReply(reply, rankOf(1), 2));
  EXPECT_FALSE(checkReply(reply, rankOf(1), 3));        // answered by another rank
  EXPECT_FALSE(checkReply(reply, rankOf(0), 2));        // meant for another opener
  EXPECT_FALSE(checkReply(reply, rankOf(1, 4, 2), 2));  // another cookie
  EXPECT_FALSE(checkFarewell(reply, rankOf(1), 2));
  for (std::size_t i = 0; i < reply.size(); ++i) {
    auto bytes = reply;
    bytes[i] ^= std::byte{1};
    const bool isReserved = i >= 12 && i < 16;
    EXPECT_EQ(checkReply(bytes, rankOf(1), 2), isReserved) << "byte " << i;
  }
}

TEST(Reply, DoesNotContainTheCookie) {
  Identity acceptor = rankOf(2);
  for (std::size_t i = 0; i < acceptor.cookie.size(); ++i) {
    acceptor.cookie[i] = static_cast<std::byte>(i * 13 + 5);
  }
  const auto reply = makeReply(acceptor, 1);
  EXPECT_NE(std::memcmp(reply.data() + 16, acceptor.cookie.data(), acceptor.cookie.size()), 0);
}

TEST(Farewell, IsNoReply) {
  const auto farewell = makeFarewell(rankOf(2), 1);
  EXPECT_TRUE(checkFarewell(farewell, rankOf(1), 2));
  EXPECT_FALSE(checkReply(farewell, rankOf(1), 2));
}

TEST(Header, FollowsTheTable) {
  struct Case {
    const char* what;
    std::uint64_t length;
    int channel;
    HeaderVerdict verdict;
  };
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  for (const Case& each : {
           Case{"empty", 0, 0, HeaderVerdict::kFrame},
           Case{"collective", 10, 1, HeaderVerdict::kFrame},
           Case{"control", 10, 2, HeaderVerdict::kFrame},
           Case{"longest", kMaxFrameBytes, 0, HeaderVerdict::kFrame},
           Case{"too long", kMaxFrameBytes + 1, 0, HeaderVerdict::kTooLong},
           Case{"absurd", kAll, 1, HeaderVerdict::kTooLong},
           Case{"first channel that does not exist", 0, 3, HeaderVerdict::kUnknownChannel},
           Case{"unknown and too long", kAll, 200, HeaderVerdict::kUnknownChannel},
           Case{"goodbye", 0, 255, HeaderVerdict::kGoodbye},
           Case{"goodbye with a payload", 1, 255, HeaderVerdict::kUnknownChannel},
       }) {
    FrameHeader header;
    header.length = each.length;
    header.channel = static_cast<Channel>(each.channel);
    EXPECT_EQ(checkHeader(header), each.verdict) << each.what;
  }
  EXPECT_EQ(checkHeader(makeGoodbye()), HeaderVerdict::kGoodbye);
}

}  // namespace
}  // namespace smd::transport::tcp
