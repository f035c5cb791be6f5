// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Thread model. All sockets of a transport are in one Poller, which the event loop watches. The
// thread that holds the *right to make progress* (a try-lock: the loop thread, or a thread in
// poll()) takes the ready events and works on them. It alone touches receivers and handshakes, and
// it alone calls the sink. So the sink sees one thread at a time, and a send() from inside the sink
// cannot recurse.
//
// Lock order, outermost first; a thread that holds one may take those below:
//   1. the right to make progress
//   2. the lock of one Sender
//   3. the list of due functions; the event loop's lock; the fork registry's lock
// The sink is called with 1 only. The loop calls back with none.
//
// Life of a link. Frames to a peer travel over connections that we opened (Outbound), frames from
// it over those that it opened (Receivers). A link has failed when one of them has ended. If the
// sending end notices first, what the peer still sent is read before the failure is reported: the
// peer may have handed over its last frames, and then left. A peer whose frames cannot be received,
// for want of memory or because it broke the protocol, is not read from any more, but its
// connections stay, and so does the way to it: it is to be told.
//
// News of a failure uses the connections that exist: over those that we opened as a control frame,
// over those that we accepted as an answer, behind a mark that proves which rank says it. A rank
// that connects later gets the same answer, also when everything else is closed already, until
// close() is called once more.
#include <sys/eventfd.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/fork.h"
#include "common/log.h"
#include "common/network.h"
#include "event_loop/event_loop.h"
#include "transport/frame_parser.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/factory.h"
#include "transport/tcp/handshakes.h"
#include "transport/tcp/outbound.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/receiver.h"
#include "transport/tcp/refusals.h"
#include "transport/tcp/socket.h"

namespace smd::transport::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kEventsPerRound = 64;
constexpr std::size_t kScratchBytes = std::size_t{64} << 10;
// Peers take turns after about this much.
constexpr std::size_t kReceiveBudget = std::size_t{1} << 20;
constexpr int kAcceptsPerRound = 64;
constexpr milliseconds kExpiryInterval{500};  // between looks at overdue handshakes
constexpr milliseconds kAcceptPause{100};     // when the process is out of descriptors
constexpr milliseconds kDrainPause{500};      // without a byte from a peer that is gone
constexpr std::chrono::minutes kRejectionLineInterval{1};
// How long after the last wait the loop looks. Each look that finds that others have begun to wait
// doubles the time until the next one, since a look takes a processor from a thread that waits.
constexpr milliseconds kReturnDelay{1};
constexpr milliseconds kLongestReturnDelay{16};
constexpr milliseconds kCloseInterval{1};  // between looks at what is left to hand over
// As if it were another connection with a peer: what it says over one that this rank has opened.
constexpr int kLastWordsStream = static_cast<int>(kMostRails);

