// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that disagree about a call. On one host every rank has compared every call already, and all
// raise the same error. Between hosts a rank has compared its call with one other rank's: so before
// that becomes the group's error, all are asked what they called, and every rank raises the same
// text. Nobody waits for the answers longer than a second.
#pragma once

#include <optional>

#include "common/error.h"
#include "engine/diagnostics/group_positions.h"
#include "engine/group/peers.h"
#include "engine/group/work.h"

namespace smd::engine {

// For the driver of an operation. Keeps what it knows in the Work.
class Disagreements {
 public:
  // Both outlive this.
  Disagreements(const Peers& peers, GroupPositions& positions)
      : peers_(peers), positions_(positions) {}

  // `work` has met `error`. Whether the others are asked first: then `work` stays as it is until
  // settle() returns an error.
  bool suspect(Work& work, const Error& error) const;
  // Of a suspected work: the error of the group, or nothing as long as answers may still come. May
  // poll the wires, and throws what that throws.
  std::optional<Error> settle(Work& work);
  // `error` with the collectives that came before: the same on every rank, or the ranks would have
  // disagreed about those.
  Error withHistory(const Work& work, const Error& error);

 private:
  const Peers& peers_;
  GroupPositions& positions_;
};

}  // namespace smd::engine
