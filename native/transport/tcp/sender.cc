// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/sender.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "transport/frame_parser.h"
#include "transport/tcp/socket.h"

namespace smd::transport::tcp {
namespace {

// A peer listens before its endpoint is published, so a refused connection nearly always means that
// it is dead; the short insistence is for full queues.
constexpr Patience kRefused{std::chrono::seconds(1), "its process has probably ended"};
// It says nothing of the peer.
constexpr Patience kNoDescriptor{
    std::chrono::seconds(1),
    "raise the limit on open files there (ulimit -n), or close files that are not needed"};
// One that accepts and then closes, without a word, lives: strangers may have pushed us out of its
// waiting room (handshakes.h).
constexpr Patience kPushedOut{std::chrono::seconds(10),
                              "look in the log of that rank for whom it refused"};
// As long as a connection that there already is may be cut.
constexpr Patience kUnreachable{kSilenceLimit, "its host is down, or the network to it is cut"};
constexpr std::chrono::milliseconds kFirstBackoff{10};
constexpr std::chrono::milliseconds kLongestBackoff{500};

// Frames of one sendmsg() call: two parts (header, payload) each.
constexpr std::size_t kFramesPerCall = 32;
// Peers take turns after about this much.
constexpr std::size_t kFlushBudget = std::size_t{4} << 20;

constexpr std::uint32_t kReadEvents = EPOLLIN | EPOLLRDHUP;

iovec part(const void* data, std::uint64_t size) { return {const_cast<void*>(data), size}; }

bool isOnlyFull(int error) { return error == EAGAIN || error == ENOBUFS || error == ENOMEM; }

bool isForDescriptors(int error) { return error == EMFILE || error == ENFILE; }

// With one to which no connection can be made.
const Patience& patienceWith(int error) {
  if (isForDescriptors(error)) return kNoDescriptor;
  const bool isCut = error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN ||
                     error == EHOSTDOWN || error == ETIMEDOUT;
  return isCut ? kUnreachable : kRefused;
}

// With one that accepted the connection, then ended it.
const Patience& patienceAfter(int error) {
  return error == 0 || error == ECONNRESET || error == EPIPE ? kPushedOut : patienceWith(error);
}

void completeTicket(SendTicket* ticket, SendTicket::State state) {
  if (ticket != nullptr) {
    ticket->complete(state);  // the last touch: its owner may destroy it now
  }
}

}  // namespace

void Sender::configure(const Context& context, Stream peer, const Rail& rail) {
  context_ = &context;
  peer_ = peer;
  rail_ = rail;
}

void Sender::open() {
  const std::lock_guard lock(mutex_);
  openLocked();
}

void Sender::send(const FrameHeader& header, const void* payload, SendTicket* ticket) {
  const std::lock_guard lock(mutex_);
  openLocked();
  if (state_ == State::kFailed || hasSaidGoodbye_) {
    completeTicket(ticket, SendTicket::State::kFailed);
    return;
  }
  numBytesGiven_ += header.length;
  std::uint64_t written = 0;
  if (state_ == State::kConnected && queue_.empty() && socketError_ == 0) {
    // On the caller's thread: nobody has to wake up for it.
    std::array<iovec, 2> parts = {part(&header, sizeof(header)), part(payload, header.length)};
    const ssize_t sent = connection_.write(parts);
    if (sent < 0) noteFailedWriteLocked(errno);
    written = static_cast<std::uint64_t>(std::max<ssize_t>(sent, 0));
    if (written == sizeof(header) + header.length) {
      completeTicket(ticket, SendTicket::State::kSent);
      return;
    }
  }
  try {
    Outgoing outgoing;
    outgoing.header = header;
    outgoing.payload = static_cast<const std::byte*>(payload);
    outgoing.ticket = ticket;
    outgoing.written = written;
    if (ticket == nullptr && header.length > 0) {
      outgoing.copy = std::make_unique_for_overwrite<std::byte[]>(header.length);
      std::memcpy(outgoing.copy.get(), payload, header.length);
      outgoing.payload = outgoing.copy.get();
    }
    queue_.push_back(std::move(outgoing));
  } catch (const std::bad_alloc&) {
    // The peer waits for the rest of this frame, and would take the next one for it.
    if (written > 0) endSocketLocked(ENOMEM);
    throw;
  }
  if (state_ == State::kConnected) {
    watchLocked(true);
  }
}

void Sender::sendIfOpen(const FrameHeader& header, const void* payload) {
  {
    const std::lock_guard lock(mutex_);
    switch (state_) {
      case State::kIdle:
      case State::kDisconnected:
      case State::kFailed:
        return;
      case State::kConnecting:
      case State::kSecuring:
      case State::kAwaitingChallenge:
      case State::kAwaitingWelcome:
      case State::kWaiting:
      case State::kConnected:
        break;
    }
  }
  send(header, payload, nullptr);
}

Sender::Progress Sender::handleEvents(std::uint32_t events) {
  Progress progress;
  const std::lock_guard lock(mutex_);
  switch (state_) {
    case State::kConnecting:
      finishConnectLocked(progress);
      break;
    case State::kSecuring:
      secureLocked(progress);
      break;
    case State::kAwaitingChallenge:
      readChallengeLocked(progress);
      break;
    case State::kAwaitingWelcome:
      readWelcomeLocked(progress);
      break;
    case State::kConnected:
      if ((events & EPOLLOUT) != 0) {
        flushLocked(progress);
      }
      if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) {
        readFarewellLocked(progress);
      }
      break;
    case State::kIdle:
    case State::kWaiting:
    case State::kDisconnected:
    case State::kFailed:
      break;  // an event that was in hand when the socket was closed
  }
  return progress;
}

