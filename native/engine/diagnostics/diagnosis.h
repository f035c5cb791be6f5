// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What keeps an operation from completing, if anything does, and what people are told meanwhile: a
// peer that has gone, ranks that disagree, a deadline; before that, reports of who is waited for.
// Nobody ever waits for an answer in here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "engine/diagnostics/disagreements.h"
#include "engine/diagnostics/group_positions.h"
#include "engine/group/group_failure.h"
#include "engine/group/peers.h"
#include "engine/group/work.h"

namespace smd::engine {

// For the driver of an operation. Keeps what it knows in the Work.
class Diagnosis {
 public:
  // All of them outlive this. `reportAfter`: how long an operation waits before people are told;
  // zero: they are not. `heldBytes`: of messages that were posted here and have not been taken.
  Diagnosis(const Peers& peers, GroupPositions& positions, GroupFailure& failure,
            nanoseconds reportAfter, std::function<std::uint64_t()> heldBytes);

  // Now and then while `work` is not complete: the error that it ends with, or nothing. Unless it
  // is a receive that nobody answered, the group has failed with that.
  std::optional<Error> diagnose(Work& work);
  // `work` has met `error`. Whether the other ranks are asked first (disagreements.h): then `work`
  // stays as it is until diagnose() returns an error.
  bool suspect(Work& work, const Error& error) const {
    return !failure_.hasEnded() && disagreements_.suspect(work, error);
  }
  // `error`, of ranks that disagree, with the collectives that came before.
  Error withHistory(const Work& work, const Error& error) {
    return disagreements_.withHistory(work, error);
  }

 private:
  std::optional<Error> fail(const Error& error, const Signature& during = {});
  std::optional<Error> lostPeer(Work& work);
  std::optional<Error> watchStall(Work& work, TimePoint now);
  bool isFirstWaitingHere(const Work& work) const;
  void reportStall(Work& work, TimePoint now, const std::vector<int>& missing);
  Error timeoutError(Work& work);
  std::string refusedMeanwhile(const std::vector<int>& missing) const;

  const Peers& peers_;
  GroupPositions& positions_;
  GroupFailure& failure_;
  Disagreements disagreements_;
  const nanoseconds reportAfter_;
  const std::function<std::uint64_t()> heldBytes_;
};

}  // namespace smd::engine
