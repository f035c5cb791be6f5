// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/communicator.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "algorithms/point_to_point.h"
#include "common/cpu.h"
#include "common/fork.h"
#include "kernels/kernels.h"
#include "transport/shm/factory.h"

namespace smd::engine {
namespace {

using algorithms::Request;

InterruptCheck interruptCheck;

constexpr nanoseconds kLongestSleep = milliseconds(100);
// Polls between two looks at the clock and at the health of the group.
constexpr int kPollsPerCheck = 64;
// An asynchronous operation is tried on the caller's thread for this many polls (some microseconds)
// before the progress thread takes over, but only if it is small: a large one would keep the caller
// from computing.
constexpr int kInlinePolls = 400;
constexpr std::uint64_t kInlineBytes = 64 << 10;
constexpr milliseconds kGoodbyeGrace{2000};
constexpr milliseconds kAbortGrace{200};

std::string seconds(nanoseconds duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(duration).count());
  return text;
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

bool isSmall(const Request& request) {
  return algorithms::agreedBytes(request) <= kInlineBytes && request.kind != OpKind::kAllToAll &&
         request.kind != OpKind::kGather && request.kind != OpKind::kScatter;
}

}  // namespace

void setInterruptCheck(InterruptCheck check) { interruptCheck = std::move(check); }

Communicator::Communicator(int rank, int worldSize, CommunicatorOptions options)
    : rank_(rank), size_(worldSize), options_(std::move(options)), generation_(forkGeneration()) {
  const char* overrides = std::getenv("SMDDP_ALGORITHM");
  overrides_ = parseOverrides(overrides == nullptr ? "" : overrides);
}

std::shared_ptr<Communicator> Communicator::create(int rank, int worldSize,
                                                   const ExchangeFn& exchange,
                                                   CommunicatorOptions options) {
  if (worldSize < 1 || rank < 0 || rank >= worldSize) {
    throw Error(ErrorKind::kConfiguration, "rank " + std::to_string(rank) + " of world size " +
                                               std::to_string(worldSize) +
                                               "; expected 0 <= rank < world size. Check RANK and "
                                               "WORLD_SIZE.");
  }
  std::shared_ptr<Communicator> communicator(new Communicator(rank, worldSize, std::move(options)));
  communicator->join(exchange);
  return communicator;
}

void Communicator::join(const ExchangeFn& exchange) {
  membership_ = bootstrap(rank_, size_, exchange, options_.bootstrap);
  const auto& locals = membership_.localRanks;
  const int cores = topology::coresOf(membership_.identities, locals);
  noteHostLoad(static_cast<int>(locals.size()), cores);
  stagingBlocks_ = algorithms::stagingBlocks(static_cast<int>(locals.size()), cores);
  if (size_ == 1) return;
  allLocal_ = static_cast<int>(locals.size()) == size_;
  liveness_ = std::make_unique<Liveness>(size_);
  mailbox_ = std::make_unique<transport::Mailbox>(
      size_, transport::Mailbox::Events{
                 [this] {
                   fullFence();
                   bell().ringIfAsleep();
                 },
                 [this](int peer, const Error& error) {
                   liveness_->reportLost(peer, error.what());
                   bell().ring();
                 },
                 [this](int, const transport::FrameHeader& header, std::vector<std::byte> text) {
                   std::lock_guard lock(errorMutex_);
                   if (reported_) return;
                   reported_.emplace(
                       static_cast<ErrorKind>(header.tag % kNumErrorKinds),
                       std::string(reinterpret_cast<const char*>(text.data()), text.size()));
                   hasReport_.store(true, std::memory_order_release);
                   bell().ring();
                 }});
  if (membership_.region != nullptr) {
    localIndex_ =
        static_cast<int>(std::lower_bound(locals.begin(), locals.end(), rank_) - locals.begin());
    memory_ = membership_.region->view(localIndex_);
    transports_.push_back(
        transport::shm::createTransport(membership_.region, localIndex_, locals, *mailbox_));
    for (int peer : locals) {
      if (peer != rank_) mailbox_->setTransport(peer, transports_.back().get());
    }
    memory_->mine().presence.store(transport::Presence::kPresent, std::memory_order_release);
    const std::int64_t self = membership_.identities[static_cast<std::size_t>(rank_)].pid;
    for (int peer : locals) {
      const std::int64_t pid = membership_.identities[static_cast<std::size_t>(peer)].pid;
      if (pid != self) liveness_->watchProcess(peer, pid, [this] { bell().ring(); });
    }
  }
  if (membership_.tcp != nullptr) {
    std::vector<std::string> endpoints;
    for (const auto& identity : membership_.identities) endpoints.push_back(identity.endpoint);
    transport::tcp::Cookie cookie{};
    const std::string& secret = membership_.identities[0].secret;
    std::memcpy(cookie.data(), secret.data(), std::min(cookie.size(), secret.size()));
    membership_.tcp->start(std::move(endpoints), cookie, *mailbox_);
    for (int peer = 0; peer < size_; ++peer) {
      if (!std::binary_search(locals.begin(), locals.end(), peer)) {
        mailbox_->setTransport(peer, membership_.tcp.get());
      }
    }
    transports_.push_back(std::move(membership_.tcp));
  }
}

Communicator::~Communicator() { close(); }

bool Communicator::sharesMemoryWith(int peer) const {
  return std::binary_search(membership_.localRanks.begin(), membership_.localRanks.end(), peer);
}

Doorbell& Communicator::bell() { return memory_ ? memory_->mine().bell : ownBell_; }

Choice Communicator::choose(OpKind kind, std::uint64_t payloadBytes) const {
  return select(kind, payloadBytes, {size_, allLocal_ && memory_.has_value()}, overrides_);
}

// --- starting operations -------------------------------------------------------------------------

void Communicator::checkUsable() const {
  if (isForkedChild(generation_)) {
    throw Error(ErrorKind::kConfiguration,
                "group '" + options_.name +
                    "' was made before this process was forked and cannot be used in the child; "
                    "expected communication in the parent only. Start workers with the \"spawn\" "
                    "method, or make the group after the fork.");
  }
}

std::shared_ptr<Work> Communicator::makeWork(Request request, nanoseconds timeout) {
  auto work = std::make_shared<Work>();
  work->started = Clock::now();
  work->deadline = work->started + (timeout.count() > 0 ? timeout : options_.timeout);
  algorithms::Context& context = work->context;
  context.signature = algorithms::signatureOf(request);
  context.request = std::move(request);
  context.rank = rank_;
  context.size = size_;
  context.memory = memory_ ? &*memory_ : nullptr;
  context.mailbox = mailbox_.get();
  context.blocksDone = &blocksDone_;
  context.stagingBlocks = stagingBlocks_;
  return work;
}

Task Communicator::start(Work& work) const {
  switch (choose(work.context.request.kind, algorithms::oneShotBytes(work.context.request, size_))
              .algorithm) {
    case Algorithm::kOneShot:
      return algorithms::runOneShot(work.context);
    case Algorithm::kStaged:
      return algorithms::runStaged(work.context);
    default:
      return algorithms::runDirect(work.context);
  }
}

std::shared_ptr<Work> Communicator::collective(Request request, Mode mode, nanoseconds timeout) {
  checkUsable();
  if (request.kind == OpKind::kAllReduce || request.kind == OpKind::kReduce ||
      request.kind == OpKind::kReduceScatter) {
    kernels::reduceOrThrow(request.op, request.dtype);
  }
  const bool runsInlineFirst = mode == Mode::kBlocking || isSmall(request);
  std::shared_ptr<Work> work = makeWork(std::move(request), timeout);
  algorithms::premultiply(work->context, work->scratch);

  std::unique_lock lock(mutex_);
  if (closed_) {
    throw Error(ErrorKind::kConfiguration,
                "group '" + options_.name +
                    "' is closed; expected an open group. Make the group "
                    "again, or close it after its last use.");
  }
  work->context.signature.sequence = ++sequence_;
  if (size_ == 1) {
    lock.unlock();
    algorithms::runAlone(work->context);
    work->complete(std::nullopt);
    return work;
  }
  queue_.push_back(work);
  if (queue_.size() == 1 && driver_ == Driver::kNone && runsInlineFirst) {
    driver_ = Driver::kInline;
    lock.unlock();
    bool isDone;
    try {
      isDone = driveInline(*work, mode == Mode::kAsync);
    } catch (const Interrupted&) {
      lock.lock();
      queue_.pop_front();
      driver_ = Driver::kNone;
      if (!queue_.empty()) handOver(lock);
      throw;
    }
    lock.lock();
    driver_ = Driver::kNone;
    if (isDone) queue_.pop_front();
    if (!queue_.empty()) handOver(lock);
    return work;
  }
  if (driver_ == Driver::kNone) handOver(lock);
  if (lock.owns_lock()) lock.unlock();
  if (mode == Mode::kBlocking) {
    // The progress thread watches the deadline; this one only sleeps.
    if (!work->waitUntil(TimePoint::max(), interruptCheck)) {
      fail(Error(ErrorKind::kPeerLost, describePeer(rank_) + " was interrupted by its user"));
      throw Interrupted{};
    }
  }
  return work;
}

void Communicator::handOver(std::unique_lock<std::mutex>& lock) {
  driver_ = Driver::kProgress;
  lock.unlock();
  ProgressThread::process().add(shared_from_this());
}

std::shared_ptr<Work> Communicator::send(const std::byte* data, std::uint64_t count, DType dtype,
                                         int peer, std::uint64_t tag, Mode mode,
                                         nanoseconds timeout) {
  Request request;
  request.kind = OpKind::kSend;
  request.dtype = dtype;
  request.root = peer;
  request.count = count;
  request.input = data;
  std::shared_ptr<Work> work = makeWork(std::move(request), timeout);
  work->context.signature.detail = tag;
  return runIndependently(std::move(work), mode);
}

std::shared_ptr<Work> Communicator::receive(std::byte* data, std::uint64_t count, DType dtype,
                                            int peer, std::uint64_t tag, Mode mode,
                                            nanoseconds timeout) {
  Request request;
  request.kind = OpKind::kRecv;
  request.dtype = dtype;
  request.root = peer;
  request.count = count;
  request.output = data;
  std::shared_ptr<Work> work = makeWork(std::move(request), timeout);
  work->context.signature.detail = tag;
  return runIndependently(std::move(work), mode);
}

std::shared_ptr<Work> Communicator::runIndependently(std::shared_ptr<Work> work, Mode mode) {
  checkUsable();
  const int peer = work->context.request.root;
  if (peer == rank_ || peer >= size_ || peer < transport::kAnyPeer || size_ == 1) {
    throw Error(ErrorKind::kConfiguration,
                std::string(smd::name(work->context.request.kind)) + " names rank " +
                    std::to_string(peer) + " on rank " + std::to_string(rank_) + " of " +
                    std::to_string(size_) +
                    "; expected another rank of the group. Check the rank "
                    "arithmetic of the caller.");
  }
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      throw Error(ErrorKind::kConfiguration,
                  "group '" + options_.name +
                      "' is closed; expected an open group. Make the group "
                      "again, or close it after its last use.");
    }
  }
  Work* raw = work.get();
  work->body =
      work->context.request.kind == OpKind::kSend
          ? algorithms::runSend(work->context)
          : algorithms::runReceive(work->context, [raw](int source) { raw->setSource(source); });
  if (mode == Mode::kBlocking) {
    driveInline(*work, false);
    return work;
  }
  // Posting happens here and now, so that receives match in the order of the calls.
  if (step(*work)) return work;
  std::unique_lock lock(mutex_);
  independent_.push_back(work);
  lock.unlock();
  ProgressThread::process().add(shared_from_this());
  return work;
}

