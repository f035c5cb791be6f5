// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A set of messages that an operation sends and awaits together.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "algorithms/request.h"

namespace smd::algorithms {

// co_await messages; continues when all its messages have been sent and received. Throws on a frame
// whose signature or length is not the expected one. Ends with what is posted taken back; if a
// frame is in flight then, its buffer must stay until the communicator has closed its transports
// (it does, on failure).
class MessageSet final : public Condition {
 public:
  // What makes the transports move bytes: every look at isMet(), or the owner of several sets that
  // are under way.
  enum class Polling { kByItself, kByOwner };
  // `step` keeps the phases of one operation apart; both sides must use the same. Below 2^24.
  MessageSet(const Context& context, std::uint64_t step, Polling polling = Polling::kByItself);
  ~MessageSet() override;
  MessageSet(const MessageSet&) = delete;
  MessageSet& operator=(const MessageSet&) = delete;

  void send(int peer, const std::byte* data, std::uint64_t bytes);
  void receive(int peer, std::byte* data, std::uint64_t bytes);

  bool isMet() override;
  std::vector<int> missingRanks() override;
  bool awaitsOtherHosts() const override { return areAllElsewhere_; }

 private:
  void check(const transport::Receive& receive) const;

  const Context& context_;
  const Polling polling_;
  std::uint64_t tag_;
  // What transports know the addresses of. Elements of deques stay where they are.
  struct InFlight {
    std::deque<transport::Receive> receives;
    std::deque<transport::SendTicket> tickets;
  };
  bool isAnythingInFlight() const;

  std::unique_ptr<InFlight> inFlight_ = std::make_unique<InFlight>();
  std::deque<transport::Receive>& receives_ = inFlight_->receives;
  std::deque<transport::SendTicket>& tickets_ = inFlight_->tickets;
  std::vector<int> sendPeers_;
  std::size_t nextReceive_ = 0;
  std::size_t nextTicket_ = 0;
  bool areAllElsewhere_ = true;
};

}  // namespace smd::algorithms