Sender::Progress Sender::retry() {
  Progress progress;
  const std::lock_guard lock(mutex_);
  if (state_ == State::kWaiting) {
    connectLocked();
  } else if (state_ == State::kDisconnected && !unreportedEnd_.empty()) {
    progress.end = LinkEnd{false, std::exchange(unreportedEnd_, {})};
  }
  return progress;
}

Sender::Progress Sender::look() {
  Progress progress;
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  bool isOver = false;
  switch (state_) {
    case State::kConnecting:
      isOver = now - attemptBegan_ >= kSilenceLimit;
      break;
    case State::kSecuring:
    case State::kAwaitingChallenge:
    case State::kAwaitingWelcome:
    case State::kConnected:
      isOver = silence_.isOver(connection_.descriptor(), now);
      break;
    case State::kIdle:
    case State::kWaiting:
    case State::kDisconnected:
    case State::kFailed:
      break;
  }
  if (isOver) progress.end = unanswered(rail_.target.toString());
  return progress;
}

void Sender::disconnect() {
  const std::lock_guard lock(mutex_);
  dropSocketLocked();
  state_ = State::kDisconnected;
}

bool Sender::fail() {
  std::list<Outgoing> lost;
  {
    const std::lock_guard lock(mutex_);
    dropSocketLocked();
    state_ = State::kFailed;
    lost.swap(queue_);
  }
  bool hadTickets = false;
  for (const Outgoing& outgoing : lost) {
    hadTickets |= outgoing.ticket != nullptr;
    completeTicket(outgoing.ticket, SendTicket::State::kFailed);
  }
  return hadTickets;
}

bool Sender::isInUse() {
  const std::lock_guard lock(mutex_);
  return state_ != State::kIdle;
}

bool Sender::hasBeenConnected() {
  const std::lock_guard lock(mutex_);
  return hasBeenConnected_;
}

std::optional<Sender::Load> Sender::load() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kConnected || hasSaidGoodbye_ || socketError_ != 0) return std::nullopt;
  int unacknowledged = 0;
  ::ioctl(connection_.descriptor(), SIOCOUTQ, &unacknowledged);
  auto bytes = static_cast<std::uint64_t>(unacknowledged);
  for (const Outgoing& each : queue_) bytes += each.size() - each.written;
  return Load(bytes, numBytesGiven_);
}