// --- driving operations --------------------------------------------------------------------------

// Returns whether the work is complete, well or not.
bool Communicator::step(Work& work) {
  try {
    if (hasError_.load(std::memory_order_acquire)) {
      finish(work, groupError());
      return true;
    }
    if (!work.isStarted && work.context.signature.sequence != 0) {
      work.isStarted = true;
      work.body = start(work);
    }
    if (!work.body.advance()) return false;
    finish(work, std::nullopt);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kMismatch && work.context.signature.sequence == 0) {
      finish(work, error);  // a wrong size in one message concerns two ranks, not the group
    } else {
      fail(error);
      finish(work, groupError());
    }
  }
  return true;
}

void Communicator::finish(Work& work, std::optional<Error> error) {
  if (!error && memory_ && work.context.signature.sequence != 0) {
    memory_->mine().completed.store(work.context.signature.sequence, std::memory_order_release);
  }
  if (error) error = withPrefix(work, *error);
  work.complete(std::move(error));
}

bool Communicator::driveInline(Work& work, bool stopEarly) {
  const SpinBudget budget = callerSpinBudget();
  const int limit = budget.spins + budget.yields;
  int polls = 0;
  int untilCheck = kPollsPerCheck;
  for (;;) {
    if (step(work)) return true;
    if (stopEarly && (polls >= kInlinePolls || polls >= budget.spins)) return false;
    if (--untilCheck == 0) {
      untilCheck = kPollsPerCheck;
      if (auto error = diagnose(work)) {
        finish(work, std::move(error));
        return true;
      }
    }
    if (polls < budget.spins) {
      cpuRelax();
      ++polls;
      continue;
    }
    if (polls < limit) {
      sched_yield();
      ++polls;
      continue;
    }
    // Announce, look once more, sleep: see Doorbell.
    Doorbell& doorbell = bell();
    doorbell.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = doorbell.rings.load(std::memory_order_seq_cst);
    const bool isDone = step(work);
    std::optional<Error> error;
    if (!isDone && !(error = diagnose(work))) {
      const nanoseconds left = work.deadline - Clock::now();
      futexWait(doorbell.rings, seen, std::clamp<nanoseconds>(left, nanoseconds(0), kLongestSleep));
    }
    doorbell.sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (isDone) return true;
    if (error) {
      finish(work, std::move(error));
      return true;
    }
    if (interruptCheck && interruptCheck()) {
      fail(Error(ErrorKind::kPeerLost, describePeer(rank_) + " was interrupted by its user"));
      finish(work, groupError());
      throw Interrupted{};
    }
    polls = budget.spins;
  }
}

