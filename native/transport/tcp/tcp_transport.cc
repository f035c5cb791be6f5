// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Thread model. All sockets of a transport are in one Poller, which the event loop watches. Whoever
// holds the *right to make progress* (a try-lock; the loop thread, or a thread in poll()) takes the
// ready events and works on them: it alone touches receivers and handshakes, and it alone calls the
// sink. So the sink sees one thread at a time, and a send() from inside the sink cannot recurse.
//
// Lock order, outermost first; a thread that holds one may take those below:
//   1. the right to make progress
//   2. the lock of one Sender
//   3. the list of due functions; the event loop's lock; the fork registry's lock
// The sink is called with 1 only. The loop calls back with none.
//
// Life of a link. Frames to a peer travel over the connection that we opened (Sender), frames from
// it over the one that it opened (Receiver). A link has failed when either has ended. If the
// sending end notices first, what the peer still sent is read before the failure is reported: the
// peer may have handed over its last frames, and then left.
#include <sys/eventfd.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/fork.h"
#include "common/network.h"
#include "executor/event_loop.h"
#include "transport/tcp/factory.h"
#include "transport/tcp/handshakes.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/protocol.h"
#include "transport/tcp/receiver.h"
#include "transport/tcp/sender.h"
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
constexpr milliseconds kCloseInterval{1};     // between looks at what is left to hand over

