// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Matching of frames and receives. The transport is the test itself: frames begin and end when it
// says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include "transport/mailbox.h"

namespace smd::transport {
namespace {

class SilentTransport final : public Transport {
 public:
  void send(int, const FrameHeader&, const void*, SendTicket*) override {}
  void expect(int peer) override { expected.push_back(peer); }
  bool poll() override { return false; }
  void close(std::chrono::milliseconds, Ending) override {}
  std::vector<int> expected;
};

class MailboxTest : public ::testing::Test {
 protected:
  static constexpr int kSize = 4;

  void SetUp() override {
    for (int peer = 1; peer < kSize; ++peer) mailbox_.setTransport(peer, &transport_);
  }

  static FrameHeader header(std::uint64_t tag, std::uint64_t length,
                            Channel channel = Channel::kPointToPoint) {
    FrameHeader frame;
    frame.tag = tag;
    frame.length = length;
    frame.channel = channel;
    return frame;
  }

  // The bytes of a frame tell its sender and tag.
  static std::byte valueOf(int peer, std::uint64_t tag) {
    return static_cast<std::byte>(static_cast<std::uint64_t>(peer) * 50 + tag);
  }

  void begin(int peer, const FrameHeader& frame) {
    std::byte* to = mailbox_.frameBegin(peer, frame);
    if (to == nullptr) return;  // it goes nowhere
    std::memset(to, static_cast<int>(valueOf(peer, frame.tag)), frame.length);
  }
  void end(int peer, const FrameHeader& frame) { mailbox_.frameEnd(peer, frame); }
  void arrive(int peer, const FrameHeader& frame) {
    begin(peer, frame);
    end(peer, frame);
  }

  struct Posted {
    std::vector<std::byte> bytes;
    Receive receive;
  };
  Posted& post(int peer, std::uint64_t tag, std::size_t length,
               Channel channel = Channel::kPointToPoint) {
    Posted& posted = posted_.emplace_back();
    posted.bytes.resize(length, std::byte{0xEE});
    posted.receive.peer = peer;
    posted.receive.tag = tag;
    posted.receive.channel = channel;
    posted.receive.data = posted.bytes.data();
    posted.receive.bytes = length;
    mailbox_.post(posted.receive);
    return posted;
  }

  static void expectFrom(const Posted& posted, int peer, std::uint64_t tag) {
    ASSERT_TRUE(posted.receive.isDone());
    EXPECT_EQ(posted.receive.source, peer);
    EXPECT_EQ(posted.receive.header.tag, tag);
    EXPECT_EQ(posted.bytes, std::vector<std::byte>(posted.bytes.size(), valueOf(peer, tag)));
  }
  static void expectUntouched(const Posted& posted) {
    EXPECT_EQ(posted.bytes, std::vector<std::byte>(posted.bytes.size(), std::byte{0xEE}));
  }

  int numWakes_ = 0;
  std::vector<std::string> controls_;
  std::vector<int> failed_;
  SilentTransport transport_;
  std::deque<Posted> posted_;
  Mailbox mailbox_{
      kSize,
      {[this] { ++numWakes_; }, [this](int peer, const Error&) { failed_.push_back(peer); },
       [this](int peer, const FrameHeader&, std::string_view text) {
         controls_.push_back(std::to_string(peer) + ": " + std::string(text));
       },
       [](int, const Refusal&) {}}};
};

TEST_F(MailboxTest, AReceiveTakesAFrameThatIsThere) {
  arrive(1, header(5, 100));
  expectFrom(post(1, 5, 100), 1, 5);
}

TEST_F(MailboxTest, AFrameFillsAReceiveThatIsPosted) {
  const Posted& posted = post(1, 5, 100);
  EXPECT_FALSE(posted.receive.isDone());
  begin(1, header(5, 100));
  EXPECT_FALSE(posted.receive.isDone());
  const int before = numWakes_;
  end(1, header(5, 100));
  expectFrom(posted, 1, 5);
  EXPECT_GT(numWakes_, before);
}

TEST_F(MailboxTest, MessagesAreTakenWholeInTheOrderOfTheirArrival) {
  const Posted& posted = post(kAnyPeer, 5, 100, Channel::kMessage);  // is not for receives
  const auto message = [](std::uint64_t tag, std::uint64_t length) {
    return header(tag, length, Channel::kMessage);
  };
  begin(1, message(5, 100));
  EXPECT_FALSE(mailbox_.takeMessage());
  arrive(2, message(6, 10));
  arrive(3, message(7, 0));
  const int before = numWakes_;
  end(1, message(5, 100));
  EXPECT_GT(numWakes_, before);
  begin(2, message(8, 50));
  mailbox_.frameCancelled(2);  // in the middle of one
  mailbox_.linkFailed(2, Error(ErrorKind::kPeerLost, "gone"));
  for (const auto& [peer, tag, length] :
       {std::array<std::uint64_t, 3>{2, 6, 10}, {3, 7, 0}, {1, 5, 100}}) {
    const auto taken = mailbox_.takeMessage();
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->source, static_cast<int>(peer));
    EXPECT_EQ(taken->header.tag, tag);
    ASSERT_EQ(taken->header.length, length);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken->data.get()) % kMessageAlignment, 0u);
    const std::vector<std::byte> expected(length, valueOf(taken->source, tag));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), taken->data.get()));
  }
  EXPECT_FALSE(mailbox_.takeMessage());
  expectUntouched(posted);
}

