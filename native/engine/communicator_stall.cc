// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a group are: what this rank keeps for others to see, what it reads of its own
// host and asks of others, and what it does with that while it waits.
//
// Nobody ever waits for an answer, except for up to kPatience once ranks are known to disagree:
// then all are asked what they called, so that every rank raises the same text.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "algorithms/mismatch.h"
#include "common/fork.h"
#include "engine/communicator.h"
#include "engine/registry.h"
#include "engine/reporter.h"

namespace smd::engine {
namespace {

constexpr nanoseconds kPatience = milliseconds(1000);
constexpr nanoseconds kAskAgain = milliseconds(250);
constexpr std::size_t kMostAsked = 64;
constexpr std::uint64_t kHistory = 3;  // operations told of that came before a mismatch

// As the kernel says: T by a signal, t by a debugger.
bool isStopped(std::int64_t pid) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  char text[512];
  const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[size] = '\0';
  const char* end = std::strrchr(text, ')');  // the name may hold anything
  return end != nullptr && end + 2 < text + size && (end[2] == 'T' || end[2] == 't');
}

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

// --- what this rank shows ------------------------------------------------------------------------

void Communicator::noteBegin(Work& work) {
  const std::int64_t queuedNs = toNs(work.started);
  if (work.signature().sequence == 0) {  // messages may begin on several threads at once
    const std::lock_guard lock(messagesMutex_);
    work.flight = board().messages.begin(work.signature(), queuedNs, queuedNs);
    return;
  }
  const algorithms::Request& request = work.context.request;
  if (request.label != 0) {
    const FlightPurpose purpose(work.signature().sequence, request.purpose);
    board().purpose.publish(
        std::bit_cast<PublishedWords<sizeof(FlightPurpose) / 8>::Words>(purpose));
  }
  const std::int64_t startedNs = work.wasQueued ? toNs(Clock::now()) : queuedNs;
  work.flight = board().collectives.begin(work.signature(), queuedNs, startedNs);
}

void Communicator::noteEnd(Work& work, bool isDone) {
  if (work.flight != 0) {
    const FlightState state = isDone ? FlightState::kDone : FlightState::kFailed;
    // What nobody had to wait for took less than people read from a report.
    const std::int64_t finishedNs = work.stall.isBegun() ? toNs(Clock::now()) : 0;
    if (work.signature().sequence == 0) {
      const std::lock_guard lock(messagesMutex_);
      board().messages.finish(work.flight, state, finishedNs);
    } else {
      board().collectives.finish(work.flight, state, finishedNs);
    }
  }
  if (work.noteElsewhere != 0) endElsewhere(work.noteElsewhere);
}

void Communicator::showElsewhere(const FlightNote& where) {
  if (isForkedChild(generation_)) return;
  board().elsewhere.publish(std::bit_cast<PublishedWords<sizeof(FlightNote) / 8>::Words>(where));
}

GroupRecord Communicator::flightRecord() {
  GroupRecord record{name_, rank_, size_, "open", {}, {}};
  if (isForkedChild(generation_)) {
    record.state = "made before this process was forked";
    return record;
  }
  record.position = positionOn(board(), toNs(Clock::now()));
  const std::lock_guard lock(mutex_);
  for (const auto& work : queue_) {
    if (!work->isStarted) record.queued.push_back(work->signature());
  }
  const std::optional<Error> error = groupError();
  if (closed_) {
    record.state = "closed";
  } else if (error) {
    const std::string text = error->what();
    record.state = "failed (" + text.substr(0, text.find('\n')) + ")";
  }
  return record;
}

// --- where the others are ------------------------------------------------------------------------

const transport::RankCells& Communicator::cellsOf(int peer) const {
  const auto& locals = membership_.localRanks;
  return memory_->cells(static_cast<int>(std::ranges::lower_bound(locals, peer) - locals.begin()));
}

const FlightBoard* Communicator::boardOf(int peer) const {
  if (peer == rank_) return memory_ ? &memory_->mine().flight : &ownBoard_;
  if (!memory_ || !sharesMemoryWith(peer)) return nullptr;
  return &cellsOf(peer).flight;
}

// On the thread that receives: it answers also while this rank computes, or reads its next batch.
void Communicator::onControl(int peer, const transport::FrameHeader& header,
                             std::string_view payload) {
  if (header.tag == kAskPosition) {
    const std::uint64_t sequence = header.signature.sequence;
    const auto answer = encodePosition(positionOn(board(), toNs(Clock::now())), sequence);
    transport::FrameHeader reply;
    reply.channel = transport::Channel::kControl;
    reply.tag = kTellPosition;
    reply.length = answer.size();
    mailbox_->send(peer, reply, answer.data(), nullptr);
    return;
  }
  if (header.tag == kTellPosition) {
    if (auto position = decodePosition(std::as_bytes(std::span(payload))))
      positions_.noteAnswer(peer, std::move(*position), Clock::now());
    wake();
    return;
  }
  learn({Error(static_cast<ErrorKind>(header.tag % kNumErrorKinds), std::string(payload)),
         header.signature, header.amount});
}

void Communicator::askPositions(const std::vector<int>& peers, std::uint64_t sequence) {
  transport::FrameHeader question;
  question.channel = transport::Channel::kControl;
  question.tag = kAskPosition;
  question.signature.sequence = sequence;
  std::size_t asked = 0;
  for (int peer : peers) {
    if (peer < 0 || boardOf(peer) != nullptr || liveness_->isLost(peer)) continue;
    if (++asked > kMostAsked) return;
    positions_.noteAsked(peer, Clock::now());
    mailbox_->send(peer, question, nullptr, nullptr);
  }
}

std::vector<RankView> Communicator::viewsOf(const std::vector<int>& ranks) const {
  std::vector<RankView> views;
  for (int rank : ranks) {
    if (rank < 0) continue;
    RankView view{rank, describePeer(rank), std::nullopt, false, 0};
    if (const FlightBoard* board = boardOf(rank)) {
      view.position = positionOn(*board, toNs(Clock::now()));
      view.isStopped =
          rank != rank_ && isStopped(membership_.identities[static_cast<std::size_t>(rank)].pid);
    } else {
      const auto answer = positions_.of(rank);
      if (!answer) continue;
      view.position = answer->position;
      const TimePoint now = Clock::now();
      if (answer->isOld(now)) view.oldNs = toNs(now) - toNs(answer->received);
    }
    views.push_back(std::move(view));
  }
  return views;
}

// A table of what is known, those of interest first.
std::string Communicator::whereRanksAre(const std::vector<int>& first) const {
  std::vector<int> order = first;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(first.begin(), first.end(), rank) == first.end()) order.push_back(rank);
  }
  const std::string table = positionTable(viewsOf(order));
  return table.empty() ? "" : "\nWhere the ranks of this group are:" + table;
}

