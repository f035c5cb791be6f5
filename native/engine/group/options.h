// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How a group's engine behaves, in the words of smdistributed._common.engine_options, where each
// option is explained. native/bindings/options_py.cc turns one into the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "transport/tcp/factory.h"

namespace smd::engine {

enum class TransportChoice { kAuto, kSharedMemory, kTcp };

struct EngineOptions {
  nanoseconds timeout = std::chrono::minutes(30);
  nanoseconds stall = std::chrono::seconds(30);  // zero: no report is ever written
  std::uint64_t messageLimitBytes = 0;           // zero: no limit
  bool hasSignalReport = true;
  bool isDeterministic = false;
  TransportChoice transport = TransportChoice::kAuto;
  std::string interfaces = "auto";
  std::string rendezvousAddress;
  std::string token;          // empty: there is none
  std::vector<int> jobRanks;  // by rank of the group, for error texts; empty: the same
  transport::tcp::TlsFiles tls;
  // For tests, Python has no such option. It is added to what identifies this machine: ranks with
  // different ones do not share memory.
  std::string machineSuffix;
};

}  // namespace smd::engine
