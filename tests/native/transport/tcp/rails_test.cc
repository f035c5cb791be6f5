// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/rails.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "common/error.h"

namespace smd::transport::tcp {
namespace {

std::vector<InterfaceAddress> hostWith(const std::vector<std::string>& networks) {
  std::vector<InterfaceAddress> own;
  for (const std::string& each : networks) {
    InterfaceAddress one{"eth" + std::to_string(own.size()), SocketAddress::parse(each).value()};
    one.prefixBits = 24;
    own.push_back(one);
  }
  return own;
}

std::vector<std::string> railsTo(const std::vector<std::string>& own,
                                 const std::vector<std::string>& theirs,
                                 std::size_t connections = 1) {
  std::vector<SocketAddress> addresses;
  for (const std::string& each : theirs) addresses.push_back(SocketAddress::parse(each).value());
  std::vector<std::string> found;
  for (const Rail& rail : tcp::railsTo(hostWith(own), addresses, connections)) {
    found.push_back((rail.source.has_value() ? rail.source->host() : "any") + ">" +
                    rail.target.host());
  }
  return found;
}

using Rails = std::vector<std::string>;

TEST(Rails, OneInterfaceNeedsNoChoice) {
  EXPECT_EQ(railsTo({"10.0.0.1"}, {"10.0.0.2"}), Rails({"any>10.0.0.2"}));
  EXPECT_EQ(railsTo({"10.0.0.1"}, {"10.9.0.2"}), Rails({"any>10.9.0.2"}));  // routed
}

TEST(Rails, PairInterfacesOfOneNetwork) {
  EXPECT_EQ(railsTo({"10.0.0.1", "10.0.1.1"}, {"10.0.0.2", "10.0.1.2"}),
            Rails({"any>10.0.0.2", "10.0.1.1>10.0.1.2"}));
  // Listed in another order there: the first goes out by eth1, which has the network.
  EXPECT_EQ(railsTo({"10.0.0.1", "10.0.1.1"}, {"10.0.1.2", "10.0.0.2"}),
            Rails({"any>10.0.1.2", "10.0.0.1>10.0.0.2"}));
  // All in one network: each is used once.
  EXPECT_EQ(railsTo({"10.0.0.1", "10.0.0.3", "10.0.0.5"}, {"10.0.0.2", "10.0.0.4", "10.0.0.6"}),
            Rails({"any>10.0.0.2", "10.0.0.3>10.0.0.4", "10.0.0.5>10.0.0.6"}));
}

TEST(Rails, LeaveOutWhatThePeerHasNoPartFor) {
  EXPECT_EQ(railsTo({"10.0.0.1", "10.0.1.1"}, {"10.0.0.2"}), Rails({"any>10.0.0.2"}));
  EXPECT_EQ(railsTo({"10.0.0.1", "10.0.1.1"}, {"10.0.0.2", "10.0.7.2"}), Rails({"any>10.0.0.2"}));
  EXPECT_EQ(railsTo({"10.0.0.1"}, {"10.0.0.2", "10.0.1.2"}), Rails({"any>10.0.0.2"}));
}

TEST(Rails, AreThereAsOftenAsWanted) {
  EXPECT_EQ(railsTo({"10.0.0.1", "10.0.1.1"}, {"10.0.0.2", "10.0.1.2"}, 2),
            Rails({"any>10.0.0.2", "10.0.1.1>10.0.1.2", "any>10.0.0.2", "10.0.1.1>10.0.1.2"}));
  EXPECT_EQ(railsTo({"10.0.0.1", "10.0.1.1"}, {"10.0.0.2", "10.0.1.2"}, 16).size(), kMostRails);
}

TEST(ConnectionsPerInterface, RefuseWhatIsNoNumberOfThem) {
  EXPECT_EQ(connectionsPerInterface(), 1U);
  ::setenv("SMDDP_TCP_CONNECTIONS", "4", 1);
  EXPECT_EQ(connectionsPerInterface(), 4U);
  for (const char* wrong : {"0", "17", "-1", "two", "2x"}) {
    ::setenv("SMDDP_TCP_CONNECTIONS", wrong, 1);
    try {
      connectionsPerInterface();
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("expected a number from 1 to 16"),
                std::string::npos);
    }
  }
  ::unsetenv("SMDDP_TCP_CONNECTIONS");
}

}  // namespace
}  // namespace smd::transport::tcp
