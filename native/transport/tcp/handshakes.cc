// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshakes.h"

#include <sys/socket.h>

#include <utility>

namespace smd::transport::tcp {

Handshakes::Handshakes(const Identity& self, const Poller& poller) : self_(self), poller_(poller) {}

void Handshakes::add(FileDescriptor socket, Clock::time_point now) {
  if (waiting_.size() >= kStrangers + static_cast<std::size_t>(self_.worldSize)) {
    drop(waiting_.begin());
  }
  const std::uint64_t number = nextNumber_++;
  if (poller_.add(socket.get(), EPOLLIN | EPOLLRDHUP, {Source::kHandshake, number})) {
    waiting_.emplace(number, Waiting{std::move(socket), now + kTimeLimit, {}, 0});
  }
}

std::optional<Handshakes::Accepted> Handshakes::read(std::uint64_t number) {
  const auto entry = waiting_.find(number);
  if (entry == waiting_.end()) {
    return std::nullopt;
  }
  Waiting& waiting = entry->second;
  const auto got = ::recv(waiting.socket.get(), waiting.bytes.data() + waiting.filled,
                          waiting.bytes.size() - waiting.filled, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return std::nullopt;
  }
  if (got <= 0) {
    drop(entry);
    return std::nullopt;
  }
  waiting.filled += static_cast<std::size_t>(got);
  if (waiting.filled < waiting.bytes.size()) {
    return std::nullopt;
  }
  const HelloResult hello = checkHello(waiting.bytes, self_);
  if (hello.verdict != HelloVerdict::kAccepted) {
    drop(entry);
    return std::nullopt;
  }
  Accepted accepted{std::move(waiting.socket), hello.rank};
  waiting_.erase(entry);
  return accepted;
}

void Handshakes::expire(Clock::time_point now) {
  auto entry = waiting_.begin();
  while (entry != waiting_.end() && entry->second.deadline <= now) {
    entry = drop(entry);
  }
}

void Handshakes::clear() {
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    entry = drop(entry);
  }
}

Handshakes::Table::iterator Handshakes::drop(Table::iterator entry) {
  poller_.remove(entry->second.socket.get());
  return waiting_.erase(entry);
}

}  // namespace smd::transport::tcp
