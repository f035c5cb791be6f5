// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What can keep an operation from completing, how it is found out, and how every rank is told.
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string_view>
#include <utility>

#include "common/log.h"
#include "engine/group/communicator.h"

namespace smd::engine {
namespace {

constexpr milliseconds kAbortGrace{200};
// More, for a process in the middle of a piece where there is no memory to go on without it.
constexpr milliseconds kGraceWithoutCopy{2000};

std::string seconds(nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
}

// The beginning of `text`, at most `limit` bytes of it, that does not end inside a UTF-8 character.
std::string_view wholeCharacters(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
  return text.substr(0, limit);
}

Error withWarning(const Error& error, const std::string& warning) noexcept {
  try {
    if (!warning.empty()) return Error(error.kind(), error.what() + warning);
  } catch (const std::bad_alloc&) {
    logWarning(warning);
  }
  return error;
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

// A rank that is missed may have come and not been let in.
std::string Communicator::refusedMeanwhile(const std::vector<int>& missing) const {
  if (peers_.tcp == nullptr) return "";
  for (const int peer : missing) {
    const std::string refused = peer < 0 ? "" : peers_.tcp->describeRejections(peer);
    if (!refused.empty()) return " Refused meanwhile: " + refused + ".";
  }
  return "";
}

std::optional<Error> Communicator::groupError() {
  std::lock_guard lock(errorMutex_);
  return error_;
}

// Caller holds failMutex_.
void Communicator::closeWires(milliseconds grace, transport::Transport::Ending ending) {
  if (wiresClosed_) return;
  wiresClosed_ = true;
  for (auto& transport : peers_.transports) transport->close(grace, ending);
  if (peers_.mailbox != nullptr) peers_.mailbox->noteClosed();
}

// Before operations end with an error: the buffers in them are the caller's again then, and peers
// write into shared ones. A process that is stopped in the middle of a piece is not waited for
// long: what it writes, whenever it goes on, goes to memory that is nobody's by then. Without
// memory for that it may still write into a buffer: returns what the caller must be told then, else
// nothing. Caller holds failMutex_.
std::string Communicator::letGoOfBuffers() {
  if (peers_.arena == nullptr || std::exchange(hasLetGoOfBuffers_, true)) return {};
  using Wait = transport::PeerMemory::Wait;
  peers_.arena->retire();
  const std::int64_t self = peers_.membership.identities[static_cast<std::size_t>(peers_.rank)].pid;
  TimePoint giveUp = Clock::now() + kAbortGrace;
  int unfinished = peers_.rank;  // the last that was not waited for to the end
  const auto waitFor = [&](int position) {
    const auto peer =
        static_cast<std::size_t>(peers_.membership.localRanks[static_cast<std::size_t>(position)]);
    if (peers_.liveness->isLost(static_cast<int>(peer))) return Wait::kIsNeedless;
    // A thread of this process uses the same mapping, and is not stopped alone.
    const bool isElsewhere = peers_.membership.identities[peer].pid != self;
    if (!isElsewhere || Clock::now() < giveUp) return Wait::kGoesOn;
    unfinished = static_cast<int>(peer);
    return Wait::kHasEnded;
  };
  if (peers_.memory->withdrawBuffers(std::ref(waitFor))) return {};
  const std::span<std::byte> written = exposed_.get();
  if (written.empty() || peers_.arena->makePrivate(written.data(), written.size())) return {};
  giveUp = Clock::now() + kGraceWithoutCopy;
  if (peers_.memory->withdrawBuffers(std::ref(waitFor))) return {};
  try {
    return "\nThe shared buffer of that operation (" + std::to_string(written.size()) +
           " bytes) is not safe on rank " + std::to_string(peers_.rank) + ": " +
           describePeer(unfinished) +
           " is in the middle of writing to it, may go on with that at any time, and there was no "
           "memory to take the buffer away from it. Do not use the buffer before that process has "
           "ended.";
  } catch (const std::bad_alloc&) {
    logWarning("another rank may write into the shared buffer of an operation that has failed");
    return {};
  }
}

// --- who hears of it -----------------------------------------------------------------------------
//
// A failure travels along what there is already, and nobody opens a connection for it: through the
// region to the ranks of this host, and over every connection, whoever has opened it, to ranks of
// others. Each rank passes it on once, on the thread that receives: also one that computes, so
// that it reaches all whom a way leads to. There is one to everybody: the ring of join().
//
// Whoever waits hears of it, then, within the time that it takes to cross these ways. If processes
// that have died cut them, the following holds still. A rank waits for peers with which it has a
// connection, or makes one. A peer that knows of the failure has said so over it, or answers the
// attempt with it; one that has ended closes it; one that waits, waits for others, of whom the same
// is true; and one that computes hears when it calls next.

// Whether this rank is the first of its host to say it: whoever is first writes, the others take
// over what was written.
bool Communicator::showToHost(Failure& failure) noexcept {
  transport::AbortBlock& block = peers_.memory->abortBlock();
  std::uint32_t state = 0;
  if (block.state.compare_exchange_strong(state, 1, std::memory_order_acq_rel)) {
    block.kind = static_cast<std::uint32_t>(failure.error.kind());
    block.during = failure.during;
    block.unfinished = failure.unfinished;
    const std::string_view text = wholeCharacters(failure.error.what(), sizeof block.text - 1);
    std::memcpy(block.text, text.data(), text.size());
    block.state.store(2, std::memory_order_release);
    for (int peer = 0; peer < peers_.memory->size(); ++peer) peers_.memory->cells(peer).bell.ring();
    return true;
  }
  // The writer may have died in between: do not wait for it for long.
  const TimePoint giveUp = Clock::now() + milliseconds(100);
  while (block.state.load(std::memory_order_acquire) == 1 && Clock::now() < giveUp) sched_yield();
  if (block.state.load(std::memory_order_acquire) == 2) {
    try {
      failure = {Error(static_cast<ErrorKind>(block.kind % kNumErrorKinds), block.text),
                 block.during, block.unfinished};
    } catch (const std::bad_alloc&) {  // then its own
    }
  }
  return false;
}

// Without memory for it, the others hear of it when their links go.
void Communicator::passOn(const Failure& failure) noexcept {
  const std::string_view text = wholeCharacters(failure.error.what(), transport::kMostLastWords);
  transport::FrameHeader header;
  header.channel = transport::Channel::kControl;
  header.tag = static_cast<std::uint64_t>(failure.error.kind());
  header.signature = failure.during;
  header.amount = failure.unfinished;
  header.length = text.size();
  try {
    peers_.mailbox->spread(header, text.data());
  } catch (const std::exception&) {
  }
}

// On a thread that moves bytes, which need not be in an operation: whoever is in one next ends the
// group. The others of this host, and of others, are told at once.
void Communicator::learn(const Failure& failure) noexcept {
  {
    const std::lock_guard lock(errorMutex_);
    if (reported_) return;
    reported_ = failure;
  }
  reportedUnfinished_.store(failure.unfinished, std::memory_order_relaxed);
  hasReport_.store(true, std::memory_order_release);
  if (peers_.memory) {
    Failure shown = failure;
    showToHost(shown);
  }
  passOn(failure);
  wake();
}

bool Communicator::hasFailed() {
  return hasError_.load(std::memory_order_acquire) || reportedError().has_value();
}

bool Communicator::isSpoiled(std::uint64_t sequence) const {
  if (hasReport_.load(std::memory_order_acquire) &&
      reportedUnfinished_.load(std::memory_order_relaxed) <= sequence) {
    return true;
  }
  if (!peers_.memory) return false;
  const transport::AbortBlock& block = peers_.memory->abortBlock();
  return block.state.load(std::memory_order_acquire) == 2 && block.unfinished <= sequence;
}

// A rank that comes late reads that it was waited for in vain.
Error Communicator::asSeenHere(const Failure& failure) const noexcept {
  const std::uint64_t sequence = failure.during.sequence;
  const bool wasWaitedFor = failure.error.kind() == ErrorKind::kTimeout && sequence != 0 &&
                            begun_.load(std::memory_order_relaxed) < sequence;
  try {
    if (!wasWaitedFor) return failure.error;
    return Error(ErrorKind::kTimeout, "the others gave up on this rank, which had not come to " +
                                          describe(failure.during) +
                                          " yet: " + failure.error.what());
  } catch (const std::bad_alloc&) {
    return failure.error;
  }
}

// The others may have given up on a rank that was waiting itself, for a message to be received.
Error Communicator::asSeenBy(const Work& work, const Error& error) {
  if (error.kind() != ErrorKind::kTimeout || work.signature().kind != OpKind::kSend ||
      !work.body.isStarted()) {
    return error;
  }
  {
    const std::lock_guard lock(errorMutex_);
    if (!isErrorOfOthers_) return error;
  }
  return Error(ErrorKind::kTimeout, "has waited " + seconds(Clock::now() - work.started) + " for " +
                                        describePeer(work.context.request.root) +
                                        " to receive; meanwhile " + error.what());
}

// On a thread that moves bytes.
void Communicator::noteRefusal(int peer, const transport::Refusal& refusal) noexcept {
  Error error = *noMemory_;
  try {
    std::string text;
    if (refusal.isOfThePeer()) {
      text = describePeer(peer) + " sent what " + describePeer(peers_.rank) +
             " cannot receive: " + refusal.text() +
             ". All ranks must run the same release of smdistributed; if they do, look for a stray "
             "write to memory";
    } else if (refusal.reason == transport::Refusal::Reason::kTooManyAnnounced) {
      text = describePeer(peers_.rank) + " has " +
             std::to_string(transport::Windows::kMostAnnounced) +
             " sends of other ranks waiting for their receives, and " + describePeer(peer) +
             " began one more, " + describe(refusal.header.signature) +
             "; expected fewer at a time. Post their receives earlier, or wait for some sends "
             "before the next ones";
    } else {
      text = describePeer(peers_.rank) + " has no memory " + refusal.wanted(describePeer(peer)) +
             "; expected room for what arrives before it is asked for. Post receives before the "
             "matching sends, send less at a time, or free memory on that host";
    }
    error = Error(ErrorKind::kInternal, text);
  } catch (const std::bad_alloc&) {  // it stays what it was
  }
  learn({error, {}, completed_.load(std::memory_order_relaxed) + 1});
}

Error Communicator::cannotGoOn(const std::exception& cause, const Work& work) const noexcept {
  return cannotGoOn(
      cause, [&work] { return describe(work.signature()); },
      algorithms::agreedBytes(work.context.request));
}

Error Communicator::cannotGoOn(const std::exception& cause,
                               const std::function<std::string()>& during,
                               std::uint64_t bytes) const noexcept {
  const bool isForMemory = dynamic_cast<const std::bad_alloc*>(&cause) != nullptr;
  try {
    std::string text = describePeer(peers_.rank);
    text += isForMemory ? " has no memory left for " : " cannot go on with ";
    text += during();
    if (bytes != 0) text += ", " + std::to_string(bytes) + " bytes";
    text += isForMemory ? "; expected room for what it takes beside the caller's buffers. Free "
                          "memory on that host, or start fewer ranks there"
                        : std::string(": ") + cause.what();
    return Error(ErrorKind::kInternal, text);
  } catch (const std::bad_alloc&) {
    return *noMemory_;
  }
}

void Communicator::fail(const Error& error, const Signature& during) {
  std::lock_guard failing(failMutex_);
  if (hasError_.load(std::memory_order_acquire)) return;
  Failure first{error, during, completed_.load(std::memory_order_relaxed) + 1};
  bool isOwn = true;
  if (hasReport_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(errorMutex_);
    first = *reported_;
    isOwn = false;
  }
  if (peers_.memory && !showToHost(first)) isOwn = false;
  const std::string warning = letGoOfBuffers();
  if (peers_.size > 1 && !wiresClosed_) {
    try {
      peers_.mailbox->catchUp();       // messages that have come whole are delivered all the same
    } catch (const std::exception&) {  // no memory for one
    }
    passOn(first);
    closeWires(peers_.areAllLocal ? milliseconds(0) : kAbortGrace,
               transport::Transport::Ending::kFailure);
  }
  {
    std::lock_guard lock(errorMutex_);
    error_ = withWarning(isOwn ? first.error : asSeenHere(first), warning);
    isErrorOfOthers_ = !isOwn;
  }
  hasError_.store(true, std::memory_order_release);
  wake();
}

// What another rank has said, if it is not the group's error yet. fail() finds the text of one on
// this host.
std::optional<Error> Communicator::reportedError() {
  if (hasReport_.load(std::memory_order_acquire)) {
    std::lock_guard lock(errorMutex_);
    return reported_->error;
  }
  if (peers_.memory && peers_.memory->abortBlock().state.load(std::memory_order_acquire) != 0) {
    return Error(ErrorKind::kInternal, "the group failed");
  }
  return std::nullopt;
}

std::optional<Error> Communicator::diagnose(Work& work) {
  if (hasError_.load(std::memory_order_acquire)) return groupError();
  if (const std::optional<Error> reported = reportedError()) {
    fail(*reported);
    return groupError();
  }
  if (work.suspicion) {
    const std::optional<Error> settled = settleSuspicion(work);
    if (!settled) return std::nullopt;
    fail(*settled);
    return groupError();
  }
  try {
    if (auto lost = diagnosePeers(work)) {
      if (hasReport_.load(std::memory_order_acquire)) return diagnose(work);  // it said why
      fail(*lost);
      return groupError();
    }
  } catch (const Error& error) {  // it polls, and so may be the first to see that ranks disagree
    if (suspect(work, error)) return std::nullopt;
    fail(error.kind() == ErrorKind::kMismatch ? withHistory(work, error) : error);
    return groupError();
  }
  const TimePoint now = Clock::now();
  if (const auto mismatch = watchStall(work, now)) {
    if (suspect(work, *mismatch)) return std::nullopt;
    fail(withHistory(work, *mismatch));
    return groupError();
  }
  if (now < work.deadline()) return std::nullopt;
  const Error timeout = timeoutError(work);
  // A receive that nobody answered harms nobody else; everything else leaves ranks out of step.
  if (Condition* awaited = work.body.awaited(); awaited != nullptr) {
    if (awaited->abandon()) return timeout;
    if (work.context.signature.sequence == 0 && awaited->isMet()) return std::nullopt;  // just now
  }
  fail(timeout, work.signature());
  return groupError();
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
        describePeer(peer) + " " + how + ", noticed " + seconds(Clock::now() - work.started) +
            " into the operation" + positions_.lastSeen(peer) +
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
                     seconds(Clock::now() - work.clockStart()) + " for ";
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