// --- while waiting -------------------------------------------------------------------------------

std::optional<Error> Communicator::watchStall(Work& work, TimePoint now) {
  if (!work.isClockRunning()) return std::nullopt;  // a message that nobody waits for yet
  StallWatch& stall = work.stall;
  if (!stall.isBegun()) stall.begin(now, work.deadline(), options_.stall);
  if (!stall.isDue(now)) return std::nullopt;
  const StallWatch::Todo todo = stall.look(now);
  Condition* awaited = work.body.awaited();
  if (awaited == nullptr || size_ == 1) return std::nullopt;
  const std::vector<int> missing = awaited->missingRanks();
  if (work.signature().sequence != 0) {
    board().collectives.noteMissing(work.flight, missing);
  } else {
    const std::lock_guard lock(messagesMutex_);
    board().messages.noteMissing(work.flight, missing);
  }
  if (work.noteElsewhere == 0) {
    FlightNote note;
    name_.copy(note.group, sizeof note.group - 1);
    note.signature = work.signature();
    note.sinceNs = toNs(work.started);
    work.noteElsewhere = beginElsewhere(note);
  }
  const std::uint64_t sequence = work.signature().sequence;
  if (todo.ask) askPositions(missing, sequence);
  // Two ranks that each believe to be the root wait for each other: no message ever tells them.
  for (int peer : sequence == 0 ? std::vector<int>{} : missing) {
    const std::vector<RankView> views = viewsOf({peer});
    if (views.empty() || !views.front().position) continue;
    const auto theirs = views.front().position->signatureOf(sequence);
    if (theirs && !(*theirs == work.signature())) {
      std::vector<algorithms::Call> calls{
          {rank_, work.signature(), work.context.request.purpose},
          {peer, *theirs, views.front().position->purposeOf(sequence)}};
      if (peer < rank_) std::swap(calls[0], calls[1]);
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
  for (int peer : membership_.localRanks) {
    if (peer < rank_) before.push_back(peer);
  }
  const std::vector<RankView> views = viewsOf(before);
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
  const std::vector<RankView> views = viewsOf(missing);
  std::string text = "WARNING: " + describePeer(rank_) + " of group '" + name_ + "' has waited " +
                     secondsText(work.stall.waited(now).count()) + " in " +
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
  text +=
      " It gives up after " + secondsText(work.limit.count()) + "." + whereRanksAre(missing) + "\n";
  report(std::move(text));
}

// --- ranks that disagree -------------------------------------------------------------------------

// Whether the others are asked first. On one host everybody has compared everybody's call already.
bool Communicator::suspect(Work& work, const Error& error) {
  if (error.kind() != ErrorKind::kMismatch || allLocal_ || work.signature().sequence == 0 ||
      hasError_.load(std::memory_order_acquire)) {
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
  mailbox_->poll();
  const std::uint64_t sequence = work.signature().sequence;
  std::vector<algorithms::Call> known;
  std::vector<int> unknown;
  for (int rank = 0; rank < size_; ++rank) {
    std::optional<Position> position;
    if (const FlightBoard* board = boardOf(rank)) {
      position = positionOn(*board, 0);
    } else if (const auto answer = positions_.of(rank)) {
      position = answer->position;
    }
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
      askPositions(unknown, sequence);
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
  const Position position = positionOn(board(), 0);
  for (std::uint64_t back = 1; back <= kHistory && back < sequence; ++back) {
    const auto signature = position.signatureOf(sequence - back);
    if (signature)
      before += (before.empty() ? " Before it all ranks made " : ", ") + describe(*signature);
  }
  if (sequence == 1) before = " It is the first collective of this group";
  return Error(error.kind(), error.what() + (before.empty() ? "" : before + "."));
}

}  // namespace smd::engine
