// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that disagree about a call. On one host every rank has compared all calls already, and all
// raise the same error. Between hosts a rank has compared its call with that of one other rank.
// Before that becomes the error of the group, it asks all ranks what they called, so that every
// rank raises the same text. It waits for the answers for a second at most.
#pragma once

#include <optional>

#include "common/error.h"
#include "engine/diagnostics/group_positions.h"
#include "engine/group/peers.h"
#include "engine/group/work.h"

namespace smd::engine {

// The driver of an operation uses it. What it learns it keeps in the Work.
class Disagreements {
 public:
  // Both outlive this.
  Disagreements(const Peers& peers, GroupPositions& positions)
      : peers_(peers), positions_(positions) {}

  // `work` has met `error`. Returns whether the other ranks are asked first. Then `work` stays as
  // it is until settle() returns an error.
  bool suspect(Work& work, const Error& error) const;
  // After suspect(): the error of the group, or nothing while answers may still come. Polls the
  // wires, and throws what that throws.
  std::optional<Error> settle(Work& work);
  // `error`, and the collectives that came before. Those are the same on every rank, or the ranks
  // would have disagreed earlier.
  Error withHistory(const Work& work, const Error& error);

 private:
  const Peers& peers_;
  GroupPositions& positions_;
};

}  // namespace smd::engine
