// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/group/communicator.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <thread>

#include "algorithms/coalesce.h"
#include "algorithms/fragments.h"
#include "algorithms/mismatch.h"
#include "algorithms/point_to_point.h"
#include "common/cpu.h"
#include "common/fork.h"
#include "engine/choose/link_measure.h"
#include "engine/diagnostics/reporter.h"
#include "engine/group/registry.h"
#include "kernels/kernels.h"
#include "transport/shm/factory.h"

namespace smd::engine {
namespace {

// An operation in Mode::kBrief may spin for one more spin budget per kWorthOneBudget bytes, up to
// kMostOfOne bytes.
constexpr std::uint64_t kWorthOneBudget = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostOfOne = std::uint64_t{32} << 20;

using algorithms::Request;

// The caller's thread tries an asynchronous operation of at most this size for as long as it may
// spin, before the progress thread takes the operation over: a hand-over and back costs some 100
// us. A larger operation would keep the caller from computing.
constexpr std::uint64_t kInlineBytes = 64 << 10;
constexpr milliseconds kGoodbyeGrace{2000};
// How long a new group may measure the network between its hosts. What it has not learned by then
// is assumed.
constexpr milliseconds kLinkPatience{5000};

bool isSmall(const Request& request) {
  return algorithms::agreedBytes(request) <= kInlineBytes && request.kind != OpKind::kAllToAll &&
         request.kind != OpKind::kGather && request.kind != OpKind::kScatter;
}

}  // namespace

Communicator::Communicator(int rank, int worldSize, EngineOptions options, std::string name)
    : options_(std::move(options)),
      generation_(forkGeneration()),
      peers_(rank, worldSize, std::move(name)),
      positions_(rank, worldSize),
      failure_(peers_, positions_, exposed_, [this] { wake(); }),
      diagnosis_(peers_, positions_, failure_, options_.stall,
                 [this] { return messages_->heldBytes(); }) {
  const char* overrides = std::getenv("SMDDP_ALGORITHM");
  overrides_ = parseOverrides(overrides == nullptr ? "" : overrides);
}

std::shared_ptr<Communicator> Communicator::create(int rank, int worldSize,
                                                   const ExchangeFn& exchange,
                                                   EngineOptions options, std::string name) {
  if (worldSize < 1 || rank < 0 || rank >= worldSize) {
    throw Error(ErrorKind::kConfiguration, "rank " + std::to_string(rank) + " of world size " +
                                               std::to_string(worldSize) +
                                               "; expected 0 <= rank < world size. Check RANK and "
                                               "WORLD_SIZE.");
  }
  std::shared_ptr<Communicator> communicator(
      new Communicator(rank, worldSize, std::move(options), std::move(name)));
  communicator->join(exchange);
  addToRegistry(communicator);
  if (communicator->options_.hasSignalReport) {
    try {
      installSignalReport();
    } catch (const std::exception&) {  // no descriptor or thread is left: only a diagnostic is lost
    }
  }
  return communicator;
}

void Communicator::join(const ExchangeFn& exchange) {
  peers_.membership = bootstrap(peers_.rank, peers_.size, exchange, options_);
  positions_.join(peers_.membership, nullptr, nullptr, nullptr);
  failure_.prepare();
  topology_.size = peers_.size;
  topology_.hosts = peers_.membership.hosts.count();
  topology_.ranksPerHost = peers_.membership.hosts.mostRanks();
  topology_.isFixedOrder = options_.isDeterministic;
  const auto& locals = peers_.membership.localRanks;
  const int cores = hosts::coresOf(peers_.membership.identities, locals);
  noteHostLoad(static_cast<int>(locals.size()), cores);
  copyAhead_ = algorithms::copyAheadFor(static_cast<int>(locals.size()), cores);
  // As progressSpinBudget(): each rank's application is likely to compute meanwhile.
  copyAheadInBackground_ = algorithms::copyAheadFor(2 * static_cast<int>(locals.size()), cores);
  if (peers_.size == 1) return;
  peers_.areAllLocal = static_cast<int>(locals.size()) == peers_.size;
  peers_.liveness = std::make_unique<Liveness>(peers_.size);
  peers_.mailbox = std::make_unique<transport::Mailbox>(
      peers_.size,
      transport::Mailbox::Events{
          [this] {
            fullFence();
            bell().ringIfAsleep();
          },
          [this](int peer, const Error& error) {
            try {
              peers_.liveness->reportLost(peer, error.what());
            } catch (const std::bad_alloc&) {
              peers_.liveness->reportLost(peer, "is lost");  // so short that it needs none
            }
            wake();
          },
          [this](int peer, const transport::FrameHeader& header, std::string_view payload) {
            onControl(peer, header, payload);
          },
          [this](int peer, const transport::Refusal& refusal) {
            failure_.noteRefusal(peer, refusal);
          }});
  if (peers_.membership.region != nullptr) {
    const int index = static_cast<int>(std::lower_bound(locals.begin(), locals.end(), peers_.rank) -
                                       locals.begin());
    peers_.memory = peers_.membership.region->view(index);
    if (peers_.membership.hasArenas) {
      peers_.arena = transport::shm::Arena::create(peers_.membership.region, index);
    }
    peers_.transports.push_back(
        transport::shm::createTransport(peers_.membership.region, index, locals, *peers_.mailbox));
    for (int peer : locals) {
      if (peer != peers_.rank) peers_.mailbox->setTransport(peer, peers_.transports.back().get());
    }
    peers_.memory->mine().presence.store(transport::Presence::kPresent, std::memory_order_release);
    const std::int64_t self =
        peers_.membership.identities[static_cast<std::size_t>(peers_.rank)].pid;
    for (int peer : locals) {
      const std::int64_t pid = peers_.membership.identities[static_cast<std::size_t>(peer)].pid;
      if (pid != self) peers_.liveness->watchProcess(peer, pid, [this] { wake(); });
    }
  }
  positions_.join(peers_.membership, peers_.memory ? &*peers_.memory : nullptr,
                  peers_.mailbox.get(), peers_.liveness.get());
  if (peers_.membership.tcp != nullptr) {
    // First of all: if anything below throws, close() must find the transport here.
    transport::tcp::TcpTransport& tcp = *peers_.membership.tcp;
    peers_.transports.push_back(std::move(peers_.membership.tcp));
    peers_.tcp = &tcp;
    std::vector<std::string> endpoints;
    for (const auto& identity : peers_.membership.identities)
      endpoints.push_back(identity.endpoint);
    // Before the transport starts: a peer may ask a question at once, which is answered through the
    // mailbox.
    for (int peer = 0; peer < peers_.size; ++peer) {
      if (!std::binary_search(locals.begin(), locals.end(), peer)) {
        peers_.mailbox->setTransport(peer, &tcp);
      }
    }
    interfaces_ = tcp.interfaces();
    tcp.start(std::move(endpoints), peers_.membership.key, *peers_.mailbox);
    // A ring of connections over the hosts, for each position on a host: so news of a failure finds
    // a way to every rank, whichever ranks have talked to each other. Within a host the region is
    // that way.
    const hosts::Hosts& hosts = peers_.membership.hosts;
    const std::vector<int>& next = hosts.ranksOf((hosts.self + 1) % hosts.count());
    tcp.expect(next[static_cast<std::size_t>(hosts.position) % next.size()]);
  }
  if (topology_.hosts > 1) learnLink(exchange);
  topology_.sharesMemory = peers_.areAllLocal && peers_.memory.has_value();
  topology_.hasArenas = peers_.areAllLocal && peers_.arena != nullptr;
  messages_ = std::make_unique<GroupMessages>(peers_, positions_, failure_, bell(),
                                              options_.messageLimitBytes);
}

void Communicator::learnLink(const ExchangeFn& exchange) {
  std::vector<std::string> links;
  for (const hosts::Identity& each : peers_.membership.identities) links.push_back(each.link);
  if (std::ranges::find(links, std::string()) != links.end()) {
    const std::optional<Link> measured =
        measureLink(peers_.membership.hosts, *peers_.mailbox, *peers_.liveness,
                    std::min<std::chrono::nanoseconds>(options_.timeout, kLinkPatience));
    links = exchangeAll(exchange, "link", serializeLink(measured), peers_.size);
  }
  topology_.link = slowestOf(links);
  rememberLink(topology_.link);
}

Communicator::~Communicator() { close(); }

void Communicator::wake() {
  bell().ring();
  if (peers_.mailbox != nullptr) peers_.mailbox->interruptWait();
}

Doorbell& Communicator::bell() { return peers_.memory ? peers_.memory->mine().bell : ownBell_; }

std::shared_ptr<transport::shm::SharedBuffer> Communicator::allocateShared(
    std::size_t bytes, transport::shm::Contents contents) {
  checkUsable();
  // Shared buffers are for what all ranks reduce: they are of no use if some ranks are on other
  // hosts.
  if (peers_.arena == nullptr || !peers_.areAllLocal || failure_.hasEnded()) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return nullptr;
  }
  return peers_.arena->allocate(bytes, contents);
}

