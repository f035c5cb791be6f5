// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/choose/select.h"

#include <array>

#include "common/error.h"
#include "transport/peer_memory.h"

namespace smd::engine {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"alone",  "one_shot", "staged",
                                                    "shared", "direct",   "hierarchical"};

// What one rank reads in a one-shot exchange grows with (n - 1) S, in a staged one with 2 S; below
// this many bytes read the saved hand-over (two waits) is worth more.
constexpr std::uint64_t kOneShotReads = 16 << 10;

bool canBeOneShot(OpKind kind) {
  // gather, scatter and all_to_all: only some ranks know the sizes before the exchange.
  return kind != OpKind::kGather && kind != OpKind::kScatter && kind != OpKind::kAllToAll;
}

// Where each pair of ranks has data of its own.
bool canBeDirect(OpKind kind) {
  switch (kind) {
    case OpKind::kBarrier:
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kBroadcast:
      return false;
    default:
      return true;
  }
}

// Where a host's ranks can do something for each other. Each pair's own data (gather, scatter,
// all_to_all) crosses once anyway, and so does what ranks with a host each gather or combine.
bool canBeHierarchical(OpKind kind, const Topology& topology) {
  if (!canBeDirect(kind)) return true;
  return (kind == OpKind::kAllGather || kind == OpKind::kReduceScatter) &&
         topology.ranksPerHost > 1;
}

// With so few hosts an order that is the same for every size costs next to nothing.
constexpr int kFewHosts = 16;

Choice selectBroadcast(std::uint64_t bytes, const Topology& topology,
                       std::optional<step_tables::Pattern> forced) {
  using step_tables::Pattern;
  const bool isSmall = bytes <= transport::kSlotBytes;
  if (forced == Pattern::kDirect ||
      (isSmall && (forced == Pattern::kExchange || forced == Pattern::kDoubling))) {
    return {Algorithm::kHierarchical, "set by SMDDP_ALGORITHM", *forced};
  }
  const Pattern pattern = quickestBroadcast(bytes, topology.hosts, topology.ranksPerHost,
                                            topology.link, transport::kSlotBytes);
  const char* reason =
      pattern == Pattern::kExchange ? "several hosts, small: exchange, from the root to every host"
      : pattern == Pattern::kDoubling
          ? "several hosts, small: doubling, a binomial tree of hosts"
          : "several hosts, large: direct, a part to each host, which it passes on";
  return {Algorithm::kHierarchical, reason, pattern};
}

// What all hosts together take for it is decided by what passes between them.
Choice selectBetweenHosts(OpKind kind, std::uint64_t payloadBytes, const Topology& topology,
                          std::optional<step_tables::Pattern> forced) {
  if (kind == OpKind::kBarrier) {
    return {Algorithm::kHierarchical, "several hosts: each host first, then between them"};
  }
  if (kind == OpKind::kAllGather) {
    return {Algorithm::kHierarchical, "several hosts: each rank's part once to each host"};
  }
  if (kind == OpKind::kReduceScatter) {
    return {Algorithm::kHierarchical,
            "several hosts: each host combines its part, then between them"};
  }
  if (kind == OpKind::kBroadcast) return selectBroadcast(payloadBytes, topology, forced);
  const bool isAtOnce =
      forced == step_tables::Pattern::kExchange || forced == step_tables::Pattern::kDoubling;
  if (forced && step_tables::isPossible(*forced, topology.hosts) &&
      (!isAtOnce || payloadBytes <= transport::kSlotBytes)) {
    return {Algorithm::kHierarchical, "set by SMDDP_ALGORITHM", *forced};
  }
  const step_tables::Pattern pattern =
      quickestPattern(payloadBytes, topology.hosts, topology.ranksPerHost, topology.link,
                      transport::kSlotBytes, topology.isFixedOrder || topology.hosts <= kFewHosts);
  constexpr std::array<const char*, 5> kReasons = {
      "several hosts, small: exchange, everything to every host",
      "several hosts, small: doubling, everything to one host after the other",
      "several hosts, large: direct, each host reduces a part for all",
      "several hosts, large: halving_doubling, halves to one host after the other",
      "several hosts, large: ring, each host passes parts on to the next"};
  return {Algorithm::kHierarchical, kReasons[static_cast<std::size_t>(pattern)], pattern};
}

