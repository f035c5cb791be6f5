// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/group_failure.h"

#include <sched.h>

#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "algorithms/request.h"
#include "common/log.h"
#include "engine/diagnostics/flight_record.h"
#include "transport/flow.h"

namespace smd::engine {
namespace {

constexpr milliseconds kAbortGrace{200};
// Longer, for a peer that is writing into a shared buffer, where there is no memory to replace it.
constexpr milliseconds kGraceWithoutCopy{2000};

// The beginning of `text`: at most `limit` bytes, and no part of a UTF-8 character at the end.
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

}  // namespace

GroupFailure::GroupFailure(const Peers& peers, const GroupPositions& positions,
                           algorithms::ExposedBuffer& exposed, std::function<void()> wake)
    : peers_(peers), positions_(positions), exposed_(exposed), wake_(std::move(wake)) {}

void GroupFailure::prepare() {
  noMemory_.emplace(ErrorKind::kInternal,
                    positions_.describePeer(peers_.rank) +
                        " has no memory left, not even to say for what. Free memory on its host, "
                        "or start fewer ranks there");
}

std::optional<Error> GroupFailure::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

// The caller holds endMutex_.
void GroupFailure::closeWires(milliseconds grace, transport::Transport::Ending ending) {
  if (areWiresClosed_) return;
  areWiresClosed_ = true;
  for (auto& transport : peers_.transports) transport->close(grace, ending);
  if (peers_.mailbox != nullptr) peers_.mailbox->noteClosed();
}

// Makes sure that no peer writes into this rank's shared buffers any more: when an operation ends
// with an error, its buffers belong to the caller again. A peer that is stopped in the middle of
// writing a piece is waited for only briefly. Then the buffer gets private pages, so what the peer
// writes later reaches nobody. If there is no memory for private pages, the peer may still write
// into the buffer: returns the warning for the caller, otherwise an empty text. The caller holds
// endMutex_.
std::string GroupFailure::letGoOfBuffers() {
  if (peers_.arena == nullptr || std::exchange(hasLetGoOfBuffers_, true)) return {};
  using Wait = transport::PeerMemory::Wait;
  peers_.arena->retire();
  const std::int64_t self = peers_.membership.identities[static_cast<std::size_t>(peers_.rank)].pid;
  TimePoint giveUp = Clock::now() + kAbortGrace;
  int unfinished = peers_.rank;  // the last peer that was still writing when the wait ended
  const auto waitFor = [&](int position) {
    const auto peer =
        static_cast<std::size_t>(peers_.membership.localRanks[static_cast<std::size_t>(position)]);
    if (peers_.liveness->isLost(static_cast<int>(peer))) return Wait::kIsNeedless;
    // A rank that is a thread of this process uses the same mapping, and is not stopped alone.
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
           positions_.describePeer(unfinished) +
           " is in the middle of writing to it, may go on with that at any time, and there was no "
           "memory to take the buffer away from it. Do not use the buffer before that process has "
           "ended.";
  } catch (const std::bad_alloc&) {
    logWarning("another rank may write into the shared buffer of an operation that has failed");
    return {};
  }
}

// --- who hears of a failure ----------------------------------------------------------------------
//
// News of a failure uses the ways that exist; no rank opens a connection for it. It reaches the
// ranks of this host through the region, and ranks of other hosts over every connection, whichever
// side opened it. Each rank passes the news on once, on the thread that receives: so also while the
// rank computes. A way leads to every rank: the ring of connections that a communicator opens when
// it is made.
//
// So every rank that waits hears the news within the time that it takes to cross these ways. If
// processes that have died cut all of them, a rank that waits still hears: it has a connection to
// the peer that it waits for, or opens one. A peer that knows of the failure has told it over that
// connection, or answers the attempt with it. A peer that has ended closes the connection. A peer
// that waits, waits for other ranks, and the same is true of those. A peer that computes hears at
// its next call.

// The first rank of a host that fails writes the news into the region; the others take over what it
// wrote. Returns whether this rank was the first.
bool GroupFailure::showToHost(News& news) noexcept {
  transport::AbortBlock& block = peers_.memory->abortBlock();
  std::uint32_t state = 0;
  if (block.state.compare_exchange_strong(state, 1, std::memory_order_acq_rel)) {
    block.kind = static_cast<std::uint32_t>(news.error.kind());
    block.during = news.during;
    block.unfinished = news.unfinished;
    const std::string_view text = wholeCharacters(news.error.what(), sizeof block.text - 1);
    std::memcpy(block.text, text.data(), text.size());
    block.state.store(2, std::memory_order_release);
    for (int peer = 0; peer < peers_.memory->size(); ++peer) peers_.memory->cells(peer).bell.ring();
    return true;
  }
  // The writer may have died before it was done: do not wait for long.
  const TimePoint giveUp = Clock::now() + milliseconds(100);
  while (block.state.load(std::memory_order_acquire) == 1 && Clock::now() < giveUp) sched_yield();
  if (block.state.load(std::memory_order_acquire) == 2) {
    try {
      news = {Error(static_cast<ErrorKind>(block.kind % kNumErrorKinds), block.text), block.during,
              block.unfinished};
    } catch (const std::bad_alloc&) {  // then this rank keeps its own error
    }
  }
  return false;
}

// If there is no memory for it, the other ranks learn of the failure when their connections close.
void GroupFailure::passOn(const News& news) noexcept {
  const std::string_view text = wholeCharacters(news.error.what(), transport::kMostLastWords);
  transport::FrameHeader header;
  header.channel = transport::Channel::kControl;
  header.tag = static_cast<std::uint64_t>(news.error.kind());
  header.signature = news.during;
  header.amount = news.unfinished;
  header.length = text.size();
  try {
    peers_.mailbox->spread(header, text.data());
  } catch (const std::exception&) {
  }
}

// Runs on a thread that moves bytes, which need not be in an operation. The other ranks are told at
// once; the group ends on the next thread that drives an operation.
void GroupFailure::learn(const News& news) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (news_) return;
    news_ = news;
  }
  newsUnfinished_.store(news.unfinished, std::memory_order_relaxed);
  hasNews_.store(true, std::memory_order_release);
  if (peers_.memory) {
    News shown = news;
    showToHost(shown);
  }
  passOn(news);
  wake_();
}

