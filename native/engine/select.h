// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which algorithm carries out a collective: a pure function, the same answer on every rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/types.h"

namespace smd::engine {

// kShared means: without staging if the buffers turn out to be shared ones, else kStaged.
enum class Algorithm : std::uint8_t { kAlone, kOneShot, kStaged, kShared, kDirect };

std::string_view name(Algorithm algorithm);

struct Topology {
  int size = 1;
  bool sharesMemory = false;  // all ranks on one host
  bool hasArenas = false;     // and with room for shared buffers
};

// Collective name -> algorithm name, from SMDDP_ALGORITHM ("all_reduce=staged,barrier=direct").
using Overrides = std::map<OpKind, Algorithm>;
// Throws Error(kConfiguration) that lists what there is.
Overrides parseOverrides(const std::string& text);

struct Choice {
  Algorithm algorithm;
  const char* reason;
};

// `payloadBytes`: what one rank would publish in a single exchange (algorithms::oneShotBytes).
Choice select(OpKind kind, std::uint64_t payloadBytes, const Topology& topology,
              const Overrides& overrides);

}  // namespace smd::engine