// The whole state of a transport. Timers hold weak pointers to it.
class Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(const Options& options)
      : interfaces_(chooseLocalAddresses(options.interfaces, options.rendezvousAddress)),
        connections_(connectionsPerInterface()),
        wake_(FileDescriptor::fromCall([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
        loop_(event_loop::EventLoop::process()),
        scratch_(kScratchBytes) {
    if (!wake_.isOpen()) {
      throw systemError("eventfd");
    }
    for (const InterfaceAddress& each : interfaces_) {
      listeners_.push_back(listenAt(each.address));
    }
    context_.self.rank = options.rank;
    context_.self.worldSize = options.worldSize;
    context_.poller = &poller_;
    if (options.tls.areGiven()) {
      tls_ = std::make_unique<TlsContext>(options.tls);
    }
    context_.tls = tls_.get();
  }

  std::string endpoint() const {
    std::string text;
    for (const FileDescriptor& listener : listeners_) {
      text += (text.empty() ? "" : ",") + localAddress(listener).toString();
    }
    return text;
  }
  std::string interfaces() const {
    std::string text;
    for (const InterfaceAddress& each : interfaces_) {
      text += (text.empty() ? "" : ", ") + each.name + " (" + each.address.host() + ")";
    }
    return text;
  }
  std::uint64_t rejectedConnections() const { return rejected_.load(std::memory_order_relaxed); }
  std::string describeRejections(int peer) const { return refusals_.describe(peer); }

  void start(const std::vector<std::string>& endpoints, const auth::SessionKey& key,
             FrameSink& sink) {
    const std::vector<std::vector<SocketAddress>> addresses = parseEndpoints(endpoints);
    if (sink_ != nullptr) {
      throw Error(ErrorKind::kInternal, "a TCP transport was started twice; expected once.");
    }
    sink_ = &sink;
    context_.self.key = key;
    context_.retryAfter = [this](Stream to, milliseconds delay) {
      runInProgress(delay, [this, to] {
        forPeer(to.peer, [&] { return afterSender(to.peer, pathTo(to.peer).retry(to.index)); });
      });
    };
    handshakes_.emplace(
        context_.self, poller_,
        [this](const SocketAddress& stranger, int claimed, std::string_view reason) {
          noteRejection(stranger, claimed, reason);
        });
    paths_ = std::vector<Outbound>(addresses.size());
    hasFailed_.resize(addresses.size(), false);
    isRefused_.resize(addresses.size(), false);
    hasReceivedFrom_.resize(addresses.size(), false);
    for (std::size_t peer = 0; peer < addresses.size(); ++peer) {
      paths_[peer].configure(context_, static_cast<int>(peer),
                             railsTo(interfaces_, addresses[peer], connections_));
      endpoints_.push_back(addresses[peer][0].toString());
    }
    if (!poller_.add(wake_.get(), EPOLLIN, {Source::kWake, 0})) {
      throw systemError("epoll_ctl");
    }
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      if (!poller_.add(listeners_[i].get(), EPOLLIN, {Source::kListener, i})) {
        throw systemError("epoll_ctl");
      }
    }
    isStarted_.store(true, std::memory_order_release);
    planLook();
    loop_->watch(poller_.descriptor(), EPOLLIN, [this](std::uint32_t) { progressFromLoop(); });
  }

  void send(int peer, const FrameHeader& header, const void* payload, SendTicket* ticket) {
    checkPeer(peer);
    pathTo(peer).send(header, payload, ticket);
  }

  void expect(int peer) {
    checkPeer(peer);
    pathTo(peer).open();
  }

  bool poll() {
    if (!isStarted_.load(std::memory_order_acquire) || !takeRight()) {
      return false;
    }
    const RightHeld held{*this};
    return makeProgress();
  }

  TcpTransport::Waited wait(std::chrono::nanoseconds limit, const FutexWord& rings,
                            std::uint32_t seen) {
    using Waited = TcpTransport::Waited;
    if (!isStarted_.load(std::memory_order_acquire) || isClosing_.load() || !takeRight()) {
      return Waited::kBusy;
    }
    const RightHeld held{*this};
    // From here on no other thread delivers, and interruptWait() ends the sleep.
    if (rings.load(std::memory_order_acquire) != seen) {
      return Waited::kNothing;
    }
    pollfd waiting{poller_.descriptor(), POLLIN, 0};
    const timespec patience{static_cast<time_t>(limit.count() / 1'000'000'000),
                            static_cast<long>(limit.count() % 1'000'000'000)};
    const int ready = ::ppoll(&waiting, 1, &patience, nullptr);
    const bool isSignal = ready < 0 && errno == EINTR;
    const bool hasMoved = ready > 0 && makeProgress();
    return hasMoved ? Waited::kMoved : isSignal ? Waited::kSignal : Waited::kNothing;
  }

  void beginWait() {
    numWaiters_.fetch_add(1);
    numWaits_.fetch_add(1, std::memory_order_relaxed);
    if (isStarted_.load(std::memory_order_acquire)) keepLoopAway(true);
  }

  void endWait(bool isBackSoon) {
    if (numWaiters_.fetch_sub(1) != 1) return;
    if (isBackSoon) {
      planReturn();
    } else {
      letReturn();
    }
  }

  void letReturn() {
    if (isLoopAway_.load() && numWaiters_.load() == 0) keepLoopAway(false);
  }

  void interruptWait() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
  }

  void spread(const FrameHeader& header, const void* payload) {
    if (!isStarted_.load(std::memory_order_acquire)) {
      return;
    }
    {
      const std::lock_guard lock(lastWordsMutex_);
      if (hasLastWords_.load(std::memory_order_relaxed)) {
        return;
      }
      FrameHeader told = header;
      told.length = std::min(told.length, kMostLastWords);
      std::vector<std::byte> words(sizeof(told) + told.length);
      std::memcpy(words.data(), &told, sizeof(told));
      if (told.length != 0) std::memcpy(words.data() + sizeof(told), payload, told.length);
      lastWords_ = std::move(words);
      hasLastWords_.store(true, std::memory_order_release);
    }
    for (Outbound& path : paths_) {
      try {
        path.sendIfOpen(header, payload);
      } catch (const std::bad_alloc&) {  // it hears when the link goes
      }
    }
    try {
      runSoon([this] { tellOpeners(); });
    } catch (const std::bad_alloc&) {  // they are told when the transport closes
    }
  }

  void close(milliseconds grace, TcpTransport::Ending ending) {
    const std::lock_guard lock(closeMutex_);
    if (isClosed_) {
      if (std::exchange(isAnswering_, false)) {
        takeRightForGood();
        stopListening();
      }
      return;
    }
    if (worker_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      throw Error(ErrorKind::kInternal,
                  "a TCP transport was closed from inside a FrameSink function; expected a call "
                  "from outside. Defer it to the event loop.");
    }
    isClosed_ = true;
    if (!isStarted_.load(std::memory_order_acquire)) {
      listeners_.clear();
      return;
    }
    try {
      handOver(Clock::now() + grace, ending);
    } catch (const std::exception&) {  // no memory: what is left is not handed over
    }
    isClosing_.store(true);
    takeRightForGood();
    const bool isInOrder = ending == TcpTransport::Ending::kInOrder;
    for (const auto& [number, receiver] : receivers_) {
      receiver->cancel();
      if (!receiver->isTold() && isInOrder) {
        receiver->connection().writeAll(receiver->proofs().farewell);
      } else if (!receiver->isTold()) {
        sayWhy(receiver->connection(), receiver->proofs());
      }
      poller_.remove(receiver->connection().descriptor());
    }
    receivers_.clear();
    receiversOf_.clear();
    endings_.clear();
    for (std::size_t peer = 0; peer < paths_.size(); ++peer) {
      hasFailed_[peer] = true;
      if (paths_[peer].fail()) {
        sink_->sendCompleted(static_cast<int>(peer));
      }
    }
    // From here on nobody reads or writes what callers gave, or calls the sink: no link is left.
    if (!isInOrder && hasLastWords_.load(std::memory_order_acquire)) {
      isAnswering_ = true;
      releaseRight();
    } else {
      stopListening();
    }
  }

 private:
  // As takeRight(), however long it takes.
  void takeRightForGood() {
    while (!takeRight()) {
      interruptWait();
      hasRight_.wait(true);
    }
  }

  // With the right, which is never given back.
  void stopListening() {
    loop_->unwatch(poller_.descriptor());
    for (const auto& [number, connection] : answered_) poller_.remove(connection.descriptor());
    answered_.clear();
    handshakes_->clear();
    for (const FileDescriptor& listener : listeners_) {
      poller_.remove(listener.get());
    }
    listeners_.clear();
  }

  void keepLoopAway(bool isAway) {
    const std::lock_guard lock(waiterMutex_);
    if (isLoopAway_.exchange(isAway) == isAway) return;
    loop_->modify(poller_.descriptor(), isAway ? 0U : static_cast<std::uint32_t>(EPOLLIN));
  }

  // Of the loop, unless a wait begins until then.
  void planReturn() noexcept try {
    if (isReturnPlanned_.exchange(true)) return;
    const std::uint64_t seen = numWaits_.load(std::memory_order_relaxed);
    loop_->runAfter(returnDelay_.load(), [weak = weak_from_this(), seen] {
      const std::shared_ptr<Core> self = weak.lock();
      if (self == nullptr) return;
      const bool isWaitedFor = self->numWaiters_.load() != 0;
      const bool areNew = self->numWaits_.load(std::memory_order_relaxed) != seen;
      const milliseconds delay = self->returnDelay_.load();
      self->returnDelay_.store(isWaitedFor || areNew ? std::min(2 * delay, kLongestReturnDelay)
                                                     : kReturnDelay);
      self->isReturnPlanned_.store(false);
      if (isWaitedFor) return;  // who ends that wait plans again
      if (areNew) {
        self->planReturn();
      } else {
        self->letReturn();
      }
    });
  } catch (const std::exception&) {  // no memory for the timer
    isReturnPlanned_.store(false);
    letReturn();
  }

  // A peer whose sending end has ended and whose last frames are being read.
  struct Ending {
    LinkEnd end;
    bool hasReceived = true;  // something since the last look
  };

  // By rank.
  std::vector<std::vector<SocketAddress>> parseEndpoints(
      const std::vector<std::string>& endpoints) const {
    const auto worldSize = static_cast<std::size_t>(context_.self.worldSize);
    if (endpoints.size() != worldSize) {
      throw Error(ErrorKind::kInternal, "got the endpoints of " + std::to_string(endpoints.size()) +
                                            " ranks; expected one for each of " +
                                            std::to_string(worldSize) + " ranks.");
    }
    std::vector<std::vector<SocketAddress>> addresses(worldSize);
    for (std::size_t rank = 0; rank < worldSize; ++rank) {
      std::istringstream list(endpoints[rank] + ",");
      for (std::string text; std::getline(list, text, ',');) {
        const auto address = SocketAddress::parse(text);
        if (!address.has_value() || address->port() == 0) {
          throw Error(ErrorKind::kConfiguration,
                      "rank " + std::to_string(rank) + " published the endpoint \"" + text +
                          "\"; expected address:port. Check that all ranks run the same version "
                          "of smdistributed.");
        }
        addresses[rank].push_back(*address);
      }
      if (addresses[rank][0].isLoopback() != interfaces_[0].address.isLoopback()) {
        throw Error(ErrorKind::kConfiguration,
                    "rank " + std::to_string(rank) + " listens at " + endpoints[rank] +
                        " and this rank at " + endpoint() +
                        "; expected all ranks on loopback, or none. Set SMDDP_INTERFACE on all "
                        "ranks to an interface through which they reach one another.");
      }
    }
    return addresses;
  }

  void checkPeer(int peer) const {
    if (!isStarted_.load(std::memory_order_acquire)) {
      throw Error(ErrorKind::kInternal, "a TCP transport was used before start().");
    }
    if (peer < 0 || peer >= context_.self.worldSize || peer == context_.self.rank) {
      throw Error(ErrorKind::kInternal, "rank " + std::to_string(peer) + " is no peer of rank " +
                                            std::to_string(context_.self.rank) +
                                            "; expected another rank below " +
                                            std::to_string(context_.self.worldSize) + ".");
    }
  }

  Outbound& pathTo(int peer) { return paths_[static_cast<std::size_t>(peer)]; }

  // --- The right to make progress ---

  bool takeRight() {
    if (hasRight_.exchange(true)) {
      return false;
    }
    worker_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }

  void releaseRight() {
    worker_.store(std::thread::id(), std::memory_order_relaxed);
    hasRight_.store(false);
    hasRight_.notify_all();
    if (isLoopHeldOff_.exchange(false) && !isLoopAway_.load()) {
      loop_->modify(poller_.descriptor(), EPOLLIN);
    }
  }

  // If another thread is at it, the loop must neither wait for it (other transports need the loop)
  // nor be called again and again: it stops watching, and that thread re-arms it when done.
  void progressFromLoop() {
    if (!takeRight()) {
      loop_->modify(poller_.descriptor(), 0);
      isLoopHeldOff_.store(true);
      // The other thread may have finished just before it could see that.
      if (!takeRight()) {
        return;
      }
    }
    const RightHeld held{*this};
    makeProgress();
  }

  // Gives the right back at the end of a scope, also when something throws.
  struct RightHeld {
    Core& core;
    ~RightHeld() { core.releaseRight(); }
  };

  // --- With the right to make progress ---

  // What throws (no memory, no randomness for a nonce) ends the one connection that it was about:
  // on the loop's thread there is nobody to catch it, and a driver knows nothing of connections.
  template <typename Work>
  bool forPeer(int peer, const Work& work) {
    try {
      return work();
    } catch (const std::exception& error) {
      LinkEnd end;
      try {
        end = unserved(endpoints_[static_cast<std::size_t>(peer)], reasonOf(error));
      } catch (const std::bad_alloc&) {  // not even for that
      }
      linkFailed(peer, std::move(end));
      return true;
    }
  }

  bool makeProgress() {
    std::array<epoll_event, kEventsPerRound> events;
    const int count = poller_.ready(events);
    bool hasMoved = false;
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      hasMoved |= handleEvent(Poller::tagOf(event), event.events);
    }
    return hasMoved;
  }

  bool handleEvent(Tag tag, std::uint32_t events) {
    switch (tag.source) {
      case Source::kSender: {
        const Stream to = senderOf(tag.number);
        return forPeer(to.peer, [&] {
          return afterSender(to.peer, pathTo(to.peer).handleEvents(to.index, events));
        });
      }
      case Source::kReceiver:
        return receive(tag.number, (events & (EPOLLHUP | EPOLLERR)) != 0);
      case Source::kHandshake:
        try {
          return readHandshake(tag.number);
        } catch (const std::exception& error) {
          handshakes_->refuse(tag.number, reasonOf(error));
          return true;
        }
      case Source::kListener:
        return acceptConnections(listeners_[tag.number]);
      case Source::kWake:
        return runDue();
    }
    return false;
  }

  bool afterSender(int peer, const Sender::Progress& progress) {
    if (progress.hasCompletedTickets) {
      sink_->sendCompleted(peer);
    }
    if (!progress.lastWords.empty() && !isRefused_[static_cast<std::size_t>(peer)]) {
      FrameParser parser(Stream(peer, kLastWordsStream), *sink_);
      parser.consume(progress.lastWords);  // without memory for them, the end of the link tells
    }
    if (progress.end.has_value()) {
      sendingEnded(peer, *progress.end);
    }
    return progress.hasMoved || progress.end.has_value();
  }

  bool receive(std::uint64_t number, bool hasHungUp) {
    const auto found = receivers_.find(number);
    if (found == receivers_.end()) {
      return readAnswered(number);
    }
    const int peer = found->second->from().peer;
    if (isRefused_[static_cast<std::size_t>(peer)]) {
      if (!hasHungUp) return false;  // seen before that was so
      return forPeer(peer, [&] {     // not watched for more than this
        linkFailed(peer, closedUnexpectedly(endpoints_[static_cast<std::size_t>(peer)], ""));
        return true;
      });
    }
    return forPeer(peer, [&] { return receiveFrom(found); });
  }

  using Receivers = std::unordered_map<std::uint64_t, std::unique_ptr<Receiver>>;

  bool receiveFrom(Receivers::iterator found) {
    Receiver& receiver = *found->second;
    const int peer = receiver.from().peer;
    const Receiver::Result result = receiver.receive(kReceiveBudget, scratch_);
    if (result.refusal.has_value()) {
      stopReceiving(peer, *result.refusal);
    }
    if (result.hasMore) {
      runSoon([this, number = found->first] { receive(number, false); });
    }
    const auto ending = endings_.find(peer);
    if (ending != endings_.end() && result.bytes > 0) {
      ending->second.hasReceived = true;
    }
    if (result.end.has_value()) {
      // Who leaves says so on each connection, and one that nothing came over was never needed.
      const bool isHarmless = result.end->hasLeft || !receiver.hasReceived();
      if (isHarmless && receiversOf_[peer].size() > 1) {
        drop(found);
      } else {
        // Of two reports, a goodbye explains most, then what the sending end met first.
        const bool isFirstBetter = ending != endings_.end() && !result.end->hasLeft;
        linkFailed(peer, isFirstBetter ? ending->second.end : *result.end);
      }
    }
    return result.bytes > 0 || result.end.has_value();
  }

  // Its connections stay, so that it does not take them for a process that has ended.
  void stopReceiving(int peer, const Refusal& refusal) {
    isRefused_[static_cast<std::size_t>(peer)] = true;
    for (const auto& [stream, number] : receiversOf_[peer]) {
      Receiver& receiver = *receivers_.find(number)->second;
      receiver.cancel();
      poller_.modify(receiver.connection().descriptor(), 0, {Source::kReceiver, number});
    }
    sink_->frameRefused(peer, refusal);
  }

  void drop(Receivers::iterator receiver) {
    const Stream from = receiver->second->from();
    if (receiver->second->isTold()) numToldOpeners_.fetch_sub(1);
    receiver->second->cancel();
    poller_.remove(receiver->second->connection().descriptor());
    receivers_.erase(receiver);
    receiversOf_[from.peer].erase(from.index);
  }

  // Those that have opened connections: why the group has failed.
  void tellOpeners() {
    for (const auto& [number, receiver] : receivers_) {
      if (receiver->isTold()) continue;
      receiver->noteTold();
      numToldOpeners_.fetch_add(1);
      sayWhy(receiver->connection(), receiver->proofs());
    }
    areOpenersTold_.store(true);
  }

  // On a connection that this rank has accepted. Nothing else may be said there afterwards.
  void sayWhy(Connection& connection, const Proofs& proofs) {
    try {
      std::vector<std::byte> words(proofs.failure.begin(), proofs.failure.end());
      if (hasLastWords_.load(std::memory_order_acquire)) {
        words.insert(words.end(), lastWords_.begin(), lastWords_.end());
      }
      connection.writeAll(words);
    } catch (const std::bad_alloc&) {  // the mark alone then
      connection.writeAll(proofs.failure);
    }
  }

  // A rank has connected to one that has failed. What it sends is read and thrown away until it has
  // heard why and closes the connection: with bytes unread, a close would take back what was said.
  bool answer(Handshakes::Accepted& accepted) {
    Connection& connection = accepted.connection;
    const std::uint64_t number = nextReceiver_++;
    if (!poller_.modify(connection.descriptor(), EPOLLIN | EPOLLRDHUP,
                        {Source::kReceiver, number}) ||
        !connection.writeAll(accepted.proofs.welcome)) {
      poller_.remove(connection.descriptor());
      return false;
    }
    sayWhy(connection, accepted.proofs);
    answered_.emplace(number, std::move(connection));
    return true;
  }

  bool readAnswered(std::uint64_t number) {
    const auto found = answered_.find(number);
    if (found == answered_.end()) {
      return false;
    }
    Connection& connection = found->second;
    const iovec anywhere{scratch_.data(), scratch_.size()};
    const ssize_t got = connection.read({&anywhere, 1});
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
      poller_.remove(connection.descriptor());
      answered_.erase(found);
    }
    return true;
  }

  void sendingEnded(int peer, const LinkEnd& end) {
    if (receiversOf_[peer].empty()) {
      linkFailed(peer, end);
      return;
    }
    pathTo(peer).disconnect();
    endings_.emplace(peer, Ending{end});
    watchEnding(peer);
  }

  // The peer's last bytes are followed by the end of its connection; only a broken network could
  // withhold that.
  void watchEnding(int peer) {
    runInProgress(kDrainPause, [this, peer] {
      const auto ending = endings_.find(peer);
      if (ending == endings_.end()) {
        return;
      }
      if (!std::exchange(ending->second.hasReceived, false)) {
        linkFailed(peer, ending->second.end);
        return;
      }
      watchEnding(peer);
    });
  }

  // An `end` without text: for want of memory.
  void linkFailed(int peer, LinkEnd end) {
    const auto index = static_cast<std::size_t>(peer);
    if (hasFailed_[index]) {
      return;
    }
    hasFailed_[index] = true;
    endings_.erase(peer);
    const auto receivers = receiversOf_.find(peer);
    while (receivers != receiversOf_.end() && !receivers->second.empty()) {
      drop(receivers_.find(receivers->second.begin()->second));
    }
    if (pathTo(peer).fail()) {
      sink_->sendCompleted(peer);
    }
    sink_->linkFailed(peer, errorOf(peer, std::move(end)));
  }

  Error errorOf(int peer, LinkEnd end) const {
    try {
      if (!hasReceivedFrom_[static_cast<std::size_t>(peer)] && !end.hasLeft) {
        // Maybe it did come, and was not let in.
        const std::string refused = refusals_.describe(peer);
        if (!refused.empty()) end.text += " (" + refused + ")";
      }
      if (!end.text.empty()) return Error(ErrorKind::kPeerLost, end.text);
    } catch (const std::bad_alloc&) {
    }
    return noMemory_;
  }

  bool acceptConnections(const FileDescriptor& listener) {
    int accepted = 0;
    for (; accepted < kAcceptsPerRound; ++accepted) {
      SocketAddress stranger;
      FileDescriptor socket = acceptFrom(listener, stranger);
      if (!socket.isOpen()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          pauseAccepting(std::generic_category().message(errno));
        }
        break;
      }
      try {
        handshakes_->add(Connection(std::move(socket), tls_.get(), TlsRole::kAcceptor), stranger,
                         Clock::now());
      } catch (const std::exception& error) {
        noteRejection(stranger, Refusals::kNoRank, reasonOf(error));
      }
    }
    if (!handshakes_->isEmpty() && !std::exchange(isExpiryPlanned_, true)) {
      planExpiry();
    }
    return accepted > 0;
  }

  // The listener stays ready as long as it cannot be served: without a pause the loop would spin.
  // The rank that connects sees nothing but silence, so the cause is told here, once.
  void pauseAccepting(const std::string& reason) {
    if (!std::exchange(hasToldOfNoRoom_, true)) {
      logWarning("rank " + std::to_string(context_.self.rank) + "/" +
                 std::to_string(context_.self.worldSize) +
                 ": cannot accept the connection of another rank: " + reason +
                 "; expected room for a connection from each rank. The others wait until there is, "
                 "or until their timeout. Raise the limit on open files (ulimit -n) of this "
                 "process, or close files that are not needed.");
    }
    watchListeners(0);
    runInProgress(kAcceptPause, [this] { watchListeners(EPOLLIN); });
  }

  void watchListeners(std::uint32_t events) {
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      poller_.modify(listeners_[i].get(), events, {Source::kListener, i});
    }
  }

  // At hosts that do not answer.
  void planLook() {
    runInProgress(kSilenceLook, [this] {
      for (int peer = 0; peer < context_.self.worldSize; ++peer) {
        Outbound& path = pathTo(peer);
        if (path.isInUse()) forPeer(peer, [&] { return afterSender(peer, path.look()); });
      }
      planLook();
    });
  }

  void planExpiry() {
    runInProgress(kExpiryInterval, [this] {
      handshakes_->expire(Clock::now());
      isExpiryPlanned_ = !handshakes_->isEmpty();
      if (isExpiryPlanned_) {
        planExpiry();
      }
    });
  }

  bool readHandshake(std::uint64_t number) {
    std::optional<Handshakes::Accepted> accepted = handshakes_->read(number);
    if (!accepted.has_value()) {
      return false;
    }
    if (hasLastWords_.load(std::memory_order_acquire)) {
      return answer(*accepted);
    }
    const auto [peer, stream] = accepted->from;
    Connection& connection = accepted->connection;
    const std::uint64_t receiver = nextReceiver_++;
    // Of a link that has failed it may be the first connection, to send its error over.
    const bool isOver = hasFailed_[static_cast<std::size_t>(peer)] ||
                        isRefused_[static_cast<std::size_t>(peer)] || endings_.contains(peer);
    const bool isWelcome = !isOver && !receiversOf_[peer].contains(stream);
    if (!isWelcome ||
        !poller_.modify(connection.descriptor(), EPOLLIN | EPOLLRDHUP,
                        {Source::kReceiver, receiver}) ||
        !connection.writeAll(accepted->proofs.welcome)) {
      poller_.remove(connection.descriptor());
      noteRejection(accepted->stranger, peer,
                    isWelcome || isOver ? "" : "the rank that it is has connected before");
      return false;
    }
    receivers_.emplace(receiver,
                       std::make_unique<Receiver>(std::move(connection), accepted->from,
                                                  endpoints_[static_cast<std::size_t>(peer)],
                                                  accepted->proofs, *sink_));
    receiversOf_[peer].emplace(stream, receiver);
    hasReceivedFrom_[static_cast<std::size_t>(peer)] = true;
    return true;
  }

  // One line for the first, then one a minute at most: a stranger that knocks all day fills no log.
  void noteRejection(const SocketAddress& stranger, int claimedRank,
                     std::string_view reason) noexcept try {
    const std::uint64_t count = rejected_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (reason.empty()) {
      return;
    }
    refusals_.note(stranger, claimedRank, reason);
    const Clock::time_point now = Clock::now();
    if (now < nextRejectionLine_) {
      return;
    }
    nextRejectionLine_ = now + kRejectionLineInterval;
    std::string line = "rank " + std::to_string(context_.self.rank) + "/" +
                       std::to_string(context_.self.worldSize) + ": refused a connection from " +
                       stranger.toString();
    if (claimedRank >= 0) line += " that claims to be rank " + std::to_string(claimedRank);
    line += ": ";
    line += reason;
    line += " (" + std::to_string(count) +
            " refused so far). The job is not disturbed. If that is a rank of yours, give all "
            "ranks the same SMDDP_TOKEN; else find out who connects to this port.";
    logWarning(line);
  } catch (const std::exception&) {  // no memory for the line: it has been counted
  }

  bool runDue() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof(count));
    std::vector<std::function<void()>> due;
    {
      const std::lock_guard lock(dueMutex_);
      due.swap(due_);
    }
    for (const auto& function : due) {
      try {
        function();
      } catch (const std::exception&) {  // no memory to plan the next: deadlines end what waits
      }
    }
    return !due.empty();
  }

  // Runs `function` with the right to make progress, after the events in hand.
  void runSoon(std::function<void()> function) {
    {
      const std::lock_guard lock(dueMutex_);
      due_.push_back(std::move(function));
    }
    interruptWait();
  }

  // --- From any thread ---

  // Runs `function` with the right to make progress, after `delay`; not if closed by then.
  void runInProgress(milliseconds delay, std::function<void()> function) {
    loop_->runAfter(delay, [weak = weak_from_this(), function = std::move(function)]() mutable {
      const std::shared_ptr<Core> self = weak.lock();
      if (self == nullptr) {
        return;
      }
      self->runSoon(std::move(function));
    });
  }

  // Lets frames that were sent go out, followed by goodbyes. Frames that arrive meanwhile are still
  // delivered: two ranks that close at once, each with much to send, need each other to read. A
  // rank that was told of a failure over its own connection closes that when it has heard.
  void handOver(Clock::time_point deadline, TcpTransport::Ending ending) {
    const bool hasWords = ending == TcpTransport::Ending::kFailure && hasLastWords_.load();
    std::vector<Outbound*> unfinished;
    for (Outbound& path : paths_) {
      if (path.isInUse()) {
        unfinished.push_back(&path);
      }
    }
    while (true) {
      std::erase_if(unfinished, [](Outbound* path) { return path->finish(); });
      poll();
      const bool isHeard = !hasWords || (areOpenersTold_.load() && numToldOpeners_.load() == 0);
      if ((unfinished.empty() && isHeard) || Clock::now() >= deadline) {
        return;
      }
      pollfd waiting{poller_.descriptor(), POLLIN, 0};
      ::poll(&waiting, 1, static_cast<int>(kCloseInterval.count()));
    }
  }

  // Made while there is memory.
  const Error noMemory_{ErrorKind::kPeerLost,
                        "cannot be served by this rank any more (this process has no memory left)"};
  const std::vector<InterfaceAddress> interfaces_;  // the main one first
  const std::size_t connections_;                   // with each peer over each of them
  std::vector<FileDescriptor> listeners_;           // one at each
  const Poller poller_;
  const FileDescriptor wake_;  // readable when functions are due
  const std::shared_ptr<event_loop::EventLoop> loop_;

  std::unique_ptr<TlsContext> tls_;  // null: in the clear; sessions below need it

  std::atomic<bool> isStarted_{false};
  // Set by start(), constant afterwards.
  FrameSink* sink_ = nullptr;
  Sender::Context context_;
  std::vector<std::string> endpoints_;
  std::vector<Outbound> paths_;  // by peer

  std::atomic<bool> hasRight_{false};
  std::atomic<bool> isLoopHeldOff_{false};
  std::mutex waiterMutex_;               // orders the changes of the next, and of what is watched
  std::atomic<bool> isLoopAway_{false};  // it does not watch
  std::atomic<int> numWaiters_{0};
  std::atomic<std::uint64_t> numWaits_{0};  // that have begun so far
  std::atomic<bool> isReturnPlanned_{false};
  std::atomic<milliseconds> returnDelay_{kReturnDelay};
  std::atomic<std::thread::id> worker_{};  // who has the right

  // Touched only with the right to make progress.
  std::optional<Handshakes> handshakes_;
  Receivers receivers_;
  std::unordered_map<int, std::map<int, std::uint64_t>> receiversOf_;  // by peer and its stream
  std::unordered_map<int, Ending> endings_;                            // by peer
  std::vector<bool> hasFailed_;                                        // by peer
  std::vector<bool> isRefused_;        // by peer: what it sends could not be received
  std::vector<bool> hasReceivedFrom_;  // by peer: was it ever let in
  std::unordered_map<std::uint64_t, Connection> answered_;  // numbered as receivers are
  std::uint64_t nextReceiver_ = 0;
  bool isExpiryPlanned_ = false;
  bool hasToldOfNoRoom_ = false;
  Clock::time_point nextRejectionLine_;
  std::vector<std::byte> scratch_;

  std::mutex lastWordsMutex_;
  std::vector<std::byte> lastWords_;  // a header and its payload; constant once the next is true
  std::atomic<bool> hasLastWords_{false};    // the group has failed
  std::atomic<bool> areOpenersTold_{false};  // those whose connections were there
  std::atomic<int> numToldOpeners_{0};       // whose connections are there still

  std::mutex dueMutex_;
  std::vector<std::function<void()>> due_;

  std::mutex closeMutex_;
  std::atomic<bool> isClosing_{false};  // nobody may begin to wait
  bool isClosed_ = false;               // guarded by closeMutex_, like the next
  bool isAnswering_ = false;            // closed, but for those that connect to hear why

  std::atomic<std::uint64_t> rejected_{0};
  Refusals refusals_;
};

