// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Bytes to frames without sockets: however they are cut, and whatever they are.
#include "transport/tcp/frame_parser.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <vector>

#include "transport_conformance.h"

namespace smd::transport::test {

// The header has the suite of transports, and this is none.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

}  // namespace smd::transport::test

namespace smd::transport::tcp {
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
      ASSERT_EQ(parser.consume(part), std::nullopt) << "in steps of " << step;
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
  ASSERT_EQ(parser.consume(bytesOf(frameHeader(5, 10))), std::nullopt);
  const auto bytes = payload(kPeer, 0, 5, 10);
  for (std::size_t placed = 0; placed < bytes.size(); placed += 5) {
    ASSERT_EQ(parser.missing(), bytes.size() - placed);
    std::memcpy(parser.destination(), bytes.data() + placed, 5);
    parser.placed(5);
  }
  ASSERT_EQ(sink.count(kPeer), 1U);
  test::expectFrame(sink.frame(kPeer, 0), kPeer, 0, 5, 10);
}

TEST(FrameParser, SaysWhatIsWrong) {
  struct Case {
    FrameHeader header;
    const char* reason;
  };
  for (const Case& each : {
           Case{frameHeader(0, kMaxFrameBytes + 1), "it announced a frame of 4398046511105 bytes"},
           Case{frameHeader(0, 0, static_cast<Channel>(9)), "it used channel 9"},
       }) {
    RecordingSink sink;
    FrameParser parser(kPeer, sink);
    const auto reason = parser.consume(bytesOf(each.header));
    ASSERT_TRUE(reason.has_value());
    EXPECT_EQ(reason->rfind(each.reason, 0), 0U) << *reason;
    EXPECT_EQ(sink.count(kPeer), 0U);
  }
  RecordingSink sink;
  FrameParser parser(kPeer, sink);
  ASSERT_EQ(parser.consume(bytesOf(makeGoodbye())), std::nullopt);
  EXPECT_EQ(parser.consume(bytesOf(frameHeader(0, 0))), "it sent bytes after its goodbye");
}

// In version 2.0 a length that memory could not be had for ended the process.
TEST(FrameParser, RefusesAFrameThatThereIsNoMemoryFor) {
  class FullSink final : public FrameSink {
    std::byte* frameBegin(Stream, const FrameHeader&) override { throw std::bad_alloc(); }
    void frameEnd(Stream, const FrameHeader&) override { ADD_FAILURE() << "it never began"; }
    void sendCompleted(int) override {}
    void linkFailed(int, const Error&) override {}
  };
  FullSink sink;
  FrameParser parser(kPeer, sink);
  const auto reason = parser.consume(bytesOf(frameHeader(0, kMaxFrameBytes)));
  ASSERT_TRUE(reason.has_value());
  EXPECT_NE(reason->find("no memory for so many"), std::string::npos) << *reason;
}

}  // namespace
}  // namespace smd::transport::tcp
