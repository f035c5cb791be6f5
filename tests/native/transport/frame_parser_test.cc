// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Bytes to frames without sockets or rings: however they are cut, and whatever they are.
#include "transport/frame_parser.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/transport_conformance.h"

namespace smd::transport::test {

// The header has the suite of transports, and this is none.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

}  // namespace smd::transport::test

namespace smd::transport {
namespace {

using test::frameHeader;
using test::payload;
using test::RecordingSink;

constexpr int kPeer = 3;

std::vector<std::byte> bytesOf(const FrameHeader& header) {
  std::vector<std::byte> bytes(sizeof(header));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

void append(std::vector<std::byte>& bytes, const std::vector<std::byte>& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

TEST(FrameParser, FindsTheFramesHoweverTheBytesAreCut) {
  const std::vector<std::size_t> lengths = {0, 1, 100, 0, 57};
  std::vector<std::byte> stream;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    append(stream, bytesOf(frameHeader(i, lengths[i])));
    append(stream, payload(kPeer, 0, i, lengths[i]));
  }
  append(stream, bytesOf(makeGoodbye()));
  for (std::size_t step = 1; step <= stream.size(); ++step) {
    RecordingSink sink;
    FrameParser parser(kPeer, sink);
    for (std::size_t from = 0; from < stream.size(); from += step) {
      const auto part = std::span(stream).subspan(from, std::min(step, stream.size() - from));
      ASSERT_FALSE(parser.consume(part).has_value()) << "in steps of " << step;
    }
    EXPECT_TRUE(parser.hasLeft());
    ASSERT_EQ(sink.count(kPeer), lengths.size()) << "in steps of " << step;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      test::expectFrame(sink.frame(kPeer, i), kPeer, 0, i, lengths[i]);
    }
  }
}

TEST(FrameParser, TakesPayloadThatIsPutInItsPlace) {
  RecordingSink sink;
  FrameParser parser(kPeer, sink);
  EXPECT_EQ(parser.missing(), 0U);
  ASSERT_FALSE(parser.consume(bytesOf(frameHeader(5, 10))).has_value());
  const auto bytes = payload(kPeer, 0, 5, 10);
  for (std::size_t placed = 0; placed < bytes.size(); placed += 5) {
    ASSERT_EQ(parser.missing(), bytes.size() - placed);
    std::memcpy(parser.destination(), bytes.data() + placed, 5);
    EXPECT_FALSE(parser.placed(5).has_value());
  }
  ASSERT_EQ(sink.count(kPeer), 1U);
  test::expectFrame(sink.frame(kPeer, 0), kPeer, 0, 5, 10);
}

TEST(FrameParser, ThrowsAwayWhatHasNoPlace) {
  std::vector<std::byte> stream = bytesOf(frameHeader(1, 100));
  append(stream, payload(kPeer, 0, 1, 100));
  append(stream, bytesOf(frameHeader(2, 10)));
  append(stream, payload(kPeer, 0, 2, 10));
  for (std::size_t step = 1; step <= stream.size(); ++step) {
    RecordingSink sink;
    sink.noPlaceFrom = 100;
    FrameParser parser(kPeer, sink);
    for (std::size_t from = 0; from < stream.size(); from += step) {
      const auto part = std::span(stream).subspan(from, std::min(step, stream.size() - from));
      ASSERT_FALSE(parser.consume(part).has_value()) << "in steps of " << step;
      EXPECT_EQ(parser.missing() == 0, parser.destination() == nullptr);
    }
    ASSERT_EQ(sink.count(kPeer), 2U) << "in steps of " << step;
    EXPECT_EQ(sink.frame(kPeer, 0).bytes, std::vector<std::byte>(100));
    test::expectFrame(sink.frame(kPeer, 1), kPeer, 0, 2, 10);
  }
}

TEST(Header, FollowsTheTable) {
  using Reason = Refusal::Reason;
  struct Case {
    const char* what;
    std::uint64_t length;
    int channel;
    std::optional<Reason> reason;
    std::uint64_t tag = 0;
  };
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  for (const Case& each : {
           Case{"empty", 0, 0, {}},
           Case{"any tag", 0, 0, {}, kAll},
           Case{"collective", 10, 1, {}},
           Case{"any step", 10, 1, {}, kAll},
           Case{"control", 10, 2, {}},
           Case{"last tag of control", 10, 2, {}, kNumControlTags - 1},
           Case{"tag behind it", 10, 2, Reason::kBadTag, kNumControlTags},
           Case{"message", 10, 3, {}},
           Case{"message of a header alone", 10, 3, {}, 10},
           Case{"message with a header longer than itself", 10, 3, Reason::kBadTag, 11},
           Case{"longest", kMaxFrameBytes, 0, {}},
           Case{"too long", kMaxFrameBytes + 1, 0, Reason::kTooLong},
           Case{"longest control", std::uint64_t{1} << 20, 2, {}},
           Case{"too long for control", (std::uint64_t{1} << 20) + 1, 2, Reason::kTooLong},
           Case{"absurd", kAll, 1, Reason::kTooLong},
           Case{"first channel that does not exist", 0, 4, Reason::kUnknownChannel},
           Case{"unknown and too long", kAll, 200, Reason::kUnknownChannel},
           Case{"goodbye with a payload", 1, 255, Reason::kUnknownChannel},
       }) {
    FrameHeader header;
    header.length = each.length;
    header.tag = each.tag;
    header.channel = static_cast<Channel>(each.channel);
    const auto refusal = checkHeader(header);
    ASSERT_EQ(refusal.has_value(), each.reason.has_value()) << each.what;
    if (refusal) {
      EXPECT_EQ(refusal->reason, *each.reason) << each.what;
    }
    EXPECT_FALSE(isGoodbye(header)) << each.what;
  }
  EXPECT_TRUE(isGoodbye(makeGoodbye()));
}

TEST(FrameParser, SaysWhatIsWrong) {
  struct Case {
    FrameHeader header;
    const char* reason;
  };
  for (const Case& each : {
           Case{frameHeader(0, kMaxFrameBytes + 1), "it announced a frame of 4398046511105 bytes"},
           Case{frameHeader(0, 0, static_cast<Channel>(9)), "it used channel 9"},
           Case{frameHeader(64, 0, Channel::kControl), "it used tag 64"},
       }) {
    RecordingSink sink;
    FrameParser parser(kPeer, sink);
    const auto refusal = parser.consume(bytesOf(each.header));
    ASSERT_TRUE(refusal.has_value());
    EXPECT_TRUE(refusal->isOfThePeer());
    EXPECT_EQ(refusal->text().rfind(each.reason, 0), 0U) << refusal->text();
    // Whatever follows is not taken for the next frame.
    EXPECT_TRUE(parser.consume(bytesOf(frameHeader(0, 0))).has_value());
    EXPECT_EQ(sink.count(kPeer), 0U);
  }
  RecordingSink sink;
  FrameParser parser(kPeer, sink);
  ASSERT_FALSE(parser.consume(bytesOf(makeGoodbye())).has_value());
  const auto refusal = parser.consume(bytesOf(frameHeader(0, 0)));
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->text(), "it sent bytes after its goodbye");
}

// A length that there was no memory for once ended the process over TCP (version 2.0); in a ring
// the payload was taken for what had been received before, and written over it.
TEST(FrameParser, TakesNothingBehindAFrameThatThereIsNoMemoryFor) {
  constexpr std::uint64_t kMost = 1000;
  RecordingSink sink;
  sink.noMemoryFrom = kMost;
  FrameParser parser(kPeer, sink);
  std::vector<std::byte> stream = bytesOf(frameHeader(1, 10));
  append(stream, payload(kPeer, 0, 1, 10));
  append(stream, bytesOf(frameHeader(2, kMost)));
  append(stream, payload(kPeer, 0, 2, kMost));
  append(stream, bytesOf(frameHeader(3, 10)));
  append(stream, payload(kPeer, 0, 3, 10));
  for (const std::byte each : stream) {
    const auto refusal = parser.consume({&each, 1});
    if (sink.count(kPeer) == 0 || !refusal.has_value()) continue;
    EXPECT_EQ(refusal->reason, Refusal::Reason::kNoMemory);
    EXPECT_EQ(refusal->header.length, kMost);
    EXPECT_FALSE(refusal->isOfThePeer());
    EXPECT_EQ(parser.missing(), 0U);
    EXPECT_NE(refusal->text().find("a frame of 1000 bytes"), std::string::npos);
  }
  EXPECT_TRUE(parser.consume(std::span(stream).first(1)).has_value());
  ASSERT_EQ(sink.count(kPeer), 1U);
  test::expectFrame(sink.frame(kPeer, 0), kPeer, 0, 1, 10);
  EXPECT_EQ(sink.violations(), std::vector<std::string>{});
}

// Frames of flow control have no bytes, and those of a pipeline no signature: that there was no
// memory for 0 bytes of a barrier helped nobody.
TEST(Refusal, SaysWhatThereWasNoMemoryFor) {
  struct Case {
    Channel channel;
    FrameKind kind;
    std::uint64_t length;
    const char* wanted;
  };
  constexpr auto kSends = Channel::kPointToPoint;
  for (const Case& each : {
           Case{kSends, FrameKind::kWhole, 16,
                "for the 16 bytes that rank 3 sent in send to rank 1 (float32 x 4, tag 7)"},
           Case{kSends, FrameKind::kPayload, 16,
                "for the 16 bytes that rank 3 sent in send to rank 1 (float32 x 4, tag 7)"},
           Case{kSends, FrameKind::kWhole, 0,
                "to note what rank 3 sent in send to rank 1 (float32 x 4, tag 7)"},
           Case{kSends, FrameKind::kAnnouncement, 0,
                "to note that rank 3 has announced 100 bytes in send to rank 1 (float32 x 4, tag "
                "7)"},
           Case{kSends, FrameKind::kClearance, 0, "to send rank 3 what it asks for"},
           Case{Channel::kMessage, FrameKind::kWhole, 10,
                "for the 10 bytes that rank 3 sent in a message"},
           Case{Channel::kMessage, FrameKind::kAnnouncement, 0,
                "to note that rank 3 has announced 100 bytes in a message"},
           Case{Channel::kControl, FrameKind::kWhole, 10,
                "for the 10 bytes that rank 3 sent in news of itself"},
       }) {
    Refusal refusal{Refusal::Reason::kNoMemory, frameHeader(0, each.length, each.channel)};
    refusal.header.kind = each.kind;
    refusal.header.amount = 100;
    refusal.header.signature = {
        .count = 4, .detail = 7, .root = 1, .kind = OpKind::kSend, .dtype = DType::kFloat32};
    EXPECT_EQ(refusal.wanted("rank 3"), each.wanted);
  }
}

// What a control frame asks for may need memory as well.
TEST(FrameParser, TakesNothingBehindAFrameThatCouldNotBePublished) {
  RecordingSink sink;
  sink.onFrame = [](int, const test::ReceivedFrame& frame) {
    if (frame.header.tag == 2) throw std::bad_alloc();
    if (frame.header.tag == 3) throw std::runtime_error("of another kind");
  };
  for (const std::uint64_t tag : {std::uint64_t{2}, std::uint64_t{3}}) {
    FrameParser parser(kPeer, sink);
    const auto bytes = bytesOf(frameHeader(tag, 0));
    if (tag == 2) {
      ASSERT_TRUE(parser.consume(bytes).has_value());
    } else {
      ASSERT_THROW(static_cast<void>(parser.consume(bytes)), std::runtime_error);
    }
    EXPECT_TRUE(parser.consume(bytesOf(frameHeader(1, 0))).has_value());
    EXPECT_EQ(sink.count(kPeer), 0U);
  }
}

TEST(FrameParser, CancelsOnlyWhatHasBegun) {
  RecordingSink sink;  // notes a cancellation of what was not begun
  FrameParser parser(kPeer, sink);
  ASSERT_FALSE(parser.consume(bytesOf(frameHeader(1, 0))).has_value());
  const auto next = bytesOf(frameHeader(2, 0));
  ASSERT_FALSE(parser.consume(std::span(next).first(50)).has_value());
  parser.cancel();
  EXPECT_TRUE(parser.consume(std::span(next).subspan(50)).has_value());
  FrameParser other(kPeer, sink);
  ASSERT_FALSE(other.consume(bytesOf(frameHeader(3, 10))).has_value());
  other.cancel();
  other.cancel();
  EXPECT_EQ(other.missing(), 0U);
  EXPECT_TRUE(other.consume(bytesOf(frameHeader(4, 0))).has_value());
  EXPECT_EQ(sink.count(kPeer), 1U);
  EXPECT_EQ(sink.violations(), std::vector<std::string>{});
}

}  // namespace
}  // namespace smd::transport
