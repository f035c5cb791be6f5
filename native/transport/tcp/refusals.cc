// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/refusals.h"

namespace smd::transport::tcp {

void Refusals::note(const SocketAddress& stranger, int claimedRank, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  Refusal& refusal = byClaim_[claimedRank];
  if (refusal.count++ == 0) {
    refusal.first = stranger;
    refusal.reason = reason;
  }
  refusal.last = stranger;
}

std::string Refusals::describe(int peer) const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const int claim : {peer, kNoRank}) {
    const auto found = byClaim_.find(claim);
    if (found == byClaim_.end()) continue;
    const Refusal& refusal = found->second;
    if (!text.empty()) text += "; ";
    text += "a connection from " + refusal.first.toString();
    if (claim != kNoRank) text += " that claimed to be rank " + std::to_string(claim);
    text += " was refused: " + refusal.reason;
    if (refusal.count > 1) {
      text += " (" + std::to_string(refusal.count) + " times, the last from " +
              refusal.last.toString() + ")";
    }
  }
  return text;
}

}  // namespace smd::transport::tcp
