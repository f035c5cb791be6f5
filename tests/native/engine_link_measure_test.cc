// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/link_measure.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace smd::engine