// What users hold. In a forked child it turns into something that does nothing: the descriptors are
// closed there (their numbers may be somebody else's), and locks may be held by threads that do not
// exist.
class Transport final : public TcpTransport {
 public:
  explicit Transport(const Options& options)
      : generation_(forkGeneration()), core_(std::make_shared<Core>(options)) {}

  ~Transport() override {
    if (isForkedChild(generation_)) {
      static_cast<void>(new std::shared_ptr<Core>(std::move(core_)));  // leaked on purpose
      return;
    }
    core_->close(milliseconds(0), Ending::kInOrder);
  }

  std::string endpoint() const override { return core_->endpoint(); }
  std::string interfaces() const override { return core_->interfaces(); }

  std::uint64_t rejectedConnections() const override { return core_->rejectedConnections(); }
  std::string describeRejections(int peer) const override {
    return isForkedChild(generation_) ? std::string() : core_->describeRejections(peer);
  }

  void start(std::vector<std::string> endpoints, const auth::SessionKey& key,
             FrameSink& sink) override {
    if (!isForkedChild(generation_)) {
      core_->start(endpoints, key, sink);
    }
  }

  void send(int peer, const FrameHeader& header, const void* payload, SendTicket* ticket) override {
    if (!isForkedChild(generation_)) {
      core_->send(peer, header, payload, ticket);
    } else if (ticket != nullptr) {
      ticket->complete(SendTicket::State::kFailed);
    }
  }

