// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshakes.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

namespace smd::transport::tcp {

Handshakes::Handshakes(const Identity& self, const Poller& poller, OnRejection onRejection)
    : self_(self), poller_(poller), onRejection_(std::move(onRejection)) {}

void Handshakes::add(Connection connection, const SocketAddress& stranger, Clock::time_point now) {
  if (waiting_.size() >= kStrangers + static_cast<std::size_t>(self_.worldSize)) {
    reject(leastPromising(), "too many others were waiting to be let in");
  }
  const std::uint64_t number = nextNumber_++;
  if (!poller_.add(connection.descriptor(), EPOLLIN | EPOLLRDHUP, {Source::kHandshake, number})) {
    onRejection_(stranger, -1, "this process has no room for another connection");
    return;
  }
  std::string host = stranger.host();
  std::size_t& fromHost = waitingFrom_[host];
  waiting_.emplace(number, Waiting{std::move(connection), false, stranger, std::move(host),
                                   now + kTimeLimit, AcceptorHandshake(self_)});
  ++fromHost;
}

std::optional<Handshakes::Accepted> Handshakes::read(std::uint64_t number) {
  const auto entry = waiting_.find(number);
  if (entry == waiting_.end()) {
    return std::nullopt;
  }
  if (!entry->second.isSecured && !secure(entry)) {
    return std::nullopt;
  }
  Connection& connection = entry->second.connection;
  AcceptorHandshake& handshake = entry->second.handshake;
  while (true) {
    const std::span<std::byte> missing = handshake.missing();
    const iovec part{missing.data(), missing.size()};
    const ssize_t got = connection.read({&part, 1});
    if (got < 0 && errno == EAGAIN) {
      return std::nullopt;
    }
    if (got <= 0) {
      reject(entry, "");
      return std::nullopt;
    }
    switch (handshake.advance(static_cast<std::size_t>(got))) {
      case AcceptorHandshake::Step::kMore:
        break;
      case AcceptorHandshake::Step::kSendChallenge:
        if (!connection.writeAll(handshake.challenge())) {
          reject(entry, "");
          return std::nullopt;
        }
        break;
      case AcceptorHandshake::Step::kRefused:
        reject(entry, handshake.reason());
        return std::nullopt;
      case AcceptorHandshake::Step::kProved: {
        Accepted accepted{std::move(connection), entry->second.stranger, handshake.from(),
                          handshake.proofs()};
        remove(entry);
        return accepted;
      }
    }
  }
}

void Handshakes::refuse(std::uint64_t number, std::string_view reason) {
  const auto entry = waiting_.find(number);
  if (entry != waiting_.end()) {
    reject(entry, reason);
  }
}

void Handshakes::expire(Clock::time_point now) {
  auto entry = waiting_.begin();
  while (entry != waiting_.end() && entry->second.deadline <= now) {
    entry = reject(entry, "it did not finish the handshake in time");
  }
}

void Handshakes::clear() {
  for (const auto& [number, waiting] : waiting_) {
    poller_.remove(waiting.connection.descriptor());
  }
  waiting_.clear();
  waitingFrom_.clear();
}

Handshakes::Table::iterator Handshakes::leastPromising() {
  const auto most = std::ranges::max_element(waitingFrom_, {},
                                             [](const auto& fromHost) { return fromHost.second; });
  auto oldest = waiting_.end();
  for (auto entry = waiting_.begin(); entry != waiting_.end(); ++entry) {
    if (entry->second.host != most->first) {
      continue;
    }
    if (entry->second.handshake.from().peer < 0) {
      return entry;
    }
    if (oldest == waiting_.end()) {
      oldest = entry;
    }
  }
  return oldest;
}

Handshakes::Table::iterator Handshakes::remove(Table::iterator entry) {
  const auto fromHost = waitingFrom_.find(entry->second.host);
  if (--fromHost->second == 0) {
    waitingFrom_.erase(fromHost);
  }
  return waiting_.erase(entry);
}

bool Handshakes::secure(Table::iterator entry) {
  const auto& [number, waiting] = *entry;
  const TlsSession::Step step = entry->second.connection.secure();
  switch (step) {
    case TlsSession::Step::kDone:
      entry->second.isSecured = true;
      if (const auto binding = waiting.connection.binding()) {
        entry->second.handshake.bindTo(*binding);
      }
      poller_.modify(waiting.connection.descriptor(), EPOLLIN | EPOLLRDHUP,
                     {Source::kHandshake, number});
      return true;
    case TlsSession::Step::kWantsToRead:
    case TlsSession::Step::kWantsToWrite:
      poller_.modify(
          waiting.connection.descriptor(),
          EPOLLIN | EPOLLRDHUP | (step == TlsSession::Step::kWantsToWrite ? EPOLLOUT : 0U),
          {Source::kHandshake, number});
      return false;
    case TlsSession::Step::kFailed:
      reject(entry, waiting.connection.problem(0));
      return false;
  }
  return false;
}

Handshakes::Table::iterator Handshakes::reject(Table::iterator entry, std::string_view reason) {
  onRejection_(entry->second.stranger, entry->second.handshake.from().peer, reason);
  poller_.remove(entry->second.connection.descriptor());
  return remove(entry);
}

}  // namespace smd::transport::tcp
