// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Which connections were refused, so that whoever waits in vain for a rank reads that somebody
// claimed to be it. A refusal is no error: a stranger must not be able to end a job.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "common/network.h"

namespace smd::transport::tcp {

// Thread-safe. Strangers come as often as they like: kept are the first refusal, the last address
// and a count for each rank that was claimed, and the same once for all who claimed none.
class Refusals {
 public:
  static constexpr int kNoRank = -1;

  // `claimedRank`: of this group, or kNoRank. `reason`: "it ...".
  void note(const SocketAddress& stranger, int claimedRank, std::string_view reason);
  // What may explain that rank `peer` is missed: "a connection from ... was refused: ...", joined
  // by semicolons; empty for nothing.
  std::string describe(int peer) const;

 private:
  struct Refusal {
    SocketAddress first;
    SocketAddress last;
    std::string reason;  // of the first
    std::uint64_t count = 0;
  };

  mutable std::mutex mutex_;
  std::map<int, Refusal> byClaim_;
};

}  // namespace smd::transport::tcp