TEST_F(MailboxTest, AReceiveMayBePostedWhileItsFrameArrives) {
  begin(1, header(5, 100));
  const Posted& posted = post(1, 5, 100);
  EXPECT_FALSE(posted.receive.isDone());
  // The next one like it must not take the same frame.
  const Posted& next = post(1, 5, 100);
  end(1, header(5, 100));
  expectFrom(posted, 1, 5);
  EXPECT_FALSE(next.receive.isDone());
  arrive(1, header(5, 100));
  expectFrom(next, 1, 5);
}

TEST_F(MailboxTest, TagsPeersAndChannelsMustAgree) {
  const Posted& otherTag = post(1, 6, 10);
  const Posted& otherPeer = post(2, 5, 10);
  const Posted& otherChannel = post(1, 5, 10, Channel::kCollective);
  const Posted& right = post(1, 5, 10);
  arrive(1, header(5, 10));
  expectFrom(right, 1, 5);
  EXPECT_FALSE(otherTag.receive.isDone());
  EXPECT_FALSE(otherPeer.receive.isDone());
  EXPECT_FALSE(otherChannel.receive.isDone());
  arrive(1, header(5, 10, Channel::kCollective));
  arrive(2, header(5, 10));
  arrive(1, header(6, 10));
  expectFrom(otherTag, 1, 6);
  expectFrom(otherPeer, 2, 5);
  expectFrom(otherChannel, 1, 5);
}

TEST_F(MailboxTest, FramesAreTakenInTheOrderTheyWereSent) {
  for (std::uint64_t length : {1, 2, 3}) arrive(1, header(7, length));
  for (std::uint64_t length : {1, 2, 3}) {
    const Posted& posted = post(1, 7, length);
    expectFrom(posted, 1, 7);
    EXPECT_EQ(posted.receive.header.length, length);
  }
}

TEST_F(MailboxTest, ReceivesAreFilledInTheOrderTheyWerePosted) {
  std::vector<const Posted*> posted;
  for (int i = 0; i < 3; ++i) posted.push_back(&post(1, 7, 4));
  for (std::size_t i = 0; i < 3; ++i) {
    arrive(1, header(7, 4));
    for (std::size_t j = 0; j < 3; ++j) EXPECT_EQ(posted[j]->receive.isDone(), j <= i);
  }
}

TEST_F(MailboxTest, TagsMayBeTakenInAnotherOrder) {
  for (std::uint64_t tag : {1, 2, 3}) arrive(1, header(tag, 8));
  for (std::uint64_t tag : {3, 1, 2}) expectFrom(post(1, tag, 8), 1, tag);
}

TEST_F(MailboxTest, AnySourceTakesWhoeverIsFirst) {
  arrive(3, header(5, 8));
  arrive(1, header(5, 8));
  expectFrom(post(kAnyPeer, 5, 8), 3, 5);
  expectFrom(post(kAnyPeer, 5, 8), 1, 5);
  const Posted& waiting = post(kAnyPeer, 5, 8);
  arrive(2, header(6, 8));
  EXPECT_FALSE(waiting.receive.isDone());
  arrive(2, header(5, 8));
  expectFrom(waiting, 2, 5);
}

TEST_F(MailboxTest, AnySourceCannotStarveAnEarlierReceive) {
  const Posted& fromOne = post(1, 5, 8);
  const Posted& fromAny = post(kAnyPeer, 5, 8);
  arrive(1, header(5, 8));
  expectFrom(fromOne, 1, 5);
  EXPECT_FALSE(fromAny.receive.isDone());
}

TEST_F(MailboxTest, FramesOfSeveralPeersMayArriveAtOnce) {
  const Posted& one = post(1, 5, 8);
  begin(1, header(5, 8));
  begin(2, header(5, 8));
  begin(3, header(5, 8));
  const Posted& three = post(3, 5, 8);
  end(3, header(5, 8));
  end(2, header(5, 8));
  end(1, header(5, 8));
  expectFrom(one, 1, 5);
  expectFrom(three, 3, 5);
  expectFrom(post(2, 5, 8), 2, 5);
}