bool Communicator::isInUse(const std::byte* begin, std::size_t bytes) {
  if (isForkedChild(generation_)) return false;
  const auto usesIt = [begin, bytes](const std::shared_ptr<Work>& work) {
    return !work->isCompleted() && algorithms::touches(work->context.request, begin, bytes);
  };
  const std::lock_guard lock(mutex_);
  return std::any_of(queue_.begin(), queue_.end(), usesIt) ||
         std::any_of(independent_.begin(), independent_.end(), usesIt);
}

Choice Communicator::choose(OpKind kind, std::uint64_t payloadBytes) const {
  return select(kind, payloadBytes, topology_, overrides_);
}

// --- starting operations -------------------------------------------------------------------------

void Communicator::checkUsable() const {
  if (isForkedChild(generation_)) {
    throw Error(ErrorKind::kConfiguration,
                "group '" + peers_.name +
                    "' was made before this process was forked and cannot be used in the child; "
                    "expected communication in the parent only. Start workers with the \"spawn\" "
                    "method, or make the group after the fork.");
  }
}

// The caller holds mutex_.
void Communicator::requireOpen() const {
  if (!closed_) return;
  throw Error(
      ErrorKind::kConfiguration,
      "group '" + peers_.name +
          "' is closed; expected an open group. Make the group again, or close it after its "
          "last use.");
}

