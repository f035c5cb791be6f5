// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Accepted connections that have not yet shown that they belong to this communicator. Anybody can
// reach a listening port: so these are bounded in number and time, and what they send is compared
// with a fixed-size hello and otherwise thrown away.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "common/file_descriptor.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/protocol.h"

namespace smd::transport::tcp {

// Not thread-safe: used with the right to make progress (tcp_transport.cc).
class Handshakes {
 public:
  using Clock = std::chrono::steady_clock;

  // How long a connection may take to send its 64 bytes.
  static constexpr std::chrono::milliseconds kTimeLimit = std::chrono::seconds(5);
  // Beyond the ranks of the group, all of which may connect at once.
  static constexpr std::size_t kStrangers = 64;

  // `poller` must outlive this.
  Handshakes(const Identity& self, const Poller& poller);

  // Waits for the hello of `socket`. If there are too many, the oldest goes: an honest opener sends
  // its hello at once, so the oldest is the one least likely to be honest.
  void add(FileDescriptor socket, Clock::time_point now);

  struct Accepted {
    FileDescriptor socket;  // still in the poller, under its old tag
    int rank = -1;
  };
  // Reads from connection `number`. A value once its hello is complete and right.
  std::optional<Accepted> read(std::uint64_t number);

  // Closes those that are over time.
  void expire(Clock::time_point now);
  void clear();
  bool isEmpty() const { return waiting_.empty(); }
  std::size_t count() const { return waiting_.size(); }

 private:
  struct Waiting {
    FileDescriptor socket;
    Clock::time_point deadline;
    std::array<std::byte, kHelloBytes> bytes;
    std::size_t filled = 0;
  };
  using Table = std::map<std::uint64_t, Waiting>;  // numbered in order of arrival

  Table::iterator drop(Table::iterator entry);

  const Identity self_;
  const Poller& poller_;
  Table waiting_;
  std::uint64_t nextNumber_ = 0;
};

}  // namespace smd::transport::tcp