Advancing::Result Communicator::advance() {
  bool moved = false;
  std::unique_lock lock(mutex_);
  while (driver_ == Driver::kProgress && !queue_.empty()) {
    const std::shared_ptr<Work> work = queue_.front();
    lock.unlock();
    bool isDone = step(*work);
    if (!isDone) {
      if (auto error = diagnose(*work)) {
        finish(*work, std::move(error));
        isDone = true;
      }
    }
    lock.lock();
    if (!isDone) break;
    queue_.pop_front();
    moved = true;
  }
  if (driver_ == Driver::kProgress && queue_.empty()) driver_ = Driver::kNone;
  for (auto it = independent_.begin(); it != independent_.end();) {
    const std::shared_ptr<Work> work = *it;
    lock.unlock();
    bool isDone = step(*work);
    if (!isDone) {
      if (auto error = diagnose(*work)) {
        finish(*work, std::move(error));
        isDone = true;
      }
    }
    lock.lock();
    if (isDone) {
      it = independent_.erase(it);
      moved = true;
    } else {
      ++it;
    }
  }
  if (driver_ != Driver::kProgress && independent_.empty()) return Result::kIdle;
  return moved ? Result::kMoved : Result::kBlocked;
}

// --- what can go wrong ---------------------------------------------------------------------------