// The group is open, and has a rank `peer` other than this one.
void Communicator::requireUsable(std::string_view operation, int peer, bool mayBeAny) {
  checkUsable();
  const bool isAny = peer == transport::kAnyPeer && mayBeAny;
  if (peer == peers_.rank || peer >= peers_.size || (peer < 0 && !isAny) || peers_.size == 1) {
    throw Error(ErrorKind::kConfiguration,
                std::string(operation) + " names rank " + std::to_string(peer) + " on rank " +
                    std::to_string(peers_.rank) + " of " + std::to_string(peers_.size) +
                    "; expected another rank of the group. Check the rank arithmetic of the "
                    "caller.");
  }
  const std::lock_guard lock(mutex_);
  requireOpen();
}

// To read elements at a null address would end the process.
void Communicator::requireMemory(const Request& request) const {
  if (!algorithms::lacksMemory(request, request.root == peers_.rank)) return;
  throw Error(ErrorKind::kConfiguration,
              describe(algorithms::signatureOf(request)) + " on rank " +
                  std::to_string(peers_.rank) +
                  " got elements without memory behind them; expected ordinary arrays or tensors. "
                  "A tensor of torch has none while it is fake, a DTensor, the result of a "
                  "functional collective that was not waited for, or after its storage was "
                  "resized to 0. Pass wait_tensor(t), t.to_local() or a copy.");
}

// If there is no memory it throws, and `request` is unchanged.
std::shared_ptr<Work> Communicator::makeWork(Request&& request, nanoseconds timeout) {
  auto work = std::make_shared<Work>();
  work->started = Clock::now();
  if (trace::isOn()) work->trace = std::make_unique<OperationTrace>(peers_.name, work->started);
  work->limit = timeout.count() > 0 ? timeout : options_.timeout;
  algorithms::Context& context = work->context;
  context.signature = algorithms::signatureOf(request);
  context.request = std::move(request);
  context.rank = peers_.rank;
  context.size = peers_.size;
  context.memory = peers_.memory ? &*peers_.memory : nullptr;
  context.hosts = peers_.size == 1 ? nullptr : &peers_.membership.hosts;
  context.mailbox = peers_.mailbox.get();
  context.blocksDone = &blocksDone_;
  context.scratch = &scratch_;
  context.exposed = &exposed_;
  if (work->trace) context.arrivedNs = &work->trace->arrivedNs;
  return work;
}

void Communicator::failCall(const Signature& signature, std::uint64_t bytes,
                            const std::exception& cause) {
  const Error error =
      failure_.cannotGoOn(cause, [&signature] { return describe(signature); }, bytes);
  if (peers_.size > 1) failure_.fail(error);
  Error told = peers_.size > 1 ? *failure_.error() : error;
  try {
    told = peers_.withPrefix(describe(signature), told);
  } catch (const std::bad_alloc&) {  // then the error lacks its first words
  }
  throw told;
}

