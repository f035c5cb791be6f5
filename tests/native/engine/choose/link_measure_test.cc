// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/choose/link_measure.h"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace smd::engine {
namespace {

std::string text(double latencySeconds, double bytesPerSecond) {
  Link link;
  link.latencySeconds = latencySeconds;
  link.bytesPerSecond = bytesPerSecond;
  return serializeLink(link);
}

TEST(Link, SurvivesTheWayToOtherRanks) {
  const Link link = parseLink(text(41.3e-6, 1.17e9)).value();
  EXPECT_EQ(link.latencySeconds, 41.3e-6);
  EXPECT_EQ(link.bytesPerSecond, 1.17e9);
  EXPECT_EQ(serializeLink(std::nullopt), "");
  for (const char* wrong :
       {"", "x", "1", "0 1e9", "-1 1e9", "1e-6 0", "nan nan", "1e-6 inf", "1e9 1e9"}) {
    EXPECT_FALSE(parseLink(wrong).has_value()) << wrong;
  }
}

TEST(Link, IsThatOfTheSlowestInPowersOfTwo) {
  const Link slowest = slowestOf({"", text(30e-6, 1.2e9), text(50e-6, 3e9), "nonsense"});
  EXPECT_DOUBLE_EQ(slowest.latencySeconds, 64e-6);
  EXPECT_DOUBLE_EQ(slowest.bytesPerSecond, 1073741824);
  EXPECT_EQ(slowestOf({text(slowest.latencySeconds, slowest.bytesPerSecond)}).bytesPerSecond,
            slowest.bytesPerSecond);
}

TEST(Link, IsAssumedWhereNobodyKnows) {
  EXPECT_EQ(slowestOf({"", ""}).latencySeconds, Link().latencySeconds);
  EXPECT_EQ(slowestOf({"", ""}).bytesPerSecond, Link().bytesPerSecond);
}

// It has no memory for what it is given.
class FullTransport final : public transport::Transport {
 public:
  void send(int, const transport::FrameHeader&, const void*, transport::SendTicket*) override {
    throw std::bad_alloc();
  }
  void expect(int) override {}
  bool poll() override { return false; }
  void close(std::chrono::milliseconds, Ending) override {}
};

// What was posted before that stays posted until the transports are closed, so it must stay where
// it is. AddressSanitizer sees the use of what was freed.
TEST(Link, ThatCannotBeMeasuredForWantOfMemoryKeepsWhatWasPosted) {
  FullTransport transport;
  transport::Mailbox mailbox(2, {[] {}, [](int, const Error&) {},
                                 [](int, const transport::FrameHeader&, std::string_view) {},
                                 [](int, const transport::Refusal&) {}});
  mailbox.setTransport(1, &transport);
  const Liveness liveness(2);
  const hosts::Hosts hosts{.ranks = {{0}, {1}}};
  EXPECT_THROW(measureLink(hosts, mailbox, liveness, std::chrono::seconds(1)), std::bad_alloc);
  transport::FrameHeader header;
  header.length = 8;
  header.tag = (std::uint64_t{0xFFFFFFFF} << 32) + 1;  // the first that is awaited
  std::memset(mailbox.frameBegin(1, header), 1, header.length);
  mailbox.frameEnd(1, header);
  EXPECT_EQ(mailbox.unexpectedBytes(), 0u) << "there was a receive for it";
}

}  // namespace
}  // namespace smd::engine