  void expect(int peer) override {
    if (!isForkedChild(generation_)) {
      core_->expect(peer);
    }
  }

  bool poll() override { return !isForkedChild(generation_) && core_->poll(); }

  bool canWait() const override { return true; }
  Waited wait(std::chrono::nanoseconds limit, const FutexWord& rings, std::uint32_t seen) override {
    return isForkedChild(generation_) ? Waited::kBusy : core_->wait(limit, rings, seen);
  }
  void beginWait() override {
    if (!isForkedChild(generation_)) core_->beginWait();
  }
  void endWait(bool isBackSoon) override {
    if (!isForkedChild(generation_)) core_->endWait(isBackSoon);
  }
  void letReturn() override {
    if (!isForkedChild(generation_)) core_->letReturn();
  }
  void interruptWait() override {
    if (!isForkedChild(generation_)) core_->interruptWait();
  }
  void spread(const FrameHeader& header, const void* payload) override {
    if (!isForkedChild(generation_)) core_->spread(header, payload);
  }

  void close(milliseconds grace, Ending ending) override {
    if (!isForkedChild(generation_)) {
      core_->close(grace, ending);
    }
  }

 private:
  const std::uint64_t generation_;
  std::shared_ptr<Core> core_;
};

}  // namespace

std::unique_ptr<TcpTransport> create(const Options& options) {
  return std::make_unique<Transport>(options);
}

}  // namespace smd::transport::tcp