Task Communicator::start(Work& work) {
  algorithms::Context& context = work.context;
  const OpKind kind = context.request.kind;
  const std::uint64_t bytes = algorithms::oneShotBytes(context.request);
  const bool isRoundedOnce = algorithms::isSummedWide(context.request);
  if (!lastChoice_ || lastChoice_->kind != kind || lastChoice_->bytes != bytes ||
      lastChoice_->isRoundedOnce != isRoundedOnce) {
    lastChoice_ = {kind, bytes, isRoundedOnce,
                   select(kind, bytes, topology_, overrides_, isRoundedOnce)};
  }
  const Choice& choice = lastChoice_->choice;
  Algorithm algorithm = choice.algorithm;
  context.pattern = choice.pattern;
  if (algorithm == Algorithm::kShared && !algorithms::mayShareBuffers(context)) {
    algorithm = Algorithm::kStaged;  // known at once, without waiting for the other ranks
  }
  const bool readsFragments = algorithm == Algorithm::kShared || algorithm == Algorithm::kStaged;
  if (!readsFragments) algorithms::joinFragments(context.request);
  if (work.trace) work.trace->start(algorithm);
  switch (algorithm) {
    case Algorithm::kOneShot:
      return algorithms::runOneShot(context);
    case Algorithm::kStaged:
      return algorithms::runStaged(context);
    case Algorithm::kShared:
      return algorithms::runShared(context);
    case Algorithm::kHierarchical:
      return algorithms::runHierarchical(context);
    default:
      return algorithms::runDirect(context);
  }
}

std::shared_ptr<Work> Communicator::collective(Request&& request, Mode mode, nanoseconds timeout) {
  checkUsable();
  if (request.kind == OpKind::kAllReduce || request.kind == OpKind::kReduce ||
      request.kind == OpKind::kReduceScatter) {
    kernels::reduceOrThrow(request.op, request.dtype);
  }
  requireMemory(request);
  const bool isBrief = mode != Mode::kBlocking;
  std::shared_ptr<Work> work;
  std::unique_lock lock(mutex_, std::defer_lock);
  try {
    if (peers_.size == 1 || request.op == ReduceOp::kPremulSum) algorithms::joinFragments(request);
    std::unique_ptr<std::byte[]> packed = algorithms::pack(request, peers_.size);
    work = makeWork(std::move(request), timeout);
    work->startClock(work->started);  // from the call on: a late rank keeps the others waiting
    // These checks come before premultiply(), which may write to the caller's array.
    if (mode == Mode::kBlocking && peers_.size > 1) requireMayWait(work->signature());
    if (work->context.request.op == ReduceOp::kPremulSum) {
      const std::lock_guard looking(mutex_);
      requireOpen();
    }
    work->packed = std::move(packed);
    work->isSmall = isSmall(work->context.request);
    algorithms::premultiply(work->context, work->scratch);
    lock.lock();
    requireOpen();
    work->wasQueued = !queue_.empty();
    if (peers_.size > 1) queue_.push_back(work);
  } catch (const std::bad_alloc& error) {
    if (lock.owns_lock()) lock.unlock();
    const Request& asked = work ? work->context.request : request;
    failCall(algorithms::signatureOf(asked), algorithms::agreedBytes(asked), error);
  }
  work->context.signature.sequence = ++sequence_;
  positions_.board().numCalled.store(sequence_, std::memory_order_release);
  if (peers_.size == 1) {
    lock.unlock();
    positions_.noteBegin(*work);
    if (work->trace) work->trace->start(Algorithm::kAlone);
    algorithms::runAlone(work->context);
    finish(*work, std::nullopt);
    return work;
  }
  if (queue_.size() == 1 && driver_ == Driver::kNone && (work->isSmall || mode != Mode::kAsync)) {
    const Drive result = driveQueue(lock, *work, {.isBrief = isBrief});
    if (!isBrief && result == Drive::kInterrupted) giveUp(*work);
    return work;
  }
  if (driver_ == Driver::kNone) handOver(lock);
  if (lock.owns_lock()) lock.unlock();
  if (mode == Mode::kBlocking && wait(*work, TimePoint::max()) == Drive::kInterrupted) {
    giveUp(*work);
  }
  return work;
}

