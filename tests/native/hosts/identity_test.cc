// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What ranks publish about themselves, also when what arrives is not what was published.
#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>

#include "common/error.h"
#include "hosts/identity.h"

namespace smd::hosts {
namespace {

Identity example() {
  Identity identity = describeThisProcess();
  identity.attachSocket = "smdistributed-0123";
  identity.secret = std::string("\0\x01binary\xff", 9);
  identity.endpoint = "[::1]:4711";
  return identity;
}

TEST(Identity, SurvivesTheRoundTrip) {
  const Identity before = example();
  const Identity after = parse(serialize(before));
  EXPECT_EQ(after.release, before.release);
  EXPECT_EQ(after.host, before.host);
  EXPECT_EQ(after.machine, before.machine);
  EXPECT_EQ(after.pid, ::getpid());
  EXPECT_EQ(after.attachSocket, before.attachSocket);
  EXPECT_EQ(after.secret, before.secret);
  EXPECT_EQ(after.endpoint, before.endpoint);
  EXPECT_EQ(after.processors, before.processors);
  EXPECT_EQ(after.cpuQuota, before.cpuQuota);
  EXPECT_FALSE(before.processors.empty());
}

TEST(Identity, OfAHostWithTwoThousandProcessorsFits) {
  Identity identity = example();
  identity.processors.resize(2048);
  std::iota(identity.processors.begin(), identity.processors.end(), 0);
  EXPECT_EQ(parse(serialize(identity)).processors, identity.processors);
}

TEST(Identity, CutOffAnywhereIsRefused) {
  const std::string bytes = serialize(example());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    try {
      parse(std::string_view(bytes).substr(0, length));
      ADD_FAILURE() << length << " of " << bytes.size() << " bytes were taken for an identity";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
    }
  }
}

TEST(Identity, OtherBytesAreRefused) {
  const std::string bytes = serialize(example());
  EXPECT_THROW(parse(bytes + "x"), Error);
  EXPECT_THROW(parse(std::string(100, '\0')), Error);
  EXPECT_THROW(parse(std::string(100, '\xff')), Error);
  // Any single changed byte: refused, or taken for another identity, but never worse.
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int change : {1, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ change);
      try {
        parse(changed);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
      }
    }
  }
}

TEST(Identity, AnotherReleaseIsNamed) {
  Identity other = example();
  other.release = "smd-engine-0";
  try {
    parse(serialize(other));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a rank runs engine \"smd-engine-0\""),
              std::string::npos);
  }
}

TEST(Identity, NumbersAreNumbers) {
  std::string bytes = serialize(example());
  const std::string pid = std::to_string(::getpid());
  bytes.replace(bytes.find(pid, example().release.size()), pid.size(),
                std::string(pid.size(), 'x'));
  EXPECT_THROW(parse(bytes), Error);
}

TEST(Leaders, AreTheLowestRanksOfTheirMachines) {
  const auto leaders = [](const std::vector<std::string>& machines) {
    std::vector<Identity> identities;
    for (const std::string& machine : machines) {
      identities.emplace_back();
      identities.back().machine = machine;
    }
    return leadersByMachine(identities);
  };
  EXPECT_EQ(leaders({"a"}), (std::vector<int>{0}));
  EXPECT_EQ(leaders({"a", "a", "a"}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(leaders({"a", "b", "a", "b"}), (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(leaders({"c", "b", "a"}), (std::vector<int>{0, 1, 2}));
}

TEST(Cores, AreThoseOfAllRanksTogetherUpToTheQuota) {
  std::vector<Identity> identities(3);
  identities[0].processors = {0, 1};
  identities[1].processors = {1, 2};
  identities[2].processors = {7};
  EXPECT_EQ(coresOf(identities, {0}), 2);
  EXPECT_EQ(coresOf(identities, {0, 1}), 3);
  EXPECT_EQ(coresOf(identities, {0, 1, 2}), 4);
  identities[0].cpuQuota = 2;
  EXPECT_EQ(coresOf(identities, {0, 1, 2}), 2);
  identities[0].processors = {};
  EXPECT_EQ(coresOf(identities, {0}), 1);
}

}  // namespace
}  // namespace smd::hosts