OpKind kindOf(const std::string& text) {
  for (int kind = 0; kind < kNumOpKinds; ++kind) {
    if (smd::name(static_cast<OpKind>(kind)) == text) return static_cast<OpKind>(kind);
  }
  std::string known;
  for (int kind = 0; kind < static_cast<int>(OpKind::kSend); ++kind) {
    known += (kind == 0 ? "" : ", ") + std::string(smd::name(static_cast<OpKind>(kind)));
  }
  throw Error(ErrorKind::kConfiguration,
              "SMDDP_ALGORITHM names the collective \"" + text + "\"; expected one of " + known +
                  ". Write for example SMDDP_ALGORITHM=all_reduce=staged.");
}

Override overrideOf(const std::string& text) {
  for (std::size_t i = 1; i < kNames.size(); ++i) {
    if (kNames[i] == text) return {static_cast<Algorithm>(i), std::nullopt};
  }
  for (const step_tables::Pattern pattern : step_tables::kPatterns) {
    if (text == "hierarchical/" + std::string(step_tables::name(pattern))) {
      return {Algorithm::kHierarchical, pattern};
    }
  }
  throw Error(ErrorKind::kConfiguration, "SMDDP_ALGORITHM names the algorithm \"" + text +
                                             "\"; expected one_shot, staged, shared, direct, "
                                             "hierarchical, or hierarchical/ and exchange, "
                                             "doubling, direct, halving_doubling or ring. "
                                             "Leave the variable unset (or \"auto\") to "
                                             "have it chosen.");
}

}  // namespace

std::string_view name(Algorithm algorithm) { return kNames[static_cast<std::size_t>(algorithm)]; }

Overrides parseOverrides(const std::string& text) {
  Overrides overrides;
  if (text.empty() || text == "auto") return overrides;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = text.substr(begin, end - begin);
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) {
      throw Error(ErrorKind::kConfiguration,
                  "SMDDP_ALGORITHM contains \"" + entry +
                      "\"; expected collective=algorithm, comma separated, or \"auto\". Write for "
                      "example SMDDP_ALGORITHM=all_reduce=staged.");
    }
    overrides[kindOf(entry.substr(0, equals))] = overrideOf(entry.substr(equals + 1));
    begin = end + 1;
  }
  return overrides;
}

Choice select(OpKind kind, std::uint64_t payloadBytes, const Topology& topology,
              const Overrides& overrides, bool isRoundedOnce) {
  if (topology.size == 1) return {Algorithm::kAlone, "the group has one rank"};
  if (!topology.sharesMemory) {
    const auto forced = overrides.find(kind);
    if (forced != overrides.end() && forced->second.algorithm == Algorithm::kDirect &&
        canBeDirect(kind)) {
      return {Algorithm::kDirect, "set by SMDDP_ALGORITHM"};
    }
    if (isRoundedOnce && canBeHierarchical(kind, topology)) {
      Topology inOrder = topology;
      inOrder.isFixedOrder = true;
      return selectBetweenHosts(kind, payloadBytes, inOrder, std::nullopt);
    }
    if (canBeHierarchical(kind, topology)) {
      return selectBetweenHosts(kind, payloadBytes, topology,
                                forced == overrides.end() ? std::nullopt : forced->second.pattern);
    }
    return {Algorithm::kDirect, "several hosts: one message per pair, there is no less to send"};
  }
  const bool fits = canBeOneShot(kind) && payloadBytes <= transport::kSlotBytes;
  const bool mayShare = kind != OpKind::kBarrier && topology.hasArenas;
  if (const auto forced = overrides.find(kind); forced != overrides.end()) {
    const Algorithm wanted = forced->second.algorithm;
    const bool isPossible = (wanted == Algorithm::kShared && mayShare) ||
                            (wanted == Algorithm::kStaged && kind != OpKind::kBarrier) ||
                            (wanted == Algorithm::kOneShot && kind != OpKind::kBarrier && fits);
    if (isPossible) return {wanted, "set by SMDDP_ALGORITHM"};
  }
  const auto peers = static_cast<std::uint64_t>(topology.size - 1);
  if (kind == OpKind::kBarrier || (fits && payloadBytes * peers <= kOneShotReads) ||
      (fits && payloadBytes <= 1024)) {
    return {Algorithm::kOneShot, "small: one exchange is cheapest"};
  }
  if (mayShare) {
    return {
        Algorithm::kShared,
        "large: straight from and into the ranks' buffers if those are shared ones, else staged"};
  }
  return {Algorithm::kStaged, "large: blocks stream through staging buffers"};
}

}  // namespace smd::engine
