// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/point_to_point.h"

#include <string>

#include "common/error.h"

namespace smd::algorithms {
namespace {

class Sent final : public Condition {
 public:
  explicit Sent(const Context& context) : context_(context) {
    transport::FrameHeader header;
    header.length = context.request.count * elementSize(context.request.dtype);
    header.tag = context.signature.detail;
    header.signature = context.signature;
    header.channel = transport::Channel::kPointToPoint;
    context.mailbox->send(context.request.root, header, context.request.input, &ticket_);
  }
  bool isMet() override {
    if (ticket_.state() == transport::SendTicket::State::kSent) return true;
    context_.mailbox->poll();
    return ticket_.state() == transport::SendTicket::State::kSent;
  }
  std::vector<int> missingRanks() override { return {context_.request.root}; }

 private:
  const Context& context_;
  transport::SendTicket ticket_;
};

class Received final : public Condition {
 public:
  explicit Received(const Context& context) : context_(context) {
    receive_.peer = context.request.root;
    receive_.tag = context.signature.detail;
    receive_.data = context.request.output;
    receive_.bytes = context.request.count * elementSize(context.request.dtype);
    context.mailbox->post(receive_);
  }
  ~Received() override {
    if (!receive_.isDone()) context_.mailbox->cancel(receive_);
  }
  bool isMet() override {
    if (receive_.isDone()) return true;
    context_.mailbox->poll();
    return receive_.isDone();
  }
  std::vector<int> missingRanks() override {
    if (context_.request.root != transport::kAnyPeer) return {context_.request.root};
    if (receive_.isStreaming()) return {receive_.source};  // nobody else can send it now
    // Anyone's death may be why nobody sends.
    std::vector<int> others;
    for (int peer = 0; peer < context_.size; ++peer) {
      if (peer != context_.rank) others.push_back(peer);
    }
    return others;
  }
  bool abandon() override { return context_.mailbox->cancel(receive_); }
  const transport::Receive& receive() const { return receive_; }

 private:
  const Context& context_;
  transport::Receive receive_;
};

bool isByteSized(DType type) { return elementSize(type) == 1; }

}  // namespace

Task runSend(Context& context) {
  Sent sent(context);
  co_await sent;
}

Task runReceive(Context& context, std::function<void(int)> onSource) {
  Received received(context);
  co_await received;
  const transport::Receive& receive = received.receive();
  const Signature& theirs = receive.header.signature;
  const DType dtype = context.request.dtype;
  if (receive.header.length != receive.bytes ||
      (theirs.dtype != dtype && !(isByteSized(theirs.dtype) && isByteSized(dtype)))) {
    throw Error(
        ErrorKind::kMismatch,
        "rank " + std::to_string(receive.source) + " sent " + std::string(name(theirs.dtype)) +
            " x " + std::to_string(theirs.count) + " (tag " + std::to_string(theirs.detail) +
            "); expected " + std::string(name(dtype)) + " x " +
            std::to_string(context.request.count) +
            ". Pass tensors of one dtype and size to send and recv, or use different tags.");
  }
  onSource(receive.source);
}

}  // namespace smd::algorithms
