// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/choose/cost_model.h"

#include <algorithm>

namespace smd::engine {
namespace {

using step_tables::Pattern;

// Many senders at one receiver overrun the queues of its switch port; a message from each of a few
// fits (Phanishayee et al., "Measurement and Analysis of TCP Throughput Collapse in Cluster-based
// Storage Systems", 2008). Both numbers are assumptions.
constexpr int kSendersThatFit = 32;
constexpr double kCongestion = 1.5;

bool isAtOnce(Pattern pattern) {
  return pattern == Pattern::kExchange || pattern == Pattern::kDoubling;
}

// Between ranks of a host: to wait for the others, and to hand results on.
constexpr double kHandOverSeconds = 5e-6;

// For what a party sends in a step to be received, of `bytes` in as many segments.
double sendSeconds(const step_tables::Step& step, int segments, double bytes, const Link& link) {
  double sent = 0;
  for (const step_tables::Move& move : step.sends) sent += move.count;
  const auto messages = static_cast<double>(step.sends.size());
  const bool isCrowded = static_cast<int>(step.sends.size()) > kSendersThatFit;
  return link.latencySeconds + 2 * messages * link.overheadSeconds +
         sent / segments * bytes / link.bytesPerSecond * (isCrowded ? kCongestion : 1.0);
}

}  // namespace

double allReduceSeconds(Pattern pattern, std::uint64_t bytes, int hosts, int ranksPerHost,
                        const Link& link) {
  const int senders = isAtOnce(pattern) ? ranksPerHost : 1;
  double total = isAtOnce(pattern) || ranksPerHost == 1 ? 0 : 2 * kHandOverSeconds;
  // The tables are alike for all parties.
  for (const step_tables::Step& step : step_tables::allReduceTable(pattern, hosts, 0)) {
    total += sendSeconds(step, hosts, static_cast<double>(bytes) * senders, link);
  }
  return total;
}

Pattern quickestPattern(std::uint64_t bytes, int hosts, int ranksPerHost, const Link& link,
                        std::uint64_t mostAtOnce, bool isFixedOrder) {
  Pattern best = Pattern::kDirect;
  double least = allReduceSeconds(best, bytes, hosts, ranksPerHost, link);
  for (const Pattern pattern : step_tables::kPatterns) {
    const bool isAllowed =
        step_tables::isPossible(pattern, hosts) && (!isAtOnce(pattern) || bytes <= mostAtOnce) &&
        (!isFixedOrder || pattern == Pattern::kExchange || pattern == Pattern::kDirect);
    if (!isAllowed) continue;
    const double seconds = allReduceSeconds(pattern, bytes, hosts, ranksPerHost, link);
    if (seconds < least) {
      least = seconds;
      best = pattern;
    }
  }
  return best;
}

double broadcastSeconds(Pattern pattern, std::uint64_t bytes, int hosts, int ranksPerHost,
                        const Link& link) {
  // Others of the root's host send too, in lanes, and have to wait for the root.
  const int handOvers = ranksPerHost == 1 ? 0 : isAtOnce(pattern) ? 1 : 2;
  double total = handOvers * kHandOverSeconds;
  // In each step the root sends most, or the others all the same.
  const step_tables::Table root = step_tables::broadcastTable(pattern, hosts, 0, 0);
  const step_tables::Table other = step_tables::broadcastTable(pattern, hosts, 1, 0);
  const int segments = step_tables::broadcastSegments(hosts);
  for (std::size_t i = 0; i < root.size(); ++i) {
    const auto whole = static_cast<double>(bytes);
    total += std::max(sendSeconds(root[i], segments, whole, link),
                      sendSeconds(other[i], segments, whole, link));
  }
  return total;
}

Pattern quickestBroadcast(std::uint64_t bytes, int hosts, int ranksPerHost, const Link& link,
                          std::uint64_t mostAtOnce) {
  Pattern best = Pattern::kDirect;
  if (bytes > mostAtOnce) return best;
  double least = broadcastSeconds(best, bytes, hosts, ranksPerHost, link);
  for (const Pattern pattern : {Pattern::kExchange, Pattern::kDoubling}) {
    const double seconds = broadcastSeconds(pattern, bytes, hosts, ranksPerHost, link);
    if (seconds > least || (seconds == least && best != Pattern::kDirect)) continue;
    least = seconds;
    best = pattern;
  }
  return best;
}

}  // namespace smd::engine
