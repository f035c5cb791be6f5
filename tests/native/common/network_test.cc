// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/network.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/error.h"

namespace smd {
namespace {

SocketAddress address(const std::string& text) { return SocketAddress::parse(text).value(); }

TEST(SocketAddress, ParsesWhatItPrints) {
  for (const char* text : {"10.1.0.2:41212", "[fd00::2]:41212", "0.0.0.0:0", "[::1]:65535"}) {
    EXPECT_EQ(address(text).toString(), text);
  }
  EXPECT_EQ(address("10.1.0.2").toString(), "10.1.0.2:0");
  EXPECT_EQ(address("fd00::2").toString(), "[fd00::2]:0");
  EXPECT_EQ(address("[fd00::2]").host(), "fd00::2");
}

TEST(SocketAddress, RefusesEverythingElse) {
  for (const char* text : {"", "host", "host:1", "10.1.0.2:65536", "10.1.0.2:x", "10.1.0.2:-1",
                           "10.1.0:1", "[fd00::2", "[10.1.0.2]x", "10.1.0.2:1 "}) {
    EXPECT_FALSE(SocketAddress::parse(text).has_value()) << text;
  }
}

TEST(SocketAddress, KnowsItsNetwork) {
  struct Case {
    const char* address;
    const char* network;
    bool isIn;
  };
  for (const Case& each : {
           Case{"10.1.2.3", "10.1.0.0/16", true},
           Case{"10.2.2.3", "10.1.0.0/16", false},
           Case{"10.1.2.3", "10.1.2.2/31", true},
           Case{"10.1.2.3", "10.1.2.2/32", false},
           Case{"10.1.2.3", "0.0.0.0/0", true},
           Case{"10.1.2.3", "10.1.0.0/33", false},
           Case{"10.1.2.3", "fd00::/8", false},
           Case{"fd00::2", "fd00::/8", true},
           Case{"fe00::2", "fd00::/8", false},
           Case{"10.1.2.3", "10.1.2.3", false},
       }) {
    EXPECT_EQ(address(each.address).isIn(each.network), each.isIn)
        << each.address << " in " << each.network;
  }
}

TEST(SocketAddress, KnowsItsReach) {
  EXPECT_TRUE(address("127.0.1.1").isLoopback());
  EXPECT_TRUE(address("::1").isLoopback());
  EXPECT_FALSE(address("10.0.0.1").isLoopback());
  EXPECT_TRUE(address("169.254.3.4").isLinkLocal());
  EXPECT_TRUE(address("fe80::1").isLinkLocal());
  EXPECT_FALSE(address("fd00::1").isLinkLocal());
}

const std::vector<InterfaceAddress>& host() {
  static const std::vector<InterfaceAddress> interfaces = {
      {"lo", address("127.0.0.1"), true},    {"docker0", address("172.17.0.1"), true},
      {"eth1", address("10.9.0.2"), false},  {"eth0", address("fe80::1"), true},
      {"eth0", address("fd00::2"), true},    {"eth0", address("10.1.0.2"), true},
      {"ib0", address("192.168.5.2"), true}, {"br-12ab", address("172.18.0.1"), true},
  };
  return interfaces;
}

TEST(ChooseAddress, FollowsTheTable) {
  struct Case {
    const char* wanted;
    const char* routed;  // "" for none
    const char* chosen;
  };
  for (const Case& each : {
           Case{"auto", "", "10.1.0.2"},
           Case{"", "", "10.1.0.2"},
           Case{"auto", "192.168.5.2", "192.168.5.2"},
           Case{"auto", "172.17.0.1", "172.17.0.1"},  // the kernel knows
           Case{"auto", "127.0.0.1", "127.0.0.1"},
           Case{"auto", "1.2.3.4", "10.1.0.2"},  // a source that is no interface of ours
           Case{"ib0", "10.1.0.2", "192.168.5.2"},
           Case{"ib", "", "192.168.5.2"},
           Case{"eth", "", "10.1.0.2"},
           Case{"eth1,ib0", "", "192.168.5.2"},  // eth1 is down
           Case{"wlan0, eth0", "", "10.1.0.2"},
           Case{"10.1.", "", "10.1.0.2"},
           Case{"192.168.0.0/16", "", "192.168.5.2"},
           Case{"fd00:", "", "fd00::2"},
           Case{"docker0", "", "172.17.0.1"},  // asked for by name
           Case{"lo", "", "127.0.0.1"},
           Case{"^eth0", "", "192.168.5.2"},
           Case{"^eth0", "10.1.0.2", "192.168.5.2"},
           Case{"auto,^eth,^ib", "", "127.0.0.1"},
           Case{"wlan0,auto", "", "10.1.0.2"},
       }) {
    std::optional<SocketAddress> routed;
    if (*each.routed != '\0') {
      routed = address(each.routed);
    }
    EXPECT_EQ(chooseAddresses(each.wanted, host(), routed)[0].address.host(), each.chosen)
        << "wanted " << each.wanted << ", routed " << each.routed;
  }
}

TEST(ChooseAddress, NamesWhatThereIsWhenNothingMatches) {
  for (const char* wanted : {"eth7", "eth1", "^lo,^eth,^ib,^docker,^br", "10.2.0.0/16", "fe80:"}) {
    try {
      chooseAddresses(wanted, host(), std::nullopt);
      FAIL() << wanted << " matched";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
      const std::string text = error.what();
      EXPECT_NE(text.find(wanted), std::string::npos) << text;
      EXPECT_NE(text.find("Choose among: lo (127.0.0.1), docker0"), std::string::npos) << text;
      EXPECT_NE(text.find("eth1 (10.9.0.2, down)"), std::string::npos) << text;
    }
  }
}

TEST(ChooseAddresses, TakesAllThatAreWantedOneAddressOfEach) {
  const std::vector<InterfaceAddress> present = {
      {"lo", address("127.0.0.1"), true, 8, "", 0},
      {"docker0", address("172.17.0.1"), true, 16, "bridge", 0},
      {"eth0", address("fd00::2"), true, 64, "ena", 10000},
      {"eth0", address("10.1.0.2"), true, 16, "ena", 10000},
      {"eth0", address("10.1.0.3"), true, 16, "ena", 10000},  // a second address of the same
      {"eth1", address("10.2.0.2"), true, 16, "ena", 25000},
      {"eth2", address("10.3.0.2"), true, 16, "ena", 1000},      // for management
      {"wg0", address("10.4.0.2"), true, 16, "wireguard", 0},    // a tunnel
      {"eth3", address("10.5.0.2"), false, 16, "ena", 10000},    // no cable
      {"eth4", address("fd00::5"), true, 64, "ena", 10000},      // of the other family only
      {"eth5", address("169.254.1.2"), true, 16, "ena", 10000},  // only on its link
  };
  struct Case {
    const char* wanted;
    const char* routed;
    std::vector<std::string> chosen;
  };
  for (const Case& each : {
           Case{"auto", "10.1.0.2", {"10.1.0.2", "10.2.0.2"}},
           Case{"auto", "10.2.0.2", {"10.2.0.2"}},  // eth0 is less than half as quick
           Case{"auto", "10.4.0.2", {"10.4.0.2"}},
           Case{"auto", "172.17.0.1", {"172.17.0.1"}},
           Case{"auto", "127.0.0.1", {"127.0.0.1"}},
           Case{"^eth1", "10.1.0.2", {"10.1.0.2"}},
           Case{"eth1,eth0", "", {"10.2.0.2", "10.1.0.2"}},
           Case{"eth", "", {"10.1.0.2", "10.2.0.2", "10.3.0.2"}},
           Case{"eth1,auto", "10.1.0.2", {"10.2.0.2"}},
           Case{"fd00:", "", {"fd00::2", "fd00::5"}},
       }) {
    std::optional<SocketAddress> routed;
    if (*each.routed != '\0') routed = address(each.routed);
    std::vector<std::string> chosen;
    for (const InterfaceAddress& one : chooseAddresses(each.wanted, present, routed)) {
      chosen.push_back(one.address.host());
    }
    EXPECT_EQ(chosen, each.chosen) << "wanted " << each.wanted << ", routed " << each.routed;
  }
}

TEST(ChooseLocalAddress, StaysOnLoopbackIfTheRendezvousIsThere) {
  EXPECT_TRUE(chooseLocalAddresses("auto", "127.0.0.1:29500")[0].address.isLoopback());
  EXPECT_TRUE(chooseLocalAddresses("auto", "localhost")[0].address.isLoopback());
}

TEST(ChooseLocalAddress, FindsSomethingWithoutARendezvous) {
  EXPECT_NO_THROW(chooseLocalAddresses("auto", ""));
  EXPECT_NO_THROW(chooseLocalAddresses("auto", "no-such-host.invalid"));
}

TEST(ListInterfaceAddresses, FindsLoopback) {
  bool hasLoopback = false;
  for (const InterfaceAddress& each : listInterfaceAddresses()) {
    hasLoopback |= each.address.isLoopback();
  }
  EXPECT_TRUE(hasLoopback);
}

}  // namespace
}  // namespace smd
