// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What can keep an operation from completing, and how it is found out.
#include <algorithm>
#include <functional>
#include <utility>

#include "engine/group/communicator.h"

namespace smd::engine {
namespace {

std::string rankList(const std::vector<int>& ranks,
                     const std::function<std::string(int)>& describe) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == 4) return text + " and " + std::to_string(ranks.size() - i) + " more";
    if (i > 0) text += ", ";
    text += describe(ranks[i]);
  }
  return text;
}

}  // namespace

// A rank that is missed may have come and not been let in.
std::string Communicator::refusedMeanwhile(const std::vector<int>& missing) const {
  if (peers_.tcp == nullptr) return "";
  for (const int peer : missing) {
    const std::string refused = peer < 0 ? "" : peers_.tcp->describeRejections(peer);
    if (!refused.empty()) return " Refused meanwhile: " + refused + ".";
  }
  return "";
}

bool Communicator::hasFailed() const {
  return failure_.hasEnded() || failure_.reported().has_value();
}

std::optional<Error> Communicator::diagnose(Work& work) {
  if (failure_.hasEnded()) return failure_.error();
  if (const std::optional<Error> reported = failure_.reported()) {
    failure_.fail(*reported);
    return failure_.error();
  }
  if (work.suspicion) {
    const std::optional<Error> settled = settleSuspicion(work);
    if (!settled) return std::nullopt;
    failure_.fail(*settled);
    return failure_.error();
  }
  try {
    if (auto lost = diagnosePeers(work)) {
      if (failure_.hasNews()) return diagnose(work);  // it said why
      failure_.fail(*lost);
      return failure_.error();
    }
  } catch (const Error& error) {  // it polls, and so may be the first to see that ranks disagree
    if (suspect(work, error)) return std::nullopt;
    failure_.fail(error.kind() == ErrorKind::kMismatch ? withHistory(work, error) : error);
    return failure_.error();
  }
  const TimePoint now = Clock::now();
  if (const auto mismatch = watchStall(work, now)) {
    if (suspect(work, *mismatch)) return std::nullopt;
    failure_.fail(withHistory(work, *mismatch));
    return failure_.error();
  }
  if (now < work.deadline()) return std::nullopt;
  const Error timeout = timeoutError(work);
  // A receive that nobody answered harms nobody else; everything else leaves ranks out of step.
  if (Condition* awaited = work.body.awaited(); awaited != nullptr) {
    if (awaited->abandon()) return timeout;
    if (work.context.signature.sequence == 0 && awaited->isMet()) return std::nullopt;  // just now
  }
  failure_.fail(timeout, work.signature());
  return failure_.error();
}

std::optional<Error> Communicator::diagnosePeers(Work& work) {
  Condition* awaited = work.body.awaited();
  if (awaited == nullptr) return std::nullopt;
  // Who is gone comes first, what is missing second: what a peer did before it went is visible once
  // its going is, so nobody is blamed who went after having done all that was expected of it.
  const auto gone = peers_.gone();
  if (gone.empty() || awaited->isMet()) return std::nullopt;
  // What it sent may be in the hands of another thread, which has not got to it yet.
  peers_.mailbox->catchUp();
  if (awaited->isMet()) return std::nullopt;
  const std::vector<int> missing = awaited->missingRanks();
  // It will never finish an operation that all must finish.
  const std::uint64_t sequence = work.context.signature.sequence;
  const auto isUnfinished = [this, sequence](int peer) {
    if (sequence == 0 || !peers_.memory || !peers_.sharesMemoryWith(peer)) return false;
    return positions_.cellsOf(peer).completed.load(std::memory_order_acquire) < sequence;
  };
  // Whoever waits for anyone to send may well hear from those who are still there, unless somebody
  // has begun.
  const bool anyoneWillDo = work.context.request.kind == OpKind::kRecv && missing.size() > 1 &&
                            static_cast<int>(gone.size()) < peers_.size - 1;
  for (const auto& [peer, how] : gone) {
    const bool leftInOrder = hasLeftInOrder(how);
    if (anyoneWillDo && leftInOrder) continue;
    const bool isMissing = std::find(missing.begin(), missing.end(), peer) != missing.end();
    if (peer == peers_.rank || (!isMissing && !isUnfinished(peer))) continue;
    return Error(
        ErrorKind::kPeerLost,
        describePeer(peer) + " " + how + ", noticed " +
            secondsText((Clock::now() - work.started).count()) + " into the operation" +
            positions_.lastSeen(peer) +
            "; it was expected to take part until every rank is done. Read the log of rank " +
            std::to_string(peer) + " first. This group cannot be used again." +
            positions_.whereRanksAre({peer}));
  }
  return std::nullopt;
}

Error Communicator::timeoutError(Work& work) {
  Condition* awaited = work.body.awaited();
  const std::vector<int> missing =
      awaited == nullptr ? std::vector<int>{} : awaited->missingRanks();
  std::string text = describePeer(peers_.rank) + " has waited " +
                     secondsText((Clock::now() - work.clockStart()).count()) + " for ";
  text += missing.empty() ? "earlier operations of this rank" : rankList(missing, [&](int peer) {
    if (peer < 0) return std::string("any rank to send");
    // Where it was among the collectives says nothing of messages.
    return describePeer(peer) + (work.signature().sequence != 0 ? positions_.lastSeen(peer) : "");
  });
  if (work.context.signature.sequence != 0 && !missing.empty()) {
    const int arrived = peers_.size - static_cast<int>(missing.size());
    text += "; the other " + std::to_string(arrived) + (arrived == 1 ? " rank" : " ranks") +
            " arrived. Expected: all ranks make the same calls in the same order. Likely cause: " +
            likelyCause(work.signature(), positions_.viewsOf(missing)) +
            " A longer timeout helps only slow ranks.";
  } else {
    text +=
        ". Expected a matching call on the other side; compare peers and tags of send and recv.";
    if (work.signature().kind == OpKind::kSend) {
      text +=
          " A send that the receiver has no room for returns when it is received: two ranks that "
          "both send first and receive later wait for each other.";
    }
  }
  text += refusedMeanwhile(missing) + positions_.whereRanksAre(missing);
  return Error(ErrorKind::kTimeout, text);
}

}  // namespace smd::engine
