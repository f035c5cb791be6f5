// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/rails.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "common/error.h"

namespace smd::transport::tcp {
namespace {

bool shareNetwork(const InterfaceAddress& own, const SocketAddress& theirs) {
  return own.prefixBits != 0 && own.address.sharesPrefix(theirs, own.prefixBits);
}

}  // namespace

std::size_t connectionsPerInterface() {
  const char* set = std::getenv("SMDDP_TCP_CONNECTIONS");
  const std::string_view text = set == nullptr ? "" : set;
  if (text.empty()) return 1;
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 ||
      number > kMostRails) {
    throw Error(ErrorKind::kConfiguration,
                "SMDDP_TCP_CONNECTIONS=" + std::string(text) + "; expected a number from 1 to " +
                    std::to_string(kMostRails) +
                    ": of TCP connections between two ranks over each network interface. Leave it "
                    "unset for one.");
  }
  return number;
}

std::vector<Rail> railsTo(const std::vector<InterfaceAddress>& own,
                          const std::vector<SocketAddress>& theirs, std::size_t connections) {
  std::vector<Rail> rails = {{std::nullopt, theirs[0]}};
  // The interface that the system is likely to take for the first one.
  const auto main = std::ranges::find_if(
      own, [&](const InterfaceAddress& each) { return shareNetwork(each, theirs[0]); });
  std::vector<bool> isTaken(theirs.size(), false);
  isTaken[0] = true;
  for (auto mine = own.begin(); mine != own.end(); ++mine) {
    if (mine == main || (main == own.end() && mine == own.begin())) continue;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      if (isTaken[i] || !shareNetwork(*mine, theirs[i])) continue;
      isTaken[i] = true;
      rails.push_back({mine->address, theirs[i]});
      break;
    }
  }
  const std::size_t interfaces = rails.size();
  const std::size_t wanted =
      std::min(interfaces * std::max<std::size_t>(connections, 1), kMostRails);
  rails.resize(std::min(interfaces, wanted));
  while (rails.size() < wanted) rails.push_back(rails[rails.size() - interfaces]);
  return rails;
}

}  // namespace smd::transport::tcp
