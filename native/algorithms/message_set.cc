// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/message_set.h"

#include <algorithm>
#include <string>

#include "algorithms/mismatch.h"

namespace smd::algorithms {
namespace {

constexpr unsigned kStepBits = 24;

}  // namespace

MessageSet::MessageSet(const Context& context, std::uint64_t step, Polling polling)
    : context_(context),
      polling_(polling),
      tag_(context.signature.sequence << kStepBits |
           (step & ((std::uint64_t{1} << kStepBits) - 1))) {}

MessageSet::~MessageSet() {
  for (std::size_t i = nextReceive_; i < receives_.size(); ++i)
    context_.mailbox->cancel(receives_[i]);
  // An exception has ended the operation in the middle of this, and the wires are still open. A
  // transport will write to what it has the address of: better a leak, once, than that.
  if (isAnythingInFlight()) static_cast<void>(inFlight_.release());
}

bool MessageSet::isAnythingInFlight() const {
  using transport::Receive;
  using transport::SendTicket;
  if (context_.mailbox->isClosed()) return false;
  return std::ranges::any_of(receives_,
                             [](const Receive& receive) {
                               return receive.state.load(std::memory_order_acquire) ==
                                      Receive::State::kStreaming;
                             }) ||
         std::ranges::any_of(tickets_, [](const SendTicket& ticket) {
           return ticket.state() == SendTicket::State::kPending;
         });
}

void MessageSet::send(int peer, const std::byte* data, std::uint64_t bytes) {
  transport::FrameHeader header;
  header.length = bytes;
  header.tag = tag_;
  header.signature = context_.signature;
  header.channel = transport::Channel::kCollective;
  areAllElsewhere_ = areAllElsewhere_ && context_.mailbox->canWaitFor(peer);
  context_.mailbox->send(peer, header, data, &tickets_.emplace_back());
  sendPeers_.push_back(peer);
}

void MessageSet::receive(int peer, std::byte* data, std::uint64_t bytes) {
  areAllElsewhere_ = areAllElsewhere_ && context_.mailbox->canWaitFor(peer);
  transport::Receive& receive = receives_.emplace_back();
  receive.peer = peer;
  receive.channel = transport::Channel::kCollective;
  receive.tag = tag_;
  receive.data = data;
  receive.bytes = bytes;
  context_.mailbox->post(receive);
}

void MessageSet::check(const transport::Receive& receive) const {
  const Signature& theirs = receive.header.signature;
  if (!(theirs == context_.signature)) {
    throw mismatchError(context_.rank, context_.signature, receive.source, theirs);
  }
  if (receive.header.length != receive.bytes) {
    const std::uint64_t element = elementSize(context_.request.dtype);
    throw splitMismatchError(context_.signature, receive.source, receive.header.length / element,
                             context_.rank, receive.bytes / element);
  }
}

bool MessageSet::isMet() {
  using transport::SendTicket;
  if (polling_ == Polling::kByItself) context_.mailbox->poll();
  while (nextReceive_ < receives_.size() && receives_[nextReceive_].isDone()) {
    check(receives_[nextReceive_++]);
  }
  while (nextTicket_ < tickets_.size()) {
    const SendTicket::State state = tickets_[nextTicket_].state();
    if (state == SendTicket::State::kPending) break;
    if (state == SendTicket::State::kFailed) return false;  // the communicator learns why by itself
    ++nextTicket_;
  }
  return nextReceive_ == receives_.size() && nextTicket_ == tickets_.size();
}

std::vector<int> MessageSet::missingRanks() {
  std::vector<int> missing;
  for (const transport::Receive& receive : receives_) {
    if (!receive.isDone()) missing.push_back(receive.peer);
  }
  if (!missing.empty()) return missing;
  // Not every later one: who has been sent its message may be through with the operation, and gone.
  for (std::size_t i = nextTicket_; i < tickets_.size(); ++i) {
    if (tickets_[i].state() != transport::SendTicket::State::kSent) {
      missing.push_back(sendPeers_[i]);
    }
  }
  return missing;
}

}  // namespace smd::algorithms
