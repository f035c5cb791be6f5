// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What frames arrive in, for fuzzers of the ways they come: the real mailbox with a few receives,
// on a machine with little memory. It sees to it that a parser keeps the order of calls that the
// sink was promised.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include "transport/mailbox.h"

namespace smd::fuzz {

inline constexpr int kPeer = 1;

inline void require(bool isTrue) {
  if (!isTrue) std::abort();
}

// Answers go nowhere.
class Nowhere final : public transport::Transport {
 public:
  void send(int peer, const transport::FrameHeader& header, const void*,
            transport::SendTicket* ticket) override {
    require(peer == kPeer && header.length == 0 && ticket == nullptr);
  }
  void expect(int) override {}
  bool poll() override { return false; }
  void close(std::chrono::milliseconds, Ending) override {}
};

class Receiving final : public transport::FrameSink {
 public:
  Receiving() {
    mailbox_.setTransport(kPeer, &nowhere_);
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      transport::Receive& receive = receives_[i];
      receive.peer = (i & 1) != 0 ? kPeer : transport::kAnyPeer;
      receive.channel =
          (i & 2) != 0 ? transport::Channel::kCollective : transport::Channel::kPointToPoint;
      receive.tag = i & 1;
      receive.data = buffers_[i].data();
      receive.bytes = buffers_[i].size();
    }
  }

  // Of the four receives those whose bits are set.
  void post(unsigned which) {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      if ((which >> i & 1) != 0) mailbox_.post(receives_[i]);
    }
  }
  // Once nothing comes any more.
  void check() {
    require(!isOpen_);
    while (const auto message = mailbox_.takeMessage()) {
      require(message->source == kPeer && message->header.channel == transport::Channel::kMessage &&
              message->header.tag <= message->header.length);
    }
    for (transport::Receive& receive : receives_) {
      require(receive.isDone() || receive.state.load() == transport::Receive::State::kStreaming ||
              mailbox_.cancel(receive));
    }
  }
  bool isRefused() const { return isRefused_; }

  std::byte* frameBegin(transport::Stream from, const transport::FrameHeader& header) override {
    require(from.peer == kPeer && !isOpen_ && !isRefused_);
    if (header.length > kMemoryBytes) throw std::bad_alloc();
    std::byte* const place = mailbox_.frameBegin(from, header);
    isOpen_ = true;
    begun_ = header;
    return place;
  }
  void frameEnd(transport::Stream from, const transport::FrameHeader& header) override {
    require(isOpen_ && std::memcmp(&header, &begun_, sizeof(header)) == 0);
    isOpen_ = false;
    mailbox_.frameEnd(from, header);
  }
  void frameCancelled(transport::Stream from) noexcept override {
    require(isOpen_);
    isOpen_ = false;
    mailbox_.frameCancelled(from);
  }
  void frameRefused(int peer, const transport::Refusal& refusal) noexcept override {
    require(peer == kPeer && !isOpen_ && !isRefused_ && refusal.text().starts_with("it "));
    isRefused_ = true;
    mailbox_.frameRefused(peer, refusal);
  }
  void sendCompleted(int) override { std::abort(); }
  void linkFailed(int, const Error&) override { std::abort(); }

 private:
  static constexpr std::uint64_t kMemoryBytes = 1 << 16;

  Nowhere nowhere_;
  transport::Mailbox mailbox_{
      2,
      {[] {}, [](int, const Error&) {},
       [](int peer, const transport::FrameHeader& header, std::string_view text) {
         require(peer == kPeer && header.channel == transport::Channel::kControl &&
                 header.tag < transport::kNumControlTags && text.size() == header.length);
       },
       [](int, const transport::Refusal&) {}}};
  std::array<std::vector<std::byte>, 4> buffers_ = {
      std::vector<std::byte>(0), std::vector<std::byte>(1), std::vector<std::byte>(8),
      std::vector<std::byte>(300)};
  std::array<transport::Receive, 4> receives_;
  bool isOpen_ = false;
  bool isRefused_ = false;
  transport::FrameHeader begun_;
};

}  // namespace smd::fuzz
