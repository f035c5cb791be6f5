// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What a rank does while it waits with what it knows of the others' positions.
//
// Nobody ever waits for an answer, except for up to kPatience once ranks are known to disagree:
// then all are asked what they called, so that every rank raises the same text.
#include <algorithm>

#include "algorithms/mismatch.h"
#include "common/fork.h"
#include "engine/diagnostics/reporter.h"
#include "engine/group/communicator.h"
#include "engine/group/registry.h"

namespace smd::engine {
namespace {

constexpr nanoseconds kPatience = milliseconds(1000);
constexpr nanoseconds kAskAgain = milliseconds(250);
constexpr std::uint64_t kHistory = 3;  // operations told of that came before a mismatch

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

}  // namespace

GroupRecord Communicator::flightRecord() {
  GroupRecord record{peers_.name, peers_.rank, peers_.size, "open", {}, {}};
  if (isForkedChild(generation_)) {
    record.state = "made before this process was forked";
    return record;
  }
  record.position = positionOn(positions_.board(), toNs(Clock::now()));
  const std::lock_guard lock(mutex_);
  for (const auto& work : queue_) {
    if (!work->isStarted) record.queued.push_back(work->signature());
  }
  const std::optional<Error> error = failure_.error();
  if (closed_) {
    record.state = "closed";
  } else if (error) {
    const std::string text = error->what();
    record.state = "failed (" + text.substr(0, text.find('\n')) + ")";
  }
  return record;
}

// On the thread that receives.
void Communicator::onControl(int peer, const transport::FrameHeader& header,
                             std::string_view payload) {
  if (header.tag == kAskPosition) {
    positions_.answer(peer, header.signature.sequence);
  } else if (header.tag == kTellPosition) {
    positions_.noteAnswer(peer, payload);
    wake();
  } else {
    failure_.learn(
        {Error(static_cast<ErrorKind>(header.tag % kNumErrorKinds), std::string(payload)),
         header.signature, header.amount});
  }
}

// --- while waiting -------------------------------------------------------------------------------

std::optional<Error> Communicator::watchStall(Work& work, TimePoint now) {
  if (!work.isClockRunning()) return std::nullopt;  // a message that nobody waits for yet
  StallWatch& stall = work.stall;
  if (!stall.isBegun()) stall.begin(now, work.deadline(), options_.stall);
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
  // Two ranks that each believe to be the root wait for each other: no message ever tells them.
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

// One report per host is enough. Of messages every rank knows its own only.
bool Communicator::isFirstWaitingHere(const Work& work) const {
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

void Communicator::reportStall(Work& work, TimePoint now, const std::vector<int>& missing) {
  std::string names;
  for (std::size_t i = 0; i < missing.size() && i < 8; ++i) {
    if (i > 0) names += ", ";
    names += missing[i] < 0 ? "any rank to send" : describePeer(missing[i]);
  }
  if (missing.size() > 8) names += " and " + std::to_string(missing.size() - 8) + " more";
  const std::vector<RankView> views = positions_.viewsOf(missing);
  std::string text = "WARNING: " + describePeer(peers_.rank) + " of group '" + peers_.name +
                     "' has waited " + secondsText(work.stall.waited(now).count()) + " in " +
                     describe(work.signature()) + " for " +
                     (names.empty() ? std::string("nobody in particular") : names) +
                     expectationOf(work.signature().kind);
  if (const std::uint64_t held = messages_->heldBytes(); held != 0) {
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

// --- ranks that disagree -------------------------------------------------------------------------

// Whether the others are asked first. On one host everybody has compared everybody's call already.
bool Communicator::suspect(Work& work, const Error& error) {
  if (error.kind() != ErrorKind::kMismatch || peers_.areAllLocal ||
      work.signature().sequence == 0 || failure_.hasEnded()) {
    return false;
  }
  if (work.suspicion) return true;
  work.suspicion = error;
  const TimePoint now = Clock::now();
  work.suspectedUntil = std::min(now + kPatience, std::max(now, work.deadline()));
  work.nextQuestion = now;
  return true;
}

// The error of the group, or nothing as long as answers may still come.
std::optional<Error> Communicator::settleSuspicion(Work& work) {
  peers_.mailbox->poll();
  const std::uint64_t sequence = work.signature().sequence;
  std::vector<algorithms::Call> known;
  std::vector<int> unknown;
  for (int rank = 0; rank < peers_.size; ++rank) {
    const std::optional<Position> position = positions_.knownOf(rank);
    const auto theirs = position ? position->signatureOf(sequence) : std::nullopt;
    if (theirs) {
      known.push_back({rank, *theirs, position->purposeOf(sequence)});
    } else {
      unknown.push_back(rank);
    }
  }
  const TimePoint now = Clock::now();
  if (!unknown.empty() && now < work.suspectedUntil) {
    if (now >= work.nextQuestion) {
      positions_.ask(unknown, sequence);
      work.nextQuestion = now + kAskAgain;
    }
    return std::nullopt;
  }
  const bool areSame = std::all_of(known.begin(), known.end(), [&known](const auto& one) {
    return one.signature == known.front().signature;
  });
  // The same call, yet what one sends is not what another expects: that is about two ranks.
  return withHistory(work, areSame ? *work.suspicion : algorithms::mismatchError(known));
}

// What came before is the same on every rank, or they would have disagreed about that.
Error Communicator::withHistory(const Work& work, const Error& error) {
  const std::uint64_t sequence = work.signature().sequence;
  std::string before;
  const Position position = positionOn(positions_.board(), 0);
  for (std::uint64_t back = 1; back <= kHistory && back < sequence; ++back) {
    const auto signature = position.signatureOf(sequence - back);
    if (signature)
      before += (before.empty() ? " Before it all ranks made " : ", ") + describe(*signature);
  }
  if (sequence == 1) before = " It is the first collective of this group";
  return Error(error.kind(), error.what() + (before.empty() ? "" : before + "."));
}

}  // namespace smd::engine