std::string Communicator::describePeer(int peer) const {
  const topology::Identity& identity = membership_.identities[static_cast<std::size_t>(peer)];
  return "rank " + std::to_string(peer) + " (host " + identity.host + ", pid " +
         std::to_string(identity.pid) + ")";
}

Error Communicator::withPrefix(const Work& work, const Error& error) const {
  return Error(error.kind(), describe(work.signature()) + " on rank " + std::to_string(rank_) +
                                 " of " + std::to_string(size_) + " (host " +
                                 membership_.identities[static_cast<std::size_t>(rank_)].host +
                                 ", group '" + options_.name + "'): " + error.what());
}

std::string Communicator::lastSeen(int peer) const {
  if (!memory_ || !sharesMemoryWith(peer)) return "";
  const auto position =
      std::lower_bound(membership_.localRanks.begin(), membership_.localRanks.end(), peer);
  const transport::RankCells& cells =
      memory_->cells(static_cast<int>(position - membership_.localRanks.begin()));
  const transport::ArrivalLine* last = nullptr;
  for (const transport::ArrivalLine& line : cells.arrivals) {
    if (last == nullptr || line.sequence.load() > last->sequence.load()) last = &line;
  }
  if (last->sequence.load() == 0) return ", not seen in any collective yet";
  return ", last seen in " + describe(last->signature);
}