bool GroupFailure::isSpoiled(std::uint64_t sequence) const {
  if (hasNews() && newsUnfinished_.load(std::memory_order_relaxed) <= sequence) {
    return true;
  }
  if (!peers_.memory) return false;
  const transport::AbortBlock& block = peers_.memory->abortBlock();
  return block.state.load(std::memory_order_acquire) == 2 && block.unfinished <= sequence;
}

// A rank that comes too late is told that the others waited for it.
Error GroupFailure::asSeenHere(const News& news) const noexcept {
  const std::uint64_t sequence = news.during.sequence;
  const bool wasWaitedFor = news.error.kind() == ErrorKind::kTimeout && sequence != 0 &&
                            begun_.load(std::memory_order_relaxed) < sequence;
  try {
    if (!wasWaitedFor) return news.error;
    return Error(ErrorKind::kTimeout, "the others gave up on this rank, which had not come to " +
                                          describe(news.during) + " yet: " + news.error.what());
  } catch (const std::bad_alloc&) {
    return news.error;
  }
}

// The others may have given up on a rank that itself waited, for a message to be received.
Error GroupFailure::asSeenBy(const Work& work, const Error& error) const {
  if (error.kind() != ErrorKind::kTimeout || work.signature().kind != OpKind::kSend ||
      !work.body.isStarted()) {
    return error;
  }
  {
    const std::lock_guard lock(mutex_);
    if (!isErrorOfOthers_) return error;
  }
  return Error(ErrorKind::kTimeout,
               "has waited " + secondsText((Clock::now() - work.started).count()) + " for " +
                   positions_.describePeer(work.context.request.root) + " to receive; meanwhile " +
                   error.what());
}

