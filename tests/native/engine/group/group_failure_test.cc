// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How a group ends: which error stays, who is told, and when the wires are closed.
#include "engine/group/group_failure.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "support/lone_rank.h"

namespace smd::engine::test {
namespace {

using Ending = transport::Transport::Ending;
using Closing = RecordingTransport::Closing;

Signature allReduce(std::uint64_t sequence) {
  Signature signature;
  signature.kind = OpKind::kAllReduce;
  signature.sequence = sequence;
  return signature;
}

TEST(GroupFailure, TheFirstErrorStaysAndIsToldOnce) {
  LoneRank rank(0, 3);
  EXPECT_FALSE(rank.failure.hasEnded());
  EXPECT_FALSE(rank.failure.error().has_value());
  rank.failure.noteCompleted(6);
  rank.failure.fail(Error(ErrorKind::kTimeout, "the first"), allReduce(7));
  rank.failure.fail(Error(ErrorKind::kInternal, "the second"));
  EXPECT_TRUE(rank.failure.hasEnded());
  ASSERT_TRUE(rank.failure.error().has_value());
  EXPECT_EQ(rank.failure.error()->kind(), ErrorKind::kTimeout);
  EXPECT_STREQ(rank.failure.error()->what(), "the first");
  ASSERT_EQ(rank.wires->told.size(), 1u);
  const RecordingTransport::Frame& told = rank.wires->told[0];
  EXPECT_EQ(told.payload, "the first");
  EXPECT_EQ(told.header.tag, static_cast<std::uint64_t>(ErrorKind::kTimeout));
  EXPECT_EQ(told.header.signature, allReduce(7));
  EXPECT_EQ(told.header.amount, 7u) << "the first collective that was not completed";
  EXPECT_EQ(rank.wires->closings, (std::vector<Closing>{{milliseconds(200), Ending::kFailure}}));
  EXPECT_EQ(rank.numWakes, 1);
}

TEST(GroupFailure, NewsIsPassedOnAtOnceAndBecomesTheErrorWhenADriverFails) {
  LoneRank rank(0, 3);
  rank.failure.learn({Error(ErrorKind::kPeerLost, "rank 2 died"), allReduce(5), 5});
  rank.failure.learn({Error(ErrorKind::kPeerLost, "rank 1 died"), allReduce(4), 4});
  EXPECT_TRUE(rank.failure.hasNews());
  EXPECT_FALSE(rank.failure.hasEnded()) << "that is for a thread that may wait";
  EXPECT_TRUE(rank.wires->closings.empty());
  EXPECT_STREQ(rank.failure.reported()->what(), "rank 2 died");
  ASSERT_EQ(rank.wires->told.size(), 1u);
  EXPECT_EQ(rank.wires->told[0].payload, "rank 2 died");
  EXPECT_EQ(rank.numWakes, 1);
  EXPECT_TRUE(rank.failure.isSpoiled(5));
  EXPECT_FALSE(rank.failure.isSpoiled(4)) << "all have completed it";
  rank.failure.fail(Error(ErrorKind::kInternal, "my own"));
  EXPECT_STREQ(rank.failure.error()->what(), "rank 2 died");
}

TEST(GroupFailure, ARankThatComesLateReadsThatItWasWaitedFor) {
  for (const std::uint64_t begun : {8u, 9u}) {
    LoneRank rank(0, 2);
    rank.failure.noteBegun(begun);
    rank.failure.learn({Error(ErrorKind::kTimeout, "rank 1 has waited"), allReduce(9), 9});
    rank.failure.fail(*rank.failure.reported());
    const std::string text = rank.failure.error()->what();
    EXPECT_EQ(text.starts_with("the others gave up on this rank"), begun < 9) << text;
    EXPECT_NE(text.find("rank 1 has waited"), text.npos) << text;
  }
}

TEST(GroupFailure, ASendThatWaitedItselfSaysSo) {
  Awaited awaited;
  const auto send = workThatAwaits(awaited, OpKind::kSend, 0);
  send->context.request.root = 1;
  const Error timeout(ErrorKind::kTimeout, "rank 1 has waited");
  LoneRank rank(0, 2);
  rank.failure.fail(timeout);
  EXPECT_STREQ(rank.failure.asSeenBy(*send, timeout).what(), "rank 1 has waited")
      << "that it waited itself is what it says";
  LoneRank other(0, 2);
  other.failure.learn({timeout, {}, 1});
  other.failure.fail(timeout);
  const std::string text = other.failure.asSeenBy(*send, timeout).what();
  EXPECT_NE(text.find("to receive; meanwhile rank 1 has waited"), text.npos) << text;
  const auto other_kind = workThatAwaits(awaited, OpKind::kAllReduce, 1);
  EXPECT_STREQ(other.failure.asSeenBy(*other_kind, timeout).what(), "rank 1 has waited");
}

TEST(GroupFailure, OnOneHostTheFirstToSayItIsHeardByAll) {
  const auto region = transport::shm::Region::create(2, 0);
  LoneRank first(0, 2, region);
  LoneRank second(1, 2, region);
  first.failure.noteCompleted(3);
  EXPECT_FALSE(second.failure.reported().has_value());
  first.failure.fail(Error(ErrorKind::kMismatch, "of rank 0"));
  EXPECT_TRUE(second.failure.reported().has_value());
  EXPECT_FALSE(second.failure.isSpoiled(3));
  EXPECT_TRUE(second.failure.isSpoiled(4));
  second.failure.fail(Error(ErrorKind::kInternal, "of rank 1"));
  EXPECT_EQ(second.failure.error()->kind(), ErrorKind::kMismatch);
  EXPECT_STREQ(second.failure.error()->what(), "of rank 0");
  EXPECT_EQ(second.wires->closings, (std::vector<Closing>{{milliseconds(0), Ending::kFailure}}));
}

TEST(GroupFailure, ATextThatIsTooLongForTheRegionEndsWithAWholeCharacter) {
  const auto region = transport::shm::Region::create(2, 0);
  LoneRank first(0, 2, region);
  LoneRank second(1, 2, region);
  std::string text;  // characters of two bytes, so that one lies across the limit
  while (text.size() < transport::AbortBlock::kTextBytes) text += "é";
  first.failure.fail(Error(ErrorKind::kInternal, text));
  second.failure.fail(Error(ErrorKind::kInternal, "late"));
  const std::string heard = second.failure.error()->what();
  EXPECT_TRUE(text.starts_with(heard));
  EXPECT_EQ(heard.size(), transport::AbortBlock::kTextBytes - 2);
}

TEST(GroupFailure, LeavingClosesInOrderAndTellsNobody) {
  LoneRank rank(0, 2);
  rank.failure.leave(false, milliseconds(2000));
  EXPECT_TRUE(rank.failure.hasEnded());
  EXPECT_NE(std::string(rank.failure.error()->what()).find("closed the group"), std::string::npos);
  rank.failure.fail(Error(ErrorKind::kInternal, "late"));
  EXPECT_NE(std::string(rank.failure.error()->what()).find("closed the group"), std::string::npos);
  EXPECT_TRUE(rank.wires->told.empty());
  EXPECT_EQ(rank.wires->closings, (std::vector<Closing>{{milliseconds(2000), Ending::kInOrder},
                                                        {milliseconds(0), Ending::kInOrder}}));
}

TEST(GroupFailure, LeavingAfterAFailureKeepsTheError) {
  LoneRank rank(0, 2);
  rank.failure.fail(Error(ErrorKind::kTimeout, "the first"));
  rank.failure.leave(true, milliseconds(0));
  EXPECT_STREQ(rank.failure.error()->what(), "the first");
  EXPECT_EQ(rank.wires->closings, (std::vector<Closing>{{milliseconds(200), Ending::kFailure},
                                                        {milliseconds(0), Ending::kInOrder}}))
      << "from then on whoever connects is not told any more";
}

TEST(GroupFailure, NamesTheRankThatCannotGoOnAndWhy) {
  const LoneRank rank(1, 2);
  const auto during = [] { return std::string("all_reduce #3"); };
  const std::string memory = rank.failure.cannotGoOn(std::bad_alloc(), during, 12).what();
  EXPECT_TRUE(memory.starts_with("rank 1 (host host-1")) << memory;
  EXPECT_NE(memory.find("has no memory left for all_reduce #3, 12 bytes;"), memory.npos) << memory;
  const std::string other = rank.failure.cannotGoOn(std::runtime_error("why"), during, 0).what();
  EXPECT_NE(other.find("cannot go on with all_reduce #3: why"), other.npos) << other;
}

TEST(GroupFailure, WhatCannotBeReceivedEndsTheGroup) {
  LoneRank rank(0, 2);
  transport::Refusal refusal;
  refusal.reason = transport::Refusal::Reason::kUnknownChannel;
  rank.failure.noteRefusal(1, refusal);
  ASSERT_TRUE(rank.failure.hasNews());
  const std::string text = rank.failure.reported()->what();
  EXPECT_TRUE(text.starts_with("rank 1 (host host-1")) << text;
  EXPECT_NE(text.find("the same release of smdistributed"), text.npos) << text;
}

}  // namespace
}  // namespace smd::engine::test