bool Sender::finish() {
  const std::lock_guard lock(mutex_);
  switch (state_) {
    case State::kIdle:
    case State::kDisconnected:
    case State::kFailed:
      return true;
    case State::kConnecting:
    case State::kSecuring:
    case State::kAwaitingChallenge:
    case State::kAwaitingWelcome:
    case State::kWaiting:
      return queue_.empty();  // nobody needs the connection that was being made
    case State::kConnected:
      break;
  }
  if (!hasSaidGoodbye_) {
    Outgoing goodbye;
    goodbye.header = makeGoodbye();
    queue_.push_back(std::move(goodbye));
    hasSaidGoodbye_ = true;
    watchLocked(true);
    return false;
  }
  if (!queue_.empty()) {
    return false;
  }
  if (!isShutDown_) {
    isShutDown_ = true;
    ::shutdown(connection_.descriptor(), SHUT_WR);
  }
  // Until the peer's kernel has everything: if it sent us a farewell after we had closed, ours
  // would answer with a reset and throw away what is still on its way out.
  int unacknowledged = 0;
  return ::ioctl(connection_.descriptor(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
}

void Sender::openLocked() {
  if (state_ == State::kIdle) {
    firstAttempt_ = Clock::now();
    backoff_ = kFirstBackoff;
    connectLocked();
  }
}

void Sender::connectLocked() {
  answerFilled_ = 0;
  hasPeerFailed_ = false;
  lastWords_.clear();
  lastWordsFilled_ = 0;
  socketError_ = 0;
  silence_ = {};
  FileDescriptor socket = connectTo(rail_.target, rail_.source);
  if (!socket.isOpen() || !context_->poller->add(socket.get(), EPOLLOUT, tagOfSender(peer_))) {
    const int error = errno;
    socket.reset();
    const std::string where =
        isForDescriptors(error) ? " on rank " + std::to_string(context_->self.rank) : "";
    connectFailedLocked(errnoText(error) + where, patienceWith(error));
    return;
  }
  connection_ = Connection(std::move(socket), context_->tls, TlsRole::kOpener);
  isWatchedForWriting_ = true;
  attemptBegan_ = Clock::now();
  state_ = State::kConnecting;
}

void Sender::connectFailedLocked(const std::string& reason, const Patience& patience) {
  dropSocketLocked();
  // A process that is stopped in the handshake answers late: that was no failure yet.
  const bool isFirst = backoff_ == kFirstBackoff;
  if (isFirst && state_ != State::kIdle && state_ != State::kConnecting) {
    firstAttempt_ = Clock::now();
  }
  if (Clock::now() - firstAttempt_ < patience.limit) {
    state_ = State::kWaiting;
    context_->retryAfter(peer_, backoff_);
    backoff_ = std::min(2 * backoff_, kLongestBackoff);
    return;
  }
  state_ = State::kDisconnected;
  unreportedEnd_ = "connecting to " + rail_.target.toString() + " failed for " +
                   std::to_string(patience.limit.count()) + " ms (" + reason + "); " +
                   patience.meaning;
  // Not at once: this may be a call of send(), which must not report.
  context_->retryAfter(peer_, std::chrono::milliseconds(0));
}

void Sender::finishConnectLocked(Progress& progress) {
  if (const int error = takeError(connection_.descriptor()); error != 0) {
    connectFailedLocked(errnoText(error), patienceWith(error));
    return;
  }
  state_ = State::kSecuring;
  secureLocked(progress);
}

void Sender::secureLocked(Progress& progress) {
  const TlsSession::Step step = connection_.secure();
  if (step == TlsSession::Step::kFailed) {
    connectFailedLocked(connection_.problem(errno), kRefused);
    return;
  }
  if (step != TlsSession::Step::kDone) {
    watchLocked(step == TlsSession::Step::kWantsToWrite);
    return;
  }
  handshake_ = std::make_unique<OpenerHandshake>(context_->self, peer_, connection_.binding());
  if (!connection_.writeAll(handshake_->hello())) {
    connectFailedLocked("cannot send the hello: " + connection_.problem(errno),
                        patienceAfter(errno));
    return;
  }
  progress.hasMoved = true;
  state_ = State::kAwaitingChallenge;
  watchLocked(false);
}

void Sender::readChallengeLocked(Progress& progress) {
  if (!readHandshakeAnswerLocked()) {
    return;
  }
  const auth::Digest& proof = handshake_->answerChallenge(context_->self, answer_);
  if (!connection_.writeAll(proof)) {
    connectFailedLocked("cannot send the proof: " + connection_.problem(errno),
                        patienceAfter(errno));
    return;
  }
  progress.hasMoved = true;
  state_ = State::kAwaitingWelcome;
}

void Sender::readWelcomeLocked(Progress& progress) {
  if (!readHandshakeAnswerLocked()) {
    return;
  }
  if (!handshake_->isWelcome(answer_)) {
    connectFailedLocked("what listens there did not prove to be rank " +
                            std::to_string(peer_.peer) + " of this job",
                        kRefused);
    return;
  }
  progress.hasMoved = true;
  state_ = State::kConnected;
  hasBeenConnected_ = true;
  // One that has failed says so at once: it reads no frames any more.
  readFarewellLocked(progress);
  if (!progress.end.has_value()) flushLocked(progress);
}

// Whether the next answer is in `answer_`. If the connection has ended instead, that is dealt with.
bool Sender::readHandshakeAnswerLocked() {
  switch (readAnswerLocked()) {
    case ReadResult::kIncomplete:
      return false;
    case ReadResult::kEnd:
      connectFailedLocked("it closed the connection before the handshake was complete" +
                              (socketError_ == 0 ? "" : ": " + connection_.problem(socketError_)),
                          patienceAfter(socketError_));
      return false;
    case ReadResult::kComplete:
      break;
  }
  return true;
}

void Sender::readFarewellLocked(Progress& progress) {
  while (!hasPeerFailed_) {
    switch (readAnswerLocked()) {
      case ReadResult::kIncomplete:
        return;
      case ReadResult::kEnd:
        progress.end =
            hasPeerLeft_                ? leftInGoodOrder(rail_.target.toString())
            : socketError_ == ETIMEDOUT ? unanswered(rail_.target.toString())
            : socketError_ == EFAULT
                ? givenBackTooEarly(rail_.target.toString())
                : closedUnexpectedly(rail_.target.toString(), connection_.problem(socketError_));
        return;
      case ReadResult::kComplete:
        progress.hasMoved = true;
        if (!hasPeerLeft_ && handshake_->isFailure(answer_)) {
          hasPeerFailed_ = true;
          break;
        }
        if (hasPeerLeft_ || !handshake_->isFarewell(answer_)) {
          progress.end = LinkEnd{false, rail_.target.toString() +
                                            " broke the protocol: it sent something other than "
                                            "a farewell on a connection that it accepted"};
          return;
        }
        hasPeerLeft_ = true;
    }
  }
  readLastWordsLocked(progress);
}

// Behind the mark of a failure comes a control frame, unless there was no memory for it.
void Sender::readLastWordsLocked(Progress& progress) {
  if (lastWords_.empty()) lastWords_.resize(sizeof(FrameHeader));
  while (true) {
    while (lastWordsFilled_ < lastWords_.size()) {
      const iovec missing =
          part(lastWords_.data() + lastWordsFilled_, lastWords_.size() - lastWordsFilled_);
      const ssize_t got = connection_.read({&missing, 1});
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        progress.end = gaveUp(rail_.target.toString());
        return;
      }
      lastWordsFilled_ += static_cast<std::size_t>(got);
    }
    progress.hasMoved = true;
    FrameHeader header;
    std::memcpy(&header, lastWords_.data(), sizeof(header));
    const bool isGood = header.channel == Channel::kControl && header.length <= kMostLastWords &&
                        !checkHeader(header).has_value();
    if (isGood && lastWords_.size() < sizeof(header) + header.length) {
      lastWords_.resize(sizeof(header) + header.length);
      continue;
    }
    if (isGood) progress.lastWords = std::move(lastWords_);
    progress.end = gaveUp(rail_.target.toString());
    return;
  }
}

Sender::ReadResult Sender::readAnswerLocked() {
  while (answerFilled_ < answer_.size()) {
    const iovec missing = part(answer_.data() + answerFilled_, answer_.size() - answerFilled_);
    const ssize_t got = connection_.read({&missing, 1});
    if (got < 0 && errno == EAGAIN) {
      return ReadResult::kIncomplete;
    }
    if (got <= 0) {
      if (got < 0 && socketError_ == 0) {
        socketError_ = errno;
      }
      return ReadResult::kEnd;
    }
    answerFilled_ = static_cast<std::uint8_t>(answerFilled_ + got);
  }
  answerFilled_ = 0;
  return ReadResult::kComplete;
}

void Sender::flushLocked(Progress& progress) {
  std::size_t budget = kFlushBudget;
  while (!queue_.empty() && budget > 0 && socketError_ == 0) {
    std::array<iovec, 2 * kFramesPerCall> parts;
    std::size_t count = 0;
    std::uint64_t offered = 0;
    for (const Outgoing& each : queue_) {
      if (count == parts.size()) {
        break;
      }
      const std::uint64_t ofHeader = std::min<std::uint64_t>(each.written, sizeof(FrameHeader));
      const std::uint64_t ofPayload = each.written - ofHeader;
      parts[count++] = part(reinterpret_cast<const std::byte*>(&each.header) + ofHeader,
                            sizeof(FrameHeader) - ofHeader);
      parts[count++] = each.header.length == ofPayload
                           ? part(nullptr, 0)
                           : part(each.payload + ofPayload, each.header.length - ofPayload);
      offered += each.size() - each.written;
    }
    const ssize_t sent = connection_.write(std::span(parts).first(count));
    if (sent < 0) {
      noteFailedWriteLocked(errno);
      break;
    }
    progress.hasMoved = true;
    auto left = static_cast<std::uint64_t>(sent);
    const bool isFull = left < offered;
    budget -= std::min<std::uint64_t>(budget, left);
    while (!queue_.empty()) {
      Outgoing& front = queue_.front();
      const std::uint64_t part = std::min(left, front.size() - front.written);
      front.written += part;
      left -= part;
      if (front.written < front.size()) {
        break;
      }
      progress.hasCompletedTickets |= front.ticket != nullptr;
      completeTicket(front.ticket, SendTicket::State::kSent);
      queue_.pop_front();
    }
    if (isFull) {
      break;
    }
  }
  watchLocked(!queue_.empty());
}

void Sender::noteFailedWriteLocked(int error) {
  if (isOnlyFull(error)) return;
  if (error == EFAULT) return endSocketLocked(error);
  socketError_ = error;  // the poller will report the socket, handleEvents() the end
}

// There is nothing wrong with the socket: without this nobody would report it.
void Sender::endSocketLocked(int error) {
  socketError_ = error;
  ::shutdown(connection_.descriptor(), SHUT_RDWR);
}

void Sender::watchLocked(bool isForWriting) {
  if (isForWriting != isWatchedForWriting_ || state_ == State::kSecuring ||
      state_ == State::kAwaitingChallenge) {
    isWatchedForWriting_ = isForWriting;
    context_->poller->modify(connection_.descriptor(), kReadEvents | (isForWriting ? EPOLLOUT : 0U),
                             tagOfSender(peer_));
  }
}

void Sender::dropSocketLocked() {
  if (connection_.isOpen()) {
    context_->poller->remove(connection_.descriptor());
    connection_.reset();
  }
}

}  // namespace smd::transport::tcp