// The user has interrupted a call that does not return before `work` is complete.
void Communicator::giveUp(Work& work) {
  failure_.fail(Error(ErrorKind::kPeerLost,
                      positions_.describePeer(peers_.rank) + " was interrupted by its user"));
  // The driver may be in the middle of this operation. Until it has seen the error, it uses the
  // caller's buffers.
  work.waitUntil(TimePoint::max(), nullptr);
  throw Interrupted{};
}

bool Communicator::isInterruptedHere() const {
  return isHandlingSignals(peers_.mailbox.get()) && !isForkedChild(generation_);
}

void Communicator::requireMayWait(const Signature& signature) const {
  if (!isInterruptedHere() && !Work::isCallingBack()) return;  // cheap: each blocking call asks
  requireMayWait([&signature] { return describe(signature); });
}

void Communicator::requireMayWait(const std::function<std::string()>& what) const {
  if (isInterruptedHere()) {
    throw Error(
        ErrorKind::kConfiguration,
        what() +
            " is waited for in a signal handler that interrupts another call of the group "
            "on this thread; expected no wait there, since that call goes on only after the "
            "handler. Set a flag in the handler and look at it between calls, or raise "
            "an exception there to end the call.");
  }
  if (Work::isCallingBack()) {
    throw Error(ErrorKind::kConfiguration,
                what() +
                    " is waited for in a done-callback of another operation; expected no wait "
                    "there, since the thread that runs it is the one that carries operations out. "
                    "Start it with async_op=True and wait on a thread of your own, or give it a "
                    "callback, too.");
  }
}

Communicator::Drive Communicator::wait(Work& work, TimePoint end) {
  if (work.isCompleted()) return Drive::kDone;
  checkUsable();
  requireMayWait(work.signature());
  std::unique_lock lock(mutex_);
  // A thread that waits takes over from the progress thread, and so is woken by the peer itself.
  const bool isQueued = work.context.signature.sequence != 0;
  if (isQueued && !work.isCompleted() && driver_ == Driver::kProgress && !isStepping_) {
    return driveQueue(lock, work, {.end = end});
  }
  lock.unlock();
  bool isInterrupted = false;
  const bool isDone = work.waitUntil(end, [this, &isInterrupted] {
    isInterrupted = wasInterrupted(*peers_.mailbox);
    return isInterrupted;
  });
  if (isInterrupted) return Drive::kInterrupted;
  return isDone ? Drive::kDone : Drive::kNotYet;
}

// The caller holds the lock, which this function releases. `work` is in the queue, and no thread
// drives the queue.
Communicator::Drive Communicator::driveQueue(std::unique_lock<std::mutex>& lock, const Work& work,
                                             const Until& until) {
  driver_ = Driver::kInline;
  Drive result = Drive::kDone;
  while (result == Drive::kDone && !work.isCompleted()) {
    Work& first = *queue_.front();  // stays in the queue: the driver removes it
    lock.unlock();
    first.context.copyAhead = copyAhead_;
    if (first.trace) first.trace->isDrivenByProgress = false;
    try {
      result = driveInline(first, until);
    } catch (const std::exception& error) {  // no memory: no other thread would end it
      failure_.fail(failure_.cannotGoOn(error, first));
      finish(first, failure_.error());
      result = Drive::kDone;
    }
    lock.lock();
    if (result == Drive::kDone) queue_.pop_front();
  }
  driver_ = Driver::kNone;
  if (!queue_.empty()) {
    handOver(lock);
  } else {
    lock.unlock();
  }
  return result;
}

void Communicator::handOver(std::unique_lock<std::mutex>& lock) {
  driver_ = Driver::kProgress;
  lock.unlock();
  leaveToProgressThread();
}

// Gives the operations that no thread drives to the progress thread. False: that thread cannot be
// started. Then all operations have ended with that as their error, since otherwise the callers'
// buffers would stay in use.
bool Communicator::leaveToProgressThread() {
  try {
    ProgressThread::process().add(shared_from_this());
    return true;
  } catch (const std::exception& error) {
    Error reason = failure_.noMemory();
    try {
      reason = Error(
          ErrorKind::kInternal,
          positions_.describePeer(peers_.rank) +
              " cannot start the thread that carries out what nobody waits for (" +
              reasonOf(error) +
              "); expected room for one more thread. Raise the limit of processes and threads "
              "(ulimit -u, or that of the container), or start fewer");
    } catch (const std::bad_alloc&) {  // then the reason is that there is no memory
    }
    failure_.fail(reason);
  }
  while (advance() == Result::kMoved) {
  }
  return false;
}

