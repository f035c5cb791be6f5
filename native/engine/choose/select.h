// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which algorithm carries out a collective: a pure function, the same answer on every rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/types.h"
#include "engine/choose/cost_model.h"

namespace smd::engine {

// kShared means: without staging if the buffers turn out to be shared ones, else kStaged.
enum class Algorithm : std::uint8_t {
  kAlone,
  kOneShot,
  kStaged,
  kShared,
  kDirect,
  kHierarchical,
};

std::string_view name(Algorithm algorithm);

struct Topology {
  int size = 1;
  bool sharesMemory = false;  // all ranks on one host
  bool hasArenas = false;     // and with room for shared buffers
  int hosts = 1;
  int ranksPerHost = 1;  // the most
  Link link;
  bool isFixedOrder = false;  // sums must have the same bits for every size, with many hosts too
};

// Collective name -> algorithm name, from SMDDP_ALGORITHM ("all_reduce=staged,broadcast=one_shot");
// "all_reduce=hierarchical/ring" sets the pattern between hosts too.
struct Override {
  Algorithm algorithm;
  std::optional<step_tables::Pattern> pattern;
};
using Overrides = std::map<OpKind, Override>;
// Throws Error(kConfiguration) that lists what there is.
Overrides parseOverrides(const std::string& text);

struct Choice {
  Algorithm algorithm;
  const char* reason;
  step_tables::Pattern pattern{};  // between hosts, of kHierarchical
};

// `payloadBytes`: what one rank would publish in a single exchange (algorithms::oneShotBytes).
// `isRoundedOnce`: of a sum of 16-bit floats, taken in float32. What is passed between hosts is not
// rounded, so there is one step of combining, in the order of the hosts.
Choice select(OpKind kind, std::uint64_t payloadBytes, const Topology& topology,
              const Overrides& overrides, bool isRoundedOnce = false);

}  // namespace smd::engine