std::optional<Error> Communicator::groupError() {
  std::lock_guard lock(errorMutex_);
  return error_;
}

// Caller holds failMutex_.
void Communicator::closeWires(milliseconds grace) {
  if (wiresClosed_) return;
  wiresClosed_ = true;
  for (auto& transport : transports_) transport->close(grace);
}

void Communicator::fail(const Error& error) {
  std::lock_guard failing(failMutex_);
  if (hasError_.load(std::memory_order_acquire)) return;
  Error first = error;
  if (memory_) {
    // Whoever is first on this host writes; the others take over what was written.
    transport::AbortBlock& block = memory_->abortBlock();
    std::uint32_t state = 0;
    if (block.state.compare_exchange_strong(state, 1, std::memory_order_acq_rel)) {
      block.kind = static_cast<std::uint32_t>(error.kind());
      std::strncpy(block.text, error.what(), transport::AbortBlock::kTextBytes - 1);
      block.state.store(2, std::memory_order_release);
      for (int peer = 0; peer < memory_->size(); ++peer) memory_->cells(peer).bell.ring();
    } else {
      // The writer may have died in between: do not wait for it for long.
      const TimePoint giveUp = Clock::now() + milliseconds(100);
      while (block.state.load(std::memory_order_acquire) == 1 && Clock::now() < giveUp)
        sched_yield();
      if (block.state.load(std::memory_order_acquire) == 2) {
        first = Error(static_cast<ErrorKind>(block.kind % kNumErrorKinds), block.text);
      }
    }
  }
  if (size_ > 1 && !wiresClosed_) {
    transport::FrameHeader header;
    header.channel = transport::Channel::kControl;
    header.tag = static_cast<std::uint64_t>(first.kind());
    header.length = std::strlen(first.what());
    for (int peer = 0; peer < size_; ++peer) {
      if (!sharesMemoryWith(peer) && !liveness_->isLost(peer)) {
        mailbox_->send(peer, header, first.what(), nullptr);
      }
    }
    closeWires(allLocal_ ? milliseconds(0) : kAbortGrace);
  }
  {
    std::lock_guard lock(errorMutex_);
    error_ = first;
  }
  hasError_.store(true, std::memory_order_release);
  bell().ring();
}

std::optional<Error> Communicator::diagnose(Work& work) {
  if (hasError_.load(std::memory_order_acquire)) return groupError();
  if (hasReport_.load(std::memory_order_acquire)) {
    std::optional<Error> reported;
    {
      std::lock_guard lock(errorMutex_);
      reported = reported_;
    }
    fail(*reported);
    return groupError();
  }
  if (memory_ && memory_->abortBlock().state.load(std::memory_order_acquire) != 0) {
    fail(Error(ErrorKind::kInternal, "the group failed"));
    return groupError();
  }
  try {
    if (auto lost = diagnosePeers(work)) {
      fail(*lost);
      return groupError();
    }
  } catch (const Error& error) {  // it polls, and so may be the first to see that ranks disagree
    fail(error);
    return groupError();
  }
  if (Clock::now() < work.deadline) return std::nullopt;
  const Error timeout = timeoutError(work);
  // A receive that nobody answered harms nobody else; everything else leaves ranks out of step.
  if (work.body.awaited() != nullptr && work.body.awaited()->canBeAbandoned()) return timeout;
  fail(timeout);
  return groupError();
}