// Runs on a thread that moves bytes.
void GroupFailure::noteRefusal(int peer, const transport::Refusal& refusal) noexcept {
  Error error = *noMemory_;
  try {
    std::string text;
    if (refusal.isOfThePeer()) {
      text = positions_.describePeer(peer) + " sent what " + positions_.describePeer(peers_.rank) +
             " cannot receive: " + refusal.text() +
             ". All ranks must run the same release of smdistributed; if they do, look for a stray "
             "write to memory";
    } else if (refusal.reason == transport::Refusal::Reason::kTooManyAnnounced) {
      text = positions_.describePeer(peers_.rank) + " has " +
             std::to_string(transport::Windows::kMostAnnounced) +
             " sends of other ranks waiting for their receives, and " +
             positions_.describePeer(peer) + " began one more, " +
             describe(refusal.header.signature) +
             "; expected fewer at a time. Post their receives earlier, or wait for some sends "
             "before the next ones";
    } else {
      text = positions_.describePeer(peers_.rank) + " has no memory " +
             refusal.wanted(positions_.describePeer(peer)) +
             "; expected room for what arrives before it is asked for. Post receives before the "
             "matching sends, send less at a time, or free memory on that host";
    }
    error = Error(ErrorKind::kInternal, text);
  } catch (const std::bad_alloc&) {  // then the error is that there is no memory
  }
  learn({error, {}, completed_.load(std::memory_order_relaxed) + 1});
}

Error GroupFailure::cannotGoOn(const std::exception& cause, const Work& work) const noexcept {
  return cannotGoOn(
      cause, [&work] { return describe(work.signature()); },
      algorithms::agreedBytes(work.context.request));
}

Error GroupFailure::cannotGoOn(const std::exception& cause,
                               const std::function<std::string()>& during,
                               std::uint64_t bytes) const noexcept {
  const bool isForMemory = dynamic_cast<const std::bad_alloc*>(&cause) != nullptr;
  try {
    std::string text = positions_.describePeer(peers_.rank);
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

void GroupFailure::fail(const Error& error, const Signature& during) {
  const std::lock_guard ending(endMutex_);
  if (hasEnded()) return;
  News first{error, during, completed_.load(std::memory_order_relaxed) + 1};
  bool isOwn = true;
  if (hasNews()) {
    const std::lock_guard lock(mutex_);
    first = *news_;
    isOwn = false;
  }
  if (peers_.memory && !showToHost(first)) isOwn = false;
  const std::string warning = letGoOfBuffers();
  if (peers_.size > 1 && !areWiresClosed_) {
    try {
      peers_.mailbox->catchUp();       // messages that have arrived whole are still delivered
    } catch (const std::exception&) {  // no memory for one
    }
    passOn(first);
    closeWires(peers_.areAllLocal ? milliseconds(0) : kAbortGrace,
               transport::Transport::Ending::kFailure);
  }
  {
    std::lock_guard lock(mutex_);
    error_ = withWarning(isOwn ? first.error : asSeenHere(first), warning);
    isErrorOfOthers_ = !isOwn;
  }
  hasEnded_.store(true, std::memory_order_release);
  wake_();
}

void GroupFailure::leave(bool isPending, milliseconds grace) {
  const std::lock_guard ending(endMutex_);
  const std::string warning = isPending ? letGoOfBuffers() : std::string();
  closeWires(grace, transport::Transport::Ending::kInOrder);
  // The transports of a failed group go on telling the reason to ranks that connect, until here.
  for (const auto& transport : peers_.transports) transport->close(milliseconds(0));
  if (!hasEnded()) {
    const std::lock_guard lock(mutex_);
    error_.emplace(ErrorKind::kConfiguration,
                   "this rank closed the group while the operation was pending; expected every "
                   "operation to be waited for first" +
                       warning);
  }
  // While endMutex_ is held: a thread that sees the wires close and calls fail() comes too late.
  hasEnded_.store(true, std::memory_order_release);
}

std::optional<Error> GroupFailure::reported() const {
  if (hasNews()) {
    std::lock_guard lock(mutex_);
    return news_->error;
  }
  if (peers_.memory && peers_.memory->abortBlock().state.load(std::memory_order_acquire) != 0) {
    return Error(ErrorKind::kInternal, "the group failed");
  }
  return std::nullopt;
}

}  // namespace smd::engine
