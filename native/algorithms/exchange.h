// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A set of messages that an operation sends and awaits together.
#pragma once

#include <deque>
#include <vector>

#include "algorithms/request.h"

namespace smd::algorithms {

// co_await exchange; continues when all its messages have been sent and received. Throws on a frame
// whose signature or length is not the expected one. Ends with what is posted taken back; if a
// frame is in flight then, the communicator must have closed its transports first (it does, on
// failure).
class Exchange final : public Condition {
 public:
  // `step` keeps the phases of one operation apart; both sides must use the same.
  Exchange(const Context& context, std::uint64_t step);
  ~Exchange() override;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void send(int peer, const std::byte* data, std::uint64_t bytes);
  void receive(int peer, std::byte* data, std::uint64_t bytes);

  bool isMet() override;
  std::vector<int> missingRanks() override;

 private:
  void check(const transport::Receive& receive) const;

  const Context& context_;
  std::uint64_t tag_;
  // Deques: elements stay where they are.
  std::deque<transport::Receive> receives_;
  std::deque<transport::SendTicket> tickets_;
  std::vector<int> sendPeers_;
  std::size_t nextReceive_ = 0;
  std::size_t nextTicket_ = 0;
};

}  // namespace smd::algorithms