TEST_F(MailboxTest, AFrameOfAnotherLengthCompletesTheReceiveButStoresNothing) {
  const Posted& posted = post(1, 5, 10);
  arrive(1, header(5, 9));
  begin(1, header(6, 11));
  const Posted& claimed = post(1, 6, 10);
  end(1, header(6, 11));
  arrive(1, header(7, 11));
  const Posted& late = post(1, 7, 10);
  for (const Posted* each : {&posted, &claimed, &late}) {
    EXPECT_TRUE(each->receive.isDone());
    EXPECT_NE(each->receive.header.length, each->receive.bytes);
    expectUntouched(*each);
  }
}

// However long it is: to throw it away takes no memory.
TEST_F(MailboxTest, AFrameOfAnotherLengthGoesNowhere) {
  const std::uint64_t cleared = Windows(kSize).atOnce(Channel::kPointToPoint) + 1;
  const Posted& posted = post(1, 5, cleared);
  EXPECT_EQ(mailbox_.frameBegin(1, header(5, kMaxFrameBytes)), nullptr);
  end(1, header(5, kMaxFrameBytes));
  ASSERT_TRUE(posted.receive.isDone());
  EXPECT_EQ(posted.receive.header.length, kMaxFrameBytes);
  expectUntouched(posted);
  EXPECT_EQ(mailbox_.unexpectedBytes(), 0u);
}

TEST_F(MailboxTest, EmptyFramesCount) {
  const Posted& posted = post(1, 5, 0);
  arrive(1, header(5, 0));
  EXPECT_TRUE(posted.receive.isDone());
  arrive(1, header(5, 0));
  EXPECT_TRUE(post(1, 5, 0).receive.isDone());
}

TEST_F(MailboxTest, ACancelledReceiveTakesNothing) {
  Posted& posted = post(1, 5, 8);
  EXPECT_TRUE(mailbox_.cancel(posted.receive));
  EXPECT_FALSE(mailbox_.cancel(posted.receive));
  arrive(1, header(5, 8));
  EXPECT_FALSE(posted.receive.isDone());
  expectUntouched(posted);
  expectFrom(post(1, 5, 8), 1, 5);
}

TEST_F(MailboxTest, AReceiveWhoseFrameIsArrivingCannotBeCancelled) {
  Posted& posted = post(1, 5, 8);
  begin(1, header(5, 8));
  EXPECT_FALSE(mailbox_.cancel(posted.receive));
  begin(2, header(6, 8));
  Posted& claimed = post(2, 6, 8);
  EXPECT_FALSE(mailbox_.cancel(claimed.receive));
  end(1, header(5, 8));
  end(2, header(6, 8));
  expectFrom(posted, 1, 5);
  expectFrom(claimed, 2, 6);
  EXPECT_FALSE(mailbox_.cancel(posted.receive));
}

TEST_F(MailboxTest, ControlFramesGoToTheEngineAndNobodyElse) {
  const Posted& any = post(kAnyPeer, 0, 5);
  FrameHeader frame = header(0, 5, Channel::kControl);
  std::memcpy(mailbox_.frameBegin(2, frame), "hello", 5);
  mailbox_.frameEnd(2, frame);
  EXPECT_EQ(controls_, (std::vector<std::string>{"2: hello"}));
  EXPECT_FALSE(any.receive.isDone());
}

TEST_F(MailboxTest, AFailedLinkDropsTheHalfFrameOnly) {
  arrive(1, header(4, 8));
  begin(1, header(5, 8));
  mailbox_.frameCancelled(1);
  mailbox_.linkFailed(1, Error(ErrorKind::kPeerLost, "gone"));
  EXPECT_EQ(failed_, (std::vector<int>{1}));
  expectFrom(post(1, 4, 8), 1, 4);
  EXPECT_FALSE(post(1, 5, 8).receive.isDone());
}

// Also of one that somebody has posted a receive for meanwhile, or before.
TEST_F(MailboxTest, ACancelledFrameLetsGoOfItsReceive) {
  const Posted& before = post(1, 5, 8);
  begin(1, header(5, 8));
  mailbox_.frameCancelled(1);
  begin(2, header(6, 8));
  const Posted& meanwhile = post(2, 6, 8);
  mailbox_.frameCancelled(2);
  arrive(1, header(7, 8));  // into the same stream, for nobody
  arrive(2, header(7, 8));
  EXPECT_FALSE(before.receive.isDone());
  EXPECT_FALSE(meanwhile.receive.isDone());
  expectFrom(post(2, 7, 8), 2, 7);
}

// A link is needed to notice that the awaited peer dies: of anyone, if anyone may answer.
TEST_F(MailboxTest, AwaitedPeersAreExpected) {
  post(2, 5, 8);
  EXPECT_EQ(transport_.expected, (std::vector<int>{2}));
  transport_.expected.clear();
  post(kAnyPeer, 5, 8);
  EXPECT_EQ(transport_.expected, (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace smd::transport
