// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Accepted connections that have not yet proved that they belong to this communicator. Anybody can
// reach a listening port: so these are bounded in number, bytes and time, and what they send is
// compared with what it has to be and otherwise thrown away.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/network.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/protocol.h"

namespace smd::transport::tcp {

// Not thread-safe: used with the right to make progress (transport.cc).
class Handshakes {
 public:
  using Clock = std::chrono::steady_clock;

  // How long a connection may take to introduce itself and to prove that it may.
  static constexpr std::chrono::milliseconds kTimeLimit = std::chrono::seconds(5);
  // Beyond the ranks of the group, all of which may connect at once.
  static constexpr std::size_t kStrangers = 64;

  // Why a connection was closed, for people ("it ..."). Empty if it went by itself without having
  // done anything wrong: there is nothing to tell then. `claimedRank`: that it said it is, proved
  // by nothing; -1 if it did not get so far.
  using OnRejection =
      std::function<void(const SocketAddress& stranger, int claimedRank, std::string_view reason)>;

  // `poller` must outlive this. `onRejection` is called from inside the functions below.
  Handshakes(const Identity& self, const Poller& poller, OnRejection onRejection);

  // Waits for the hello of `connection`, which comes from `stranger`. If there are too many, one
  // goes of the host that has most of them here, so that whoever floods this port pushes out his
  // own; of those first one without a hello, and of those the oldest: an honest opener is done at
  // once.
  void add(Connection connection, const SocketAddress& stranger, Clock::time_point now);

  struct Accepted {
    Connection connection;  // still in the poller, under its old tag
    SocketAddress stranger;
    Stream from = -1;
    Proofs proofs;  // the opener has given its own; the welcome is yet to be sent
  };
  // Reads from connection `number`, and answers. A value once it has proved to be a rank.
  std::optional<Accepted> read(std::uint64_t number);

  // Closes connection `number`, if it is still there.
  void refuse(std::uint64_t number, std::string_view reason);
  // Closes those that are over time.
  void expire(Clock::time_point now);
  void clear();
  bool isEmpty() const { return waiting_.empty(); }

 private:
  struct Waiting {
    Connection connection;
    bool isSecured = false;  // or in the clear
    SocketAddress stranger;
    std::string host;  // of the stranger
    Clock::time_point deadline;
    AcceptorHandshake handshake;
  };
  using Table = std::map<std::uint64_t, Waiting>;  // numbered in order of arrival

  Table::iterator leastPromising();

  // Takes it out of the table; its connection stays in the poller.
  Table::iterator remove(Table::iterator entry);
  // Whether TLS is through. If it has failed, the entry is gone.
  bool secure(Table::iterator entry);
  Table::iterator reject(Table::iterator entry, std::string_view reason);

  const Identity self_;
  const Poller& poller_;
  const OnRejection onRejection_;
  Table waiting_;
  std::map<std::string, std::size_t, std::less<>> waitingFrom_;  // by host; none is 0
  std::uint64_t nextNumber_ = 0;
};

}  // namespace smd::transport::tcp