std::optional<Error> Communicator::diagnosePeers(Work& work) {
  const Condition* awaited = work.body.awaited();
  bool anyLeft = false;
  if (memory_) {
    for (int position = 0; position < memory_->size(); ++position) {
      anyLeft = anyLeft || memory_->cells(position).presence.load(std::memory_order_acquire) ==
                               transport::Presence::kLeft;
    }
  }
  if (awaited == nullptr || (!anyLeft && !liveness_->anyLost())) return std::nullopt;
  // Whatever the lost peer did before it went is visible by now: look once more before judging.
  if (const_cast<Condition*>(awaited)->isMet()) return std::nullopt;
  const std::vector<int> missing = const_cast<Condition*>(awaited)->missingRanks();
  const auto& locals = membership_.localRanks;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    std::string how = liveness_->howLost(peer);
    const auto position = std::lower_bound(locals.begin(), locals.end(), peer);
    bool blocksThis = std::find(missing.begin(), missing.end(), peer) != missing.end();
    if (memory_ && position != locals.end() && *position == peer) {
      const transport::RankCells& cells =
          memory_->cells(static_cast<int>(position - locals.begin()));
      if (cells.presence.load(std::memory_order_acquire) == transport::Presence::kLeft) {
        how = "left the group (it closed it, or its program ended)";
      }
      // It will never finish an operation that all must finish.
      if (work.context.signature.sequence != 0 &&
          cells.completed.load(std::memory_order_acquire) < work.context.signature.sequence) {
        blocksThis = true;
      }
    }
    if (how.empty() || !blocksThis) continue;
    return Error(
        ErrorKind::kPeerLost,
        describePeer(peer) + " " + how + ", noticed " + seconds(Clock::now() - work.started) +
            " into the operation" + lastSeen(peer) +
            "; it was expected to take part until every rank is done. Read the log of rank " +
            std::to_string(peer) + " first. This group cannot be used again.");
  }
  return std::nullopt;
}

Error Communicator::timeoutError(Work& work) {
  Condition* awaited = work.body.awaited();
  const std::vector<int> missing =
      awaited == nullptr ? std::vector<int>{} : awaited->missingRanks();
  std::string text = "has waited " + seconds(Clock::now() - work.started) + " for ";
  text += missing.empty() ? "earlier operations of this rank" : rankList(missing, [this](int peer) {
    return peer < 0 ? std::string("any rank to send") : describePeer(peer) + lastSeen(peer);
  });
  if (work.context.signature.sequence != 0 && !missing.empty()) {
    const int arrived = size_ - static_cast<int>(missing.size());
    text +=
        "; the other " + std::to_string(arrived) + (arrived == 1 ? " rank" : " ranks") +
        " arrived. Expected: all ranks make the same calls in the same order. The usual cause is "
        "an "
        "uneven number of batches per rank at the end of an epoch (use torch's Join context, or "
        "drop_last), or a branch that depends on the rank; a rank that is stopped or very slow "
        "looks the same (raise the timeout).";
  } else {
    text +=
        ". Expected a matching call on the other side; compare peers and tags of send and recv.";
  }
  return Error(ErrorKind::kTimeout, text);
}

void Communicator::abort(const std::string& reason) {
  if (isForkedChild(generation_)) return;
  fail(Error(ErrorKind::kPeerLost, describePeer(rank_) + " aborted the group: " + reason));
}

void Communicator::close() {
  if (isForkedChild(generation_)) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (size_ == 1) return;
  bool isPending = false;
  {
    std::lock_guard lock(mutex_);
    isPending = !queue_.empty() || !independent_.empty();
  }
  {
    std::lock_guard failing(failMutex_);
    closeWires(isPending ? milliseconds(0) : kGoodbyeGrace);
    if (!hasError_.load(std::memory_order_acquire)) {
      std::lock_guard lock(errorMutex_);
      error_.emplace(ErrorKind::kConfiguration,
                     "this rank closed the group while the operation was pending; expected every "
                     "operation to be waited for first");
    }
  }
  hasError_.store(true, std::memory_order_release);
  bell().ring();
  // Whoever drives them completes what is pending with that error.
  while (isPending) {
    if (ProgressThread::process().isStopped()) advance();
    sched_yield();
    std::lock_guard lock(mutex_);
    isPending = !queue_.empty() || !independent_.empty();
  }
  if (memory_) {
    memory_->mine().presence.store(transport::Presence::kLeft, std::memory_order_seq_cst);
    for (int peer = 0; peer < memory_->size(); ++peer) {
      if (peer != memory_->index()) memory_->cells(peer).bell.ring();
    }
  }
  liveness_->stop();
}

}  // namespace smd::engine