std::shared_ptr<Work> Communicator::send(const std::byte* data, std::uint64_t count, DType dtype,
                                         int peer, std::uint64_t tag, Mode mode,
                                         nanoseconds timeout) {
  Request request;
  request.kind = OpKind::kSend;
  request.input = data;
  return runIndependently(std::move(request), count, dtype, peer, tag, mode, timeout);
}

std::shared_ptr<Work> Communicator::receive(std::byte* data, std::uint64_t count, DType dtype,
                                            int peer, std::uint64_t tag, Mode mode,
                                            nanoseconds timeout) {
  Request request;
  request.kind = OpKind::kRecv;
  request.output = data;
  return runIndependently(std::move(request), count, dtype, peer, tag, mode, timeout);
}

std::shared_ptr<Work> Communicator::runIndependently(Request request, std::uint64_t count,
                                                     DType dtype, int peer, std::uint64_t tag,
                                                     Mode mode, nanoseconds timeout) {
  requireUsable(smd::name(request.kind), peer, request.kind == OpKind::kRecv);
  request.count = count;
  request.dtype = dtype;
  request.root = peer;
  requireMemory(request);
  std::shared_ptr<Work> work;
  std::list<std::shared_ptr<Work>> asynchronous;  // made first: once it has begun it must be kept
  try {
    work = makeWork(std::move(request), timeout);
    work->context.signature.detail = tag;
    Work* raw = work.get();
    work->body =
        work->context.request.kind == OpKind::kSend
            ? algorithms::runSend(work->context)
            : algorithms::runReceive(work->context, [raw](int source) { raw->setSource(source); });
    if (mode != Mode::kBlocking) asynchronous.push_back(work);
  } catch (const std::bad_alloc& error) {
    const Request& asked = work ? work->context.request : request;
    Signature signature = algorithms::signatureOf(asked);
    signature.detail = tag;
    failCall(signature, algorithms::agreedBytes(asked), error);
  }
  if (mode == Mode::kBlocking) {
    requireMayWait(work->signature());
    work->startClock(work->started);
  }
  positions_.noteBegin(*work);
  if (work->trace) work->trace->start();
  if (mode == Mode::kBlocking) {
    Drive result = Drive::kDone;
    try {
      result = driveInline(*work, {});
    } catch (const std::exception& error) {  // no memory: no other thread would end it
      failure_.fail(failure_.cannotGoOn(error, *work));
      finish(*work, failure_.error());
    }
    if (result == Drive::kInterrupted) {
      failure_.fail(Error(ErrorKind::kPeerLost,
                          positions_.describePeer(peers_.rank) + " was interrupted by its user"));
      finish(*work, failure_.error());
      throw Interrupted{};
    }
    return work;
  }
  // The first step posts the receive, on this thread: so receives match in the order of the calls.
  if (step(*work)) return work;
  std::unique_lock lock(mutex_);
  independent_.splice(independent_.end(), asynchronous);
  lock.unlock();
  leaveToProgressThread();
  return work;
}

// --- driving operations --------------------------------------------------------------------------

// Takes the operation as far as it gets. Returns whether it is complete, with or without an error.
bool Communicator::step(Work& work) {
  try {
    if (failure_.hasEnded()) {
      finish(work, failure_.error());
      return true;
    }
    if (work.suspicion) return false;
    const std::uint64_t sequence = work.context.signature.sequence;
    if (!work.isStarted) {
      // If another rank has failed, its part of a collective may still lie there, left over from
      // the time before: a result of that would be wrong. A message that it sent before it failed
      // may be received.
      const bool maySucceed = work.context.request.kind == OpKind::kRecv;
      const std::optional<Error> reported = maySucceed ? std::nullopt : failure_.reported();
      if (reported) {
        failure_.fail(*reported);
        finish(work, failure_.error());
        return true;
      }
      work.isStarted.store(true, std::memory_order_release);
      if (sequence != 0) {
        failure_.noteBegun(sequence);
        positions_.noteBegin(work);
        work.body = start(work);
      }
    }
    if (!work.body.advance()) return false;
    if (sequence != 0 && failure_.isSpoiled(sequence)) {
      if (const std::optional<Error> reported = failure_.reported()) failure_.fail(*reported);
      finish(work, failure_.error());
      return true;
    }
    checkForStrays(work);
    finish(work, std::nullopt);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kMismatch && work.context.signature.sequence == 0) {
      finish(work, error);  // a wrong size in one message concerns two ranks, not the group
    } else if (error.kind() == ErrorKind::kMismatch) {
      if (diagnosis_.suspect(work, error)) return false;
      failure_.fail(diagnosis_.withHistory(work, error));
      finish(work, failure_.error());
    } else {
      failure_.fail(error);
      finish(work, failure_.error());
    }
  } catch (const std::exception& error) {  // most likely there is no memory
    failure_.fail(failure_.cannotGoOn(error, work));
    finish(work, failure_.error());
  }
  return true;
}

