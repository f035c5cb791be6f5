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
#include <utility>

#include "transport/tcp/socket.h"

namespace smd::transport::tcp {
namespace {

// A peer listens before its endpoint is published, so a refused connection nearly always means that
// it is dead; the short insistence is for full queues and routes that come and go.
constexpr std::chrono::milliseconds kConnectLimit = std::chrono::seconds(1);
constexpr std::chrono::milliseconds kFirstBackoff{10};

// Frames of one sendmsg() call: two parts (header, payload) each.
constexpr std::size_t kFramesPerCall = 32;
// Peers take turns after about this much.
constexpr std::size_t kFlushBudget = std::size_t{4} << 20;

constexpr std::uint32_t kReadEvents = EPOLLIN | EPOLLRDHUP;

iovec part(const void* data, std::uint64_t size) { return {const_cast<void*>(data), size}; }

ssize_t sendParts(int fd, iovec* parts, std::size_t count) {
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

bool isOnlyFull(int error) { return error == EAGAIN || error == ENOBUFS || error == ENOMEM; }

void completeTicket(SendTicket* ticket, SendTicket::State state) {
  if (ticket != nullptr) {
    ticket->complete(state);  // the last touch: its owner may destroy it now
  }
}

}  // namespace

void Sender::configure(const Context& context, int peer, const SocketAddress& address) {
  context_ = &context;
  peer_ = peer;
  address_ = address;
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
  std::uint64_t written = 0;
  if (state_ == State::kConnected && queue_.empty() && socketError_ == 0) {
    // On the caller's thread: nobody has to wake up for it.
    std::array<iovec, 2> parts = {part(&header, sizeof(header)), part(payload, header.length)};
    const ssize_t sent = sendParts(socket_.get(), parts.data(), parts.size());
    if (sent < 0 && !isOnlyFull(errno)) {
      socketError_ = errno;  // the poller will report the socket, handleEvents() the end
    }
    written = static_cast<std::uint64_t>(std::max<ssize_t>(sent, 0));
    if (written == sizeof(header) + header.length) {
      completeTicket(ticket, SendTicket::State::kSent);
      return;
    }
  }
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
  if (state_ == State::kConnected) {
    watchLocked(true);
  }
}

Sender::Progress Sender::handleEvents(std::uint32_t events) {
  Progress progress;
  const std::lock_guard lock(mutex_);
  switch (state_) {
    case State::kConnecting:
      finishConnectLocked(progress);
      break;
    case State::kAwaitingReply:
      readReplyLocked(progress);
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

bool Sender::finish() {
  const std::lock_guard lock(mutex_);
  switch (state_) {
    case State::kIdle:
    case State::kDisconnected:
    case State::kFailed:
      return true;
    case State::kConnecting:
    case State::kAwaitingReply:
    case State::kWaiting:
      return queue_.empty();  // nobody needs the connection that was being made
    case State::kConnected:
      break;
  }
  if (!hasSaidGoodbye_) {
    hasSaidGoodbye_ = true;
    Outgoing goodbye;
    goodbye.header = makeGoodbye();
    queue_.push_back(std::move(goodbye));
    watchLocked(true);
    return false;
  }
  if (!queue_.empty()) {
    return false;
  }
  if (!isShutDown_) {
    isShutDown_ = true;
    ::shutdown(socket_.get(), SHUT_WR);
  }
  // Until the peer's kernel has everything: if it sent us a farewell after we had closed, ours
  // would answer with a reset and throw away what is still on its way out.
  int unacknowledged = 0;
  return ::ioctl(socket_.get(), SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0;
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
  socket_ = connectTo(address_);
  if (!socket_.isOpen() ||
      !context_->poller->add(socket_.get(), EPOLLOUT,
                             {Source::kSender, static_cast<std::uint64_t>(peer_)})) {
    const int error = errno;
    socket_.reset();
    connectFailedLocked(errnoText(error));
    return;
  }
  isWatchedForWriting_ = true;
  state_ = State::kConnecting;
}

void Sender::connectFailedLocked(const std::string& reason) {
  dropSocketLocked();
  if (Clock::now() - firstAttempt_ < kConnectLimit) {
    state_ = State::kWaiting;
    context_->retryAfter(peer_, backoff_);
    backoff_ *= 2;
    return;
  }
  state_ = State::kDisconnected;
  unreportedEnd_ = "connecting to " + address_.toString() + " failed for " +
                   std::to_string(kConnectLimit.count()) + " ms (" + reason +
                   "); its process has probably ended";
  // Not at once: this may be a call of send(), which must not report.
  context_->retryAfter(peer_, std::chrono::milliseconds(0));
}

void Sender::finishConnectLocked(Progress& progress) {
  if (const int error = takeError(socket_); error != 0) {
    connectFailedLocked(errnoText(error));
    return;
  }
  const auto hello = makeHello(context_->self, peer_);
  iovec parts = part(hello.data(), hello.size());
  // A fresh socket has room for 64 bytes.
  if (sendParts(socket_.get(), &parts, 1) != static_cast<ssize_t>(hello.size())) {
    connectFailedLocked("cannot send the hello: " + errnoText(errno));
    return;
  }
  progress.hasMoved = true;
  state_ = State::kAwaitingReply;
  watchLocked(false);
}

void Sender::readReplyLocked(Progress& progress) {
  switch (readAnswerLocked()) {
    case ReadResult::kIncomplete:
      return;
    case ReadResult::kEnd:
      connectFailedLocked("it closed the connection before its reply" +
                          (socketError_ == 0 ? "" : ": " + errnoText(socketError_)));
      return;
    case ReadResult::kComplete:
      break;
  }
  if (!checkReply(answer_, context_->self, peer_)) {
    connectFailedLocked("what listens there is not rank " + std::to_string(peer_) +
                        " of this communicator");
    return;
  }
  progress.hasMoved = true;
  state_ = State::kConnected;
  flushLocked(progress);
}

void Sender::readFarewellLocked(Progress& progress) {
  while (true) {
    switch (readAnswerLocked()) {
      case ReadResult::kIncomplete:
        return;
      case ReadResult::kEnd:
        progress.end = hasPeerLeft_
                           ? leftInGoodOrder(address_.toString())
                           : closedUnexpectedly(address_.toString(),
                                                socketError_ == 0 ? "" : errnoText(socketError_));
        return;
      case ReadResult::kComplete:
        progress.hasMoved = true;
        if (hasPeerLeft_ || !checkFarewell(answer_, context_->self, peer_)) {
          progress.end = LinkEnd{false, address_.toString() +
                                            " broke the protocol: it sent something other than "
                                            "a farewell on a connection that it accepted"};
          return;
        }
        hasPeerLeft_ = true;
    }
  }
}

Sender::ReadResult Sender::readAnswerLocked() {
  while (answerFilled_ < answer_.size()) {
    const auto got = ::recv(socket_.get(), answer_.data() + answerFilled_,
                            answer_.size() - answerFilled_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) {
      continue;
    }
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
    const ssize_t sent = sendParts(socket_.get(), parts.data(), count);
    if (sent < 0) {
      if (!isOnlyFull(errno)) {
        socketError_ = errno;
      }
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

void Sender::watchLocked(bool isForWriting) {
  if (isForWriting != isWatchedForWriting_ || state_ == State::kAwaitingReply) {
    isWatchedForWriting_ = isForWriting;
    context_->poller->modify(socket_.get(), kReadEvents | (isForWriting ? EPOLLOUT : 0U),
                             {Source::kSender, static_cast<std::uint64_t>(peer_)});
  }
}

void Sender::dropSocketLocked() {
  if (socket_.isOpen()) {
    context_->poller->remove(socket_.get());
    socket_.reset();
  }
}

}  // namespace smd::transport::tcp
