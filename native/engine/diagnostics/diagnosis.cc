// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/diagnostics/diagnosis.h"

#include <algorithm>
#include <utility>

#include "algorithms/mismatch.h"
#include "engine/diagnostics/reporter.h"
#include "engine/group/registry.h"

namespace smd::engine {
namespace {

std::string expectationOf(OpKind kind) {
  switch (kind) {
    case OpKind::kSend:
      return "; expected it to receive this message, with the same tag.";
    case OpKind::kRecv:
      return "; expected a message from there, with the same tag.";
    default:
      return "; expected every rank to make this call soon after the first.";
  }
}

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

Diagnosis::Diagnosis(const Peers& peers, GroupPositions& positions, GroupFailure& failure,
                     nanoseconds reportAfter, std::function<std::uint64_t()> heldBytes)
    : peers_(peers),
      positions_(positions),
      failure_(failure),
      disagreements_(peers, positions),
      reportAfter_(reportAfter),
      heldBytes_(std::move(heldBytes)) {}

std::optional<Error> Diagnosis::fail(const Error& error, const Signature& during) {
  failure_.fail(error, during);
  return failure_.error();
}

// A missing rank may have tried to connect and been refused.
std::string Diagnosis::refusedMeanwhile(const std::vector<int>& missing) const {
  if (peers_.tcp == nullptr) return "";
  for (const int peer : missing) {
    const std::string refused = peer < 0 ? "" : peers_.tcp->describeRejections(peer);
    if (!refused.empty()) return " Refused meanwhile: " + refused + ".";
  }
  return "";
}

std::optional<Error> Diagnosis::diagnose(Work& work) {
  if (failure_.hasEnded()) return failure_.error();
  if (const std::optional<Error> reported = failure_.reported()) {
    return fail(*reported);
  }
  if (work.suspicion) {
    const std::optional<Error> settled = disagreements_.settle(work);
    if (!settled) return std::nullopt;
    return fail(*settled);
  }
  try {
    if (auto lost = lostPeer(work)) {
      if (failure_.hasNews()) return diagnose(work);  // the peer said why it went
      return fail(*lost);
    }
  } catch (const Error& error) {  // lostPeer() polls: it may be the first to see a disagreement
    if (suspect(work, error)) return std::nullopt;
    return fail(error.kind() == ErrorKind::kMismatch ? withHistory(work, error) : error);
  }
  const TimePoint now = Clock::now();
  if (const auto mismatch = watchStall(work, now)) {
    if (suspect(work, *mismatch)) return std::nullopt;
    return fail(withHistory(work, *mismatch));
  }
  if (now < work.deadline()) return std::nullopt;
  const Error timeout = timeoutError(work);
  // A receive that nobody answered harms no other rank. Anything else leaves ranks out of step.
  if (Condition* awaited = work.body.awaited(); awaited != nullptr) {
    if (awaited->abandon()) return timeout;
    if (work.context.signature.sequence == 0 && awaited->isMet()) return std::nullopt;  // just now
  }
  return fail(timeout, work.signature());
}

std::optional<Error> Diagnosis::lostPeer(Work& work) {
  Condition* awaited = work.body.awaited();
  if (awaited == nullptr) return std::nullopt;
  // First which ranks have gone, then what is missing. In this order, once it is visible that a
  // peer has gone, so is all that it did before: a peer that had done its part is not blamed.
  const auto gone = peers_.gone();
  if (gone.empty() || awaited->isMet()) return std::nullopt;
  // What the peer sent may be with another thread, which has not delivered it yet.
  peers_.mailbox->catchUp();
  if (awaited->isMet()) return std::nullopt;
  const std::vector<int> missing = awaited->missingRanks();
  // All ranks must finish a collective, and a peer that has gone will not.
  const std::uint64_t sequence = work.context.signature.sequence;
  const auto isUnfinished = [this, sequence](int peer) {
    if (sequence == 0 || !peers_.memory || !peers_.sharesMemoryWith(peer)) return false;
    return positions_.cellsOf(peer).completed.load(std::memory_order_acquire) < sequence;
  };
  // A receive from any rank may still be answered by the ranks that are there, unless one rank has
  // begun to answer it.
  const bool anyoneWillDo = work.context.request.kind == OpKind::kRecv && missing.size() > 1 &&
                            static_cast<int>(gone.size()) < peers_.size - 1;
  for (const auto& [peer, how] : gone) {
    const bool leftInOrder = hasLeftInOrder(how);
    if (anyoneWillDo && leftInOrder) continue;
    const bool isMissing = std::find(missing.begin(), missing.end(), peer) != missing.end();
    if (peer == peers_.rank || (!isMissing && !isUnfinished(peer))) continue;
    return Error(ErrorKind::kPeerLost,
                 positions_.describePeer(peer) + " " + how + ", noticed " +
                     secondsText((Clock::now() - work.started).count()) + " into the operation" +
                     positions_.lastSeen(peer) +
                     "; it was expected to take part until every rank is done. Read the log of " +
                     peers_.membership.nameOf(peer) + " first. This group cannot be used again." +
                     positions_.whereRanksAre({peer}));
  }
  return std::nullopt;
}

Error Diagnosis::timeoutError(Work& work) {
  Condition* awaited = work.body.awaited();
  const std::vector<int> missing =
      awaited == nullptr ? std::vector<int>{} : awaited->missingRanks();
  std::string text = positions_.describePeer(peers_.rank) + " has waited " +
                     secondsText((Clock::now() - work.clockStart()).count()) + " for ";
  text += missing.empty() ? "earlier operations of this rank" : rankList(missing, [&](int peer) {
    if (peer < 0) return std::string("any rank to send");
    // The position of a rank among its collectives says nothing about messages.
    return positions_.describePeer(peer) +
           (work.signature().sequence != 0 ? positions_.lastSeen(peer) : "");
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

// --- while an operation waits --------------------------------------------------------------------

std::optional<Error> Diagnosis::watchStall(Work& work, TimePoint now) {
  if (!work.isClockRunning()) return std::nullopt;  // a message for which no thread waits yet
  StallWatch& stall = work.stall;
  if (!stall.isBegun()) stall.begin(now, work.deadline(), reportAfter_);
  if (!stall.isDue(now)) return std::nullopt;
  const StallWatch::Todo todo = stall.look(now);
  Condition* awaited = work.body.awaited();
  if (awaited == nullptr || peers_.size == 1) return std::nullopt;
  const std::vector<int> missing = awaited->missingRanks();
  positions_.noteMissing(work, missing);
  if (work.noteElsewhere == 0) {
    FlightNote note;
    peers_.name.copy(note.group, sizeof note.group - 1);
    note.signature = work.signature();
    note.sinceNs = toNs(work.started);
    work.noteElsewhere = beginElsewhere(note);
  }
  const std::uint64_t sequence = work.signature().sequence;
  if (todo.ask) positions_.ask(missing, sequence);
  // Two ranks that each believe to be the root wait for each other, and no message would tell them.
  for (int peer : sequence == 0 ? std::vector<int>{} : missing) {
    const std::vector<RankView> views = positions_.viewsOf({peer});
    if (views.empty() || !views.front().position) continue;
    const auto theirs = views.front().position->signatureOf(sequence);
    if (theirs && !(*theirs == work.signature())) {
      std::vector<algorithms::Call> calls{
          {peers_.rank, work.signature(), work.context.request.purpose},
          {peer, *theirs, views.front().position->purposeOf(sequence)}};
      if (peer < peers_.rank) std::swap(calls[0], calls[1]);
      return algorithms::mismatchError(calls);
    }
  }
  if (todo.report && isFirstWaitingHere(work)) reportStall(work, now, missing);
  return std::nullopt;
}

// One report per host is enough. But a rank knows only of its own messages.
bool Diagnosis::isFirstWaitingHere(const Work& work) const {
  const std::uint64_t sequence = work.signature().sequence;
  if (sequence == 0) return true;
  std::vector<int> before;
  for (int peer : peers_.membership.localRanks) {
    if (peer < peers_.rank) before.push_back(peer);
  }
  const std::vector<RankView> views = positions_.viewsOf(before);
  return std::none_of(views.begin(), views.end(), [sequence](const RankView& view) {
    const FlightEntry* current = view.position ? view.position->underWay() : nullptr;
    return !view.isStopped && current != nullptr && current->signature.sequence == sequence;
  });
}

void Diagnosis::reportStall(Work& work, TimePoint now, const std::vector<int>& missing) {
  std::string names;
  for (std::size_t i = 0; i < missing.size() && i < 8; ++i) {
    if (i > 0) names += ", ";
    names += missing[i] < 0 ? "any rank to send" : positions_.describePeer(missing[i]);
  }
  if (missing.size() > 8) names += " and " + std::to_string(missing.size() - 8) + " more";
  const std::vector<RankView> views = positions_.viewsOf(missing);
  std::string text = "WARNING: " + positions_.describePeer(peers_.rank) + " of group '" +
                     peers_.name + "' has waited " + secondsText(work.stall.waited(now).count()) +
                     " in " + describe(work.signature()) + " for " +
                     (names.empty() ? std::string("nobody in particular") : names) +
                     expectationOf(work.signature().kind);
  if (const std::uint64_t held = heldBytes_(); held != 0) {
    text +=
        " Messages of " + std::to_string(held) +
        " bytes that were posted here have not been taken by the ranks they are for, or on this "
        "host are still in use there.";
  }
  if (!views.empty()) text += " Likely cause: " + likelyCause(work.signature(), views);
  text += " It gives up after " + secondsText(work.limit.count()) + "." +
          positions_.whereRanksAre(missing) + "\n";
  report(std::move(text));
}

}  // namespace smd::engine