// Over messages, ranks that name different roots may all complete the operation: each sends to
// ranks that do not listen. Frames that nobody has received give that away.
void Communicator::checkForStrays(const Work& work) {
  const Signature& mine = work.context.signature;
  if (mine.sequence == 0 || peers_.areAllLocal) return;
  const auto stray = peers_.mailbox->findStray(mine.sequence);
  if (!stray) return;
  if (stray->second.sequence == mine.sequence) {
    throw algorithms::mismatchError(peers_.rank, mine, stray->first, stray->second);
  }
  throw Error(ErrorKind::kMismatch,
              "rank " + std::to_string(stray->first) + " called " + describe(stray->second) +
                  ", and rank " + std::to_string(peers_.rank) +
                  " made another call then. Expected: all ranks must make the same calls, and name "
                  "the same root. Pass a constant root rank.");
}

void Communicator::finish(Work& work, std::optional<Error> error) {
  const std::uint64_t sequence = work.context.signature.sequence;
  if (!error && sequence != 0) {
    failure_.noteCompleted(sequence);
    if (peers_.memory) peers_.memory->mine().completed.store(sequence, std::memory_order_release);
  }
  positions_.noteEnd(work, !error);
  if (work.packed && !error) algorithms::unpack(work.context.request);
  try {
    if (error)
      error = peers_.withPrefix(describe(work.signature()), failure_.asSeenBy(work, *error));
    if (work.trace) trace::record(work.trace->finish(work.context, error));
  } catch (const std::bad_alloc&) {  // then its first words, or its event in the trace, are missing
  }
  work.complete(std::move(error));
}

class Communicator::DrivenWork final : public Driven {
 public:
  DrivenWork(Communicator& communicator, Work& work) : communicator_(communicator), work_(work) {}
  bool step() override { return communicator_.step(work_); }
  bool stepOrDiagnose() override { return communicator_.stepOrDiagnose(work_); }
  TimePoint deadline() const override { return work_.deadline(); }
  bool awaitsOtherHosts() const override {
    if (communicator_.peers_.areAllLocal) return false;
    const Condition* awaited = work_.body.awaited();
    return awaited != nullptr && awaited->awaitsOtherHosts();
  }
  // Only of collectives: there, ranks say on which processor they are.
  bool isInTheWay() const override {
    return work_.context.signature.sequence != 0 && communicator_.peers_.memory &&
           communicator_.peers_.memory->hasPeerOn(sched_getcpu());
  }

 private:
  Communicator& communicator_;
  Work& work_;
};

Communicator::Drive Communicator::driveInline(Work& work, const Until& until) {
  DrivenWork driven(*this, work);
  SpinBudget budget = peers_.areAllLocal ? callerSpinBudget()
                      : work.isSmall     ? kBetweenHosts
                                         : kBetweenHostsLarge;
  // Ranks wait for each other at every block of a large operation, so the whole operation may be
  // one long wait.
  if (until.isBrief) {
    const std::uint64_t bytes = algorithms::agreedBytes(work.context.request);
    budget.spins *= 1 + static_cast<int>(std::min(bytes, kMostOfOne) / kWorthOneBudget);
  }
  return drive(driven, until, budget, {bell(), *peers_.mailbox});
}

bool Communicator::stepOrDiagnose(Work& work) {
  if (step(work)) return true;
  std::optional<Error> error;
  try {
    // A collective in shared memory does not look at the rings, where a peer may wait for room.
    if (peers_.memory && work.context.signature.sequence != 0) peers_.mailbox->poll();
    error = diagnosis_.diagnose(work);
  } catch (const std::exception& exception) {  // most likely there is no memory
    failure_.fail(failure_.cannotGoOn(exception, work));
    error = failure_.error();
  }
  if (!error) return false;
  finish(work, std::move(error));
  return true;
}

