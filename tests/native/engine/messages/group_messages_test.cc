// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What moves the messages of a group, and what ends a wait for one. Their bytes are tested in
// messages_test.cc.
#include "engine/messages/group_messages.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/lone_rank.h"

namespace smd::engine::test {
namespace {

std::span<const std::byte> bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

struct MessagingRank : LoneRank {
  using LoneRank::LoneRank;
  Doorbell bell;
  GroupMessages messages{peers, positions, failure, bell, 0};

  bool post(int peer, std::string_view header) { return messages.post(peer, bytesOf(header), {}); }
  // What `peer` has sent last, as the wires of `sender` have it, arrives here.
  void deliver(const LoneRank& sender) const {
    const RecordingTransport::Frame& frame = sender.wires->sent.back();
    arrive(sender.peers.rank, frame.header, frame.payload);
  }
};

template <class Function>
std::string errorOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(GroupMessages, WhatIsPostedIsTakenOnTheOtherSide) {
  MessagingRank sender(0, 2);
  MessagingRank receiver(1, 2);
  EXPECT_FALSE(sender.post(1, "hello")) << "it is out";
  EXPECT_FALSE(receiver.messages.next(std::nullopt).has_value());
  receiver.deliver(sender);
  const std::optional<Message> message = receiver.messages.next(std::nullopt);
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->source(), 0);
  EXPECT_EQ(std::memcmp(message->header().data(), "hello", 5), 0);
  EXPECT_EQ(receiver.wires->expected, std::vector<int>{0}) << "its death is to be noticed";
}

TEST(GroupMessages, WhatIsLeftIsAdvancedUntilItIsOut) {
  MessagingRank rank(0, 2);
  rank.wires->sendsAtOnce = false;
  EXPECT_TRUE(rank.post(1, "first")) << "somebody must advance it";
  EXPECT_FALSE(rank.post(1, "second")) << "somebody does";
  EXPECT_TRUE(rank.messages.hasUnsent());
  bool moved = false;
  EXPECT_TRUE(rank.messages.advance(moved));
  EXPECT_FALSE(moved);
  for (transport::SendTicket* ticket : rank.wires->pending) {
    ticket->complete(transport::SendTicket::State::kSent);
  }
  EXPECT_FALSE(rank.messages.advance(moved));
  EXPECT_TRUE(moved);
}

TEST(GroupMessages, AWaitEndsInTime) {
  MessagingRank rank(0, 2);
  const TimePoint end = Clock::now() + milliseconds(20);
  EXPECT_FALSE(rank.messages.next(end).has_value());
  EXPECT_GE(Clock::now(), end);
}

TEST(GroupMessages, OneThreadTakesAtATime) {
  MessagingRank rank(0, 2);
  std::string second;
  rank.wires->onPoll = [&] { second = errorOf([&] { rank.messages.next(std::nullopt); }); };
  EXPECT_FALSE(rank.messages.next(std::nullopt).has_value());
  EXPECT_NE(second.find("two threads of rank 0 wait for the next message"), second.npos) << second;
  rank.wires->onPoll = nullptr;
  EXPECT_FALSE(rank.messages.next(std::nullopt).has_value()) << "the first goes on taking";
}

TEST(GroupMessages, APeerThatIsLostEndsTheGroupOnceItsMessagesAreTaken) {
  MessagingRank sender(1, 3);
  MessagingRank rank(0, 3);
  sender.post(0, "last words");
  rank.deliver(sender);
  rank.peers.liveness->reportLost(1, "died");
  EXPECT_TRUE(rank.messages.next(std::nullopt).has_value());
  sender.post(0, "the very last");
  rank.wires->onCatchUp = [&] { rank.deliver(sender); };
  EXPECT_TRUE(rank.messages.next(std::nullopt).has_value()) << "another thread still had it";
  EXPECT_FALSE(rank.failure.hasEnded());
  const std::string text = errorOf([&] { rank.messages.next(std::nullopt); });
  EXPECT_TRUE(text.starts_with("next_message on rank 0 of 3 (host host-0, group 'test'): rank 1"))
      << text;
  EXPECT_NE(text.find("died while messages were exchanged"), text.npos) << text;
  EXPECT_TRUE(rank.failure.hasEnded());
}

TEST(GroupMessages, NobodyPostsToOneThatHasLeftOrIntoAGroupThatHasFailed) {
  const auto region = transport::shm::Region::create(3, 0);
  MessagingRank rank(0, 3, region);
  region->view(2).mine().presence = transport::Presence::kLeft;
  EXPECT_EQ(errorOf([&] { rank.post(1, "hello"); }), "");
  const std::string left = errorOf([&] { rank.post(2, "hello"); });
  EXPECT_TRUE(left.starts_with("post_message on rank 0 of 3")) << left;
  EXPECT_NE(left.find("left the group"), left.npos) << left;
  EXPECT_FALSE(rank.failure.hasEnded()) << "the others can go on";
  rank.failure.fail(Error(ErrorKind::kTimeout, "the first"));
  EXPECT_NE(errorOf([&] { rank.post(1, "hello"); }).find("the first"), std::string::npos);
}

}  // namespace
}  // namespace smd::engine::test
