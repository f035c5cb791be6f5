// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/select.h"

#include <array>

#include "common/error.h"
#include "transport/peer_memory.h"

namespace smd::engine {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"alone", "one_shot", "staged", "shared",
                                                    "direct"};

// What one rank reads in a one-shot exchange grows with (n - 1) S, in a staged one with 2 S; below
// this many bytes read the saved hand-over (two waits) is worth more.
constexpr std::uint64_t kOneShotReads = 16 << 10;

bool canBeOneShot(OpKind kind) {
  // gather, scatter and all_to_all: only some ranks know the sizes before the exchange.
  return kind != OpKind::kGather && kind != OpKind::kScatter && kind != OpKind::kAllToAll;
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

Algorithm algorithmOf(const std::string& text) {
  for (std::size_t i = 1; i < kNames.size(); ++i) {
    if (kNames[i] == text) return static_cast<Algorithm>(i);
  }
  throw Error(ErrorKind::kConfiguration, "SMDDP_ALGORITHM names the algorithm \"" + text +
                                             "\"; expected one_shot, staged, shared or direct. "
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
    overrides[kindOf(entry.substr(0, equals))] = algorithmOf(entry.substr(equals + 1));
    begin = end + 1;
  }
  return overrides;
}

Choice select(OpKind kind, std::uint64_t payloadBytes, const Topology& topology,
              const Overrides& overrides) {
  if (topology.size == 1) return {Algorithm::kAlone, "the group has one rank"};
  if (!topology.sharesMemory) return {Algorithm::kDirect, "not all ranks share one host's memory"};
  const bool fits = canBeOneShot(kind) && payloadBytes <= transport::kSlotBytes;
  const bool mayShare = kind != OpKind::kBarrier && topology.hasArenas;
  if (const auto forced = overrides.find(kind); forced != overrides.end()) {
    if (forced->second == Algorithm::kDirect) return {Algorithm::kDirect, "set by SMDDP_ALGORITHM"};
    const bool isPossible =
        forced->second == Algorithm::kShared
            ? mayShare
            : kind != OpKind::kBarrier && (forced->second == Algorithm::kStaged || fits);
    if (isPossible) return {forced->second, "set by SMDDP_ALGORITHM"};
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