Advancing::Result Communicator::advance() {
  bool moved = false;
  // Called with the lock, which it releases while the operation runs.
  std::unique_lock lock(mutex_);
  const auto drive = [&](const std::shared_ptr<Work>& work) {
    isStepping_ = true;
    lock.unlock();
    work->context.copyAhead = copyAheadInBackground_;
    if (work->trace) work->trace->isDrivenByProgress = true;
    const bool isDone = stepOrDiagnose(*work);
    lock.lock();
    isStepping_ = false;
    moved = moved || isDone;
    return isDone;
  };
  if (isStepping_) return Result::kBlocked;  // an old progress thread has not stopped yet
  while (driver_ == Driver::kProgress && !queue_.empty()) {
    const std::shared_ptr<Work> work = queue_.front();
    if (!drive(work)) break;
    queue_.pop_front();
  }
  if (driver_ == Driver::kProgress && queue_.empty()) driver_ = Driver::kNone;
  for (auto it = independent_.begin(); it != independent_.end();) {
    const std::shared_ptr<Work> work = *it;
    it = drive(work) ? independent_.erase(it) : std::next(it);
  }
  bool areMessagesLeft = false;
  if (hasUnsentMessages()) {
    lock.unlock();
    areMessagesLeft = messages_->advance(moved);
    lock.lock();
  }
  if (driver_ != Driver::kProgress && independent_.empty() && !areMessagesLeft) {
    return Result::kIdle;
  }
  // A caller that waits for these operations sleeps until the background thread has received
  // something.
  if (!moved) peers_.mailbox->letReturn();
  return moved ? Result::kMoved : Result::kBlocked;
}

bool Communicator::hasFailed() const {
  return failure_.hasEnded() || failure_.reported().has_value();
}

// --- messages of unknown size --------------------------------------------------------------------

void Communicator::postMessage(int peer, std::span<const std::byte> header,
                               std::span<const Segment> segments) {
  requireUsable("post_message", peer, false);
  if (!messages_->post(peer, header, segments)) return;
  if (!leaveToProgressThread()) messages_->requireReachable(peer);
}

std::optional<Message> Communicator::nextMessage(TimePoint end) {
  requireUsable("next_message", transport::kAnyPeer, true);
  if (end <= Clock::now()) return messages_->next(std::nullopt);
  requireMayWait([] { return std::string("the next message"); });
  return messages_->next(end);
}

// --- what others are told ------------------------------------------------------------------------

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

// --- the end -------------------------------------------------------------------------------------

void Communicator::abort(const std::string& reason) {
  if (isForkedChild(generation_)) return;
  failure_.fail(Error(ErrorKind::kPeerLost,
                      positions_.describePeer(peers_.rank) + " aborted the group: " + reason));
}

// A rank that closes the group without waiting for its sends still meant them to arrive.
void Communicator::letSendsOut() {
  const TimePoint patience = Clock::now() + kGoodbyeGrace;
  const auto isSend = [](const std::shared_ptr<Work>& work) {
    return work->context.request.kind == OpKind::kSend;
  };
  while (!failure_.hasEnded() && Clock::now() < patience) {
    {
      std::lock_guard lock(mutex_);
      const bool isAny = std::any_of(independent_.begin(), independent_.end(), isSend);
      if (!isAny && !hasUnsentMessages()) return;
    }
    if (ProgressThread::process().isStopped()) advance();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Communicator::close() {
  if (isForkedChild(generation_)) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  if (peers_.size == 1) return;
  letSendsOut();
  bool isPending = false;
  {
    std::lock_guard lock(mutex_);
    isPending = !queue_.empty() || !independent_.empty();
  }
  const bool isLate = isPending || hasUnsentMessages();
  failure_.leave(isPending, isLate ? milliseconds(0) : kGoodbyeGrace);
  if (messages_ != nullptr) messages_->close();
  wake();
  // The drivers of pending operations complete them with that error.
  while (isPending) {
    if (ProgressThread::process().isStopped()) advance();
    sched_yield();
    std::lock_guard lock(mutex_);
    isPending = !queue_.empty() || !independent_.empty();
  }
  if (peers_.memory) {
    peers_.memory->mine().presence.store(transport::Presence::kLeft, std::memory_order_seq_cst);
    for (int peer = 0; peer < peers_.memory->size(); ++peer) {
      if (peer != peers_.memory->index()) peers_.memory->cells(peer).bell.ring();
    }
  }
  if (peers_.liveness != nullptr) peers_.liveness->stop();  // null: joining failed
}

}  // namespace smd::engine
