// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What keeps an operation from completing: a peer that has gone, ranks that disagree, a deadline.
// And what people are told before the deadline: reports of which ranks are missing. Nothing in here
// waits for an answer.
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

// Writes the errors of peers that are lost and of operations that wait too long, and the reports.
// The driver of an operation uses it. What it learns it keeps in the Work.
class Diagnosis {
 public:
  // The references outlive this. `reportAfter`: how long an operation waits before there is a
  // report; zero: no reports. `heldBytes` returns the size of the messages that this rank has
  // posted and that no peer has taken.
  Diagnosis(const Peers& peers, GroupPositions& positions, GroupFailure& failure,
            nanoseconds reportAfter, std::function<std::uint64_t()> heldBytes);

  // To be called now and then while `work` is not complete. Returns the error with which `work`
  // must end, or nothing. With that error the group has failed, unless `work` is a receive that
  // nobody answered.
  std::optional<Error> diagnose(Work& work);
  // `work` has met `error`. Returns whether the other ranks are asked first (disagreements.h). Then
  // `work` stays as it is until diagnose() returns an error.
  bool suspect(Work& work, const Error& error) const {
    return !failure_.hasEnded() && disagreements_.suspect(work, error);
  }
  // `error`, which says that ranks disagree, and the collectives that came before.
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