// The whole state of a transport. Timers hold weak pointers to it.
class Core : public std::enable_shared_from_this<Core> {
 public:
  explicit Core(const Options& options)
      : listener_(listenAt(chooseLocalAddress(options.interfaces, options.rendezvousAddress))),
        address_(localAddress(listener_)),
        wake_(FileDescriptor::fromCall([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
        loop_(executor::EventLoop::process()),
        scratch_(kScratchBytes) {
    if (!wake_.isOpen()) {
      throw systemError("eventfd");
    }
    context_.self.rank = options.rank;
    context_.self.worldSize = options.worldSize;
    context_.poller = &poller_;
  }

  const SocketAddress& address() const { return address_; }
  std::uint64_t rejectedConnections() const { return rejected_.load(std::memory_order_relaxed); }

  void start(const std::vector<std::string>& endpoints, const Cookie& cookie, FrameSink& sink) {
    const std::vector<SocketAddress> addresses = parseEndpoints(endpoints);
    if (sink_ != nullptr) {
      throw Error(ErrorKind::kInternal, "a TCP transport was started twice; expected once.");
    }
    sink_ = &sink;
    context_.self.cookie = cookie;
    context_.retryAfter = [this](int peer, milliseconds delay) {
      runInProgress(delay, [this, peer] { afterSender(peer, senderTo(peer).retry()); });
    };
    handshakes_.emplace(context_.self, poller_);
    senders_ = std::vector<Sender>(addresses.size());
    hasFailed_.resize(addresses.size(), false);
    for (std::size_t peer = 0; peer < addresses.size(); ++peer) {
      senders_[peer].configure(context_, static_cast<int>(peer), addresses[peer]);
      endpoints_.push_back(addresses[peer].toString());
    }
    if (!poller_.add(wake_.get(), EPOLLIN, {Source::kWake, 0}) ||
        !poller_.add(listener_.get(), EPOLLIN, {Source::kListener, 0})) {
      throw systemError("epoll_ctl");
    }
    isStarted_.store(true, std::memory_order_release);
    loop_->watch(poller_.descriptor(), EPOLLIN, [this](std::uint32_t) { progressFromLoop(); });
  }

  void send(int peer, const FrameHeader& header, const void* payload, SendTicket* ticket) {
    checkPeer(peer);
    senderTo(peer).send(header, payload, ticket);
  }

  void expect(int peer) {
    checkPeer(peer);
    senderTo(peer).open();
  }

  bool poll() {
    if (!isStarted_.load(std::memory_order_acquire) || !takeRight()) {
      return false;
    }
    const bool hasMoved = makeProgress();
    releaseRight();
    return hasMoved;
  }

  void close(milliseconds grace) {
    const std::lock_guard lock(closeMutex_);
    if (isClosed_) {
      return;
    }
    if (worker_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      throw Error(ErrorKind::kInternal,
                  "a TCP transport was closed from inside a FrameSink function; expected a call "
                  "from outside. Defer it to the event loop.");
    }
    isClosed_ = true;
    if (!isStarted_.load(std::memory_order_acquire)) {
      listener_.reset();
      return;
    }
    handOver(Clock::now() + grace);
    // The right is never given back: nobody reads, writes or calls the sink any more.
    while (!takeRight()) {
      hasRight_.wait(true);
    }
    loop_->unwatch(poller_.descriptor());
    for (const auto& [number, receiver] : receivers_) {
      const auto farewell = makeFarewell(context_.self, receiver->peer());
      [[maybe_unused]] const auto sent = ::send(receiver->socket().get(), farewell.data(),
                                                farewell.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      poller_.remove(receiver->socket().get());
    }
    receivers_.clear();
    handshakes_->clear();
    poller_.remove(listener_.get());
    listener_.reset();
    for (std::size_t peer = 0; peer < senders_.size(); ++peer) {
      if (senders_[peer].fail()) {
        sink_->sendCompleted(static_cast<int>(peer));
      }
    }
  }

 private:
  // A peer whose sending end has ended and whose last frames are being read.
  struct Ending {
    LinkEnd end;
    bool hasReceived = true;  // something since the last look
  };

  std::vector<SocketAddress> parseEndpoints(const std::vector<std::string>& endpoints) const {
    const auto worldSize = static_cast<std::size_t>(context_.self.worldSize);
    if (endpoints.size() != worldSize) {
      throw Error(ErrorKind::kInternal, "got the endpoints of " + std::to_string(endpoints.size()) +
                                            " ranks; expected one for each of " +
                                            std::to_string(worldSize) + " ranks.");
    }
    std::vector<SocketAddress> addresses;
    for (std::size_t rank = 0; rank < worldSize; ++rank) {
      const auto address = SocketAddress::parse(endpoints[rank]);
      if (!address.has_value() || address->port() == 0) {
        throw Error(ErrorKind::kConfiguration,
                    "rank " + std::to_string(rank) + " published the endpoint \"" +
                        endpoints[rank] +
                        "\"; expected address:port. Check that all ranks run the same version of "
                        "smdistributed.");
      }
      if (address->isLoopback() != address_.isLoopback()) {
        throw Error(ErrorKind::kConfiguration,
                    "rank " + std::to_string(rank) + " listens at " + endpoints[rank] +
                        " and this rank at " + address_.toString() +
                        "; expected all ranks on loopback, or none. Set SMDDP_INTERFACE on all "
                        "ranks to an interface through which they reach one another.");
      }
      addresses.push_back(*address);
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

  Sender& senderTo(int peer) { return senders_[static_cast<std::size_t>(peer)]; }

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
    if (isLoopHeldOff_.exchange(false)) {
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
    makeProgress();
    releaseRight();
  }

  // --- With the right to make progress ---

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
        const auto peer = static_cast<int>(tag.number);
        return afterSender(peer, senderTo(peer).handleEvents(events));
      }
      case Source::kReceiver:
        return receive(tag.number, kReceiveBudget);
      case Source::kHandshake:
        return readHello(tag.number);
      case Source::kListener:
        return acceptConnections();
      case Source::kWake:
        return runDue();
    }
    return false;
  }

  bool afterSender(int peer, const Sender::Progress& progress) {
    if (progress.hasCompletedTickets) {
      sink_->sendCompleted(peer);
    }
    if (progress.end.has_value()) {
      sendingEnded(peer, *progress.end);
    }
    return progress.hasMoved || progress.end.has_value();
  }

  bool receive(std::uint64_t number, std::size_t budget) {
    const auto found = receivers_.find(number);
    if (found == receivers_.end()) {
      return false;
    }
    Receiver& receiver = *found->second;
    const int peer = receiver.peer();
    const Receiver::Result result = receiver.receive(budget, scratch_);
    const auto ending = endings_.find(peer);
    if (ending != endings_.end() && result.bytes > 0) {
      ending->second.hasReceived = true;
    }
    if (result.end.has_value()) {
      // Of two reports, a goodbye explains most, then what the sending end met first.
      const bool isFirstBetter = ending != endings_.end() && !result.end->hasLeft;
      linkFailed(peer, isFirstBetter ? ending->second.end : *result.end);
    }
    return result.bytes > 0 || result.end.has_value();
  }

  void sendingEnded(int peer, const LinkEnd& end) {
    const auto number = receiverOf_.find(peer);
    if (number == receiverOf_.end()) {
      linkFailed(peer, end);
      return;
    }
    senderTo(peer).disconnect();
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

  void linkFailed(int peer, LinkEnd end) {
    const auto index = static_cast<std::size_t>(peer);
    if (hasFailed_[index]) {
      return;
    }
    hasFailed_[index] = true;
    endings_.erase(peer);
    if (const auto number = receiverOf_.find(peer); number != receiverOf_.end()) {
      const auto receiver = receivers_.find(number->second);
      poller_.remove(receiver->second->socket().get());
      receivers_.erase(receiver);
      receiverOf_.erase(number);
    }
    if (senderTo(peer).fail()) {
      sink_->sendCompleted(peer);
    }
    sink_->linkFailed(peer, Error(ErrorKind::kPeerLost, end.text));
  }

  bool acceptConnections() {
    int accepted = 0;
    for (; accepted < kAcceptsPerRound; ++accepted) {
      FileDescriptor socket = acceptFrom(listener_);
      if (!socket.isOpen()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          pauseAccepting();
        }
        break;
      }
      const std::size_t before = handshakes_->count();
      handshakes_->add(std::move(socket), Clock::now());
      if (handshakes_->count() <= before) {
        countRejection();
      }
    }
    if (!handshakes_->isEmpty() && !std::exchange(isExpiryPlanned_, true)) {
      planExpiry();
    }
    return accepted > 0;
  }

  // The listener stays ready as long as it cannot be served: without a pause the loop would spin.
  void pauseAccepting() {
    poller_.modify(listener_.get(), 0, {Source::kListener, 0});
    runInProgress(kAcceptPause,
                  [this] { poller_.modify(listener_.get(), EPOLLIN, {Source::kListener, 0}); });
  }

  void planExpiry() {
    runInProgress(kExpiryInterval, [this] {
      const std::size_t before = handshakes_->count();
      handshakes_->expire(Clock::now());
      countRejection(before - handshakes_->count());
      isExpiryPlanned_ = !handshakes_->isEmpty();
      if (isExpiryPlanned_) {
        planExpiry();
      }
    });
  }

  bool readHello(std::uint64_t number) {
    const std::size_t before = handshakes_->count();
    std::optional<Handshakes::Accepted> accepted = handshakes_->read(number);
    if (!accepted.has_value()) {
      countRejection(before - handshakes_->count());
      return false;
    }
    const int peer = accepted->rank;
    FileDescriptor& socket = accepted->socket;
    const auto reply = makeReply(context_.self, peer);
    const std::uint64_t receiver = nextReceiver_++;
    const bool isWelcome = !hasFailed_[static_cast<std::size_t>(peer)] &&
                           !receiverOf_.contains(peer) && !endings_.contains(peer);
    if (!isWelcome ||
        !poller_.modify(socket.get(), EPOLLIN | EPOLLRDHUP, {Source::kReceiver, receiver}) ||
        ::send(socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
            static_cast<ssize_t>(reply.size())) {
      poller_.remove(socket.get());
      countRejection();
      return false;
    }
    receivers_.emplace(
        receiver, std::make_unique<Receiver>(std::move(socket), peer,
                                             endpoints_[static_cast<std::size_t>(peer)], *sink_));
    receiverOf_.emplace(peer, receiver);
    return true;
  }

  void countRejection(std::size_t count = 1) {
    rejected_.fetch_add(count, std::memory_order_relaxed);
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
      function();
    }
    return !due.empty();
  }

  // --- From any thread ---

  // Runs `function` with the right to make progress, after `delay`; not if closed by then.
  void runInProgress(milliseconds delay, std::function<void()> function) {
    loop_->runAfter(delay, [weak = weak_from_this(), function = std::move(function)]() mutable {
      const std::shared_ptr<Core> self = weak.lock();
      if (self == nullptr) {
        return;
      }
      {
        const std::lock_guard lock(self->dueMutex_);
        self->due_.push_back(std::move(function));
      }
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = ::write(self->wake_.get(), &one, sizeof(one));
    });
  }

  // Lets frames that were sent go out, followed by goodbyes. Frames that arrive meanwhile are still
  // delivered: two ranks that close at once, each with much to send, need each other to read.
  void handOver(Clock::time_point deadline) {
    std::vector<Sender*> unfinished;
    for (Sender& sender : senders_) {
      if (sender.isInUse()) {
        unfinished.push_back(&sender);
      }
    }
    while (true) {
      std::erase_if(unfinished, [](Sender* sender) { return sender->finish(); });
      poll();
      if (unfinished.empty() || Clock::now() >= deadline) {
        return;
      }
      pollfd waiting{poller_.descriptor(), POLLIN, 0};
      ::poll(&waiting, 1, static_cast<int>(kCloseInterval.count()));
    }
  }

  FileDescriptor listener_;
  const SocketAddress address_;
  const Poller poller_;
  const FileDescriptor wake_;  // readable when functions are due
  const std::shared_ptr<executor::EventLoop> loop_;

  std::atomic<bool> isStarted_{false};
  // Set by start(), constant afterwards.
  FrameSink* sink_ = nullptr;
  Sender::Context context_;
  std::vector<std::string> endpoints_;
  std::vector<Sender> senders_;

  std::atomic<bool> hasRight_{false};
  std::atomic<bool> isLoopHeldOff_{false};
  std::atomic<std::thread::id> worker_{};  // who has the right

  // Touched only with the right to make progress.
  std::optional<Handshakes> handshakes_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Receiver>> receivers_;
  std::unordered_map<int, std::uint64_t> receiverOf_;  // by peer
  std::unordered_map<int, Ending> endings_;            // by peer
  std::vector<bool> hasFailed_;                        // by peer
  std::uint64_t nextReceiver_ = 0;
  bool isExpiryPlanned_ = false;
  std::vector<std::byte> scratch_;

  std::mutex dueMutex_;
  std::vector<std::function<void()>> due_;

  std::mutex closeMutex_;
  bool isClosed_ = false;  // guarded by closeMutex_

  std::atomic<std::uint64_t> rejected_{0};
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
    core_->close(milliseconds(0));
  }

  std::string endpoint() const override { return core_->address().toString(); }

  std::uint64_t rejectedConnections() const override { return core_->rejectedConnections(); }

  void start(std::vector<std::string> endpoints, const Cookie& cookie, FrameSink& sink) override {
    if (!isForkedChild(generation_)) {
      core_->start(endpoints, cookie, sink);
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

  void close(milliseconds grace) override {
    if (!isForkedChild(generation_)) {
      core_->close(grace);
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
