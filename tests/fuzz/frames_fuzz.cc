// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Whatever a peer sends once it is let in: every frame lands whole and in bounds, in a receive,
// among those kept for later or in the engine's ear; or the link ends with a reason.
//
// Input: one byte that says which receives are posted, then the peer's bytes, cut into pieces by
// their own values; some go through consume(), some straight into their place, as in the receiver.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include "transport/mailbox.h"
#include "transport/tcp/frame_parser.h"

namespace {

using smd::Error;
using smd::transport::Channel;
using smd::transport::FrameHeader;
using smd::transport::Mailbox;
using smd::transport::Receive;
using smd::transport::Stream;

constexpr int kPeer = 1;

void require(bool isTrue) {
  if (!isTrue) std::abort();
}

// The mailbox, on a machine with little memory. It also sees to it that the parser keeps the order
// of calls that the sink was promised.
class SmallMemory final : public smd::transport::FrameSink {
 public:
  explicit SmallMemory(Mailbox& mailbox) : mailbox_(mailbox) {}

  std::byte* frameBegin(Stream from, const FrameHeader& header) override {
    require(from.peer == kPeer && !isOpen_);
    if (header.length > kMemoryBytes) throw std::bad_alloc();
    isOpen_ = true;
    begun_ = header;
    return mailbox_.frameBegin(from, header);
  }
  void frameEnd(Stream from, const FrameHeader& header) override {
    require(isOpen_ && std::memcmp(&header, &begun_, sizeof(header)) == 0);
    isOpen_ = false;
    mailbox_.frameEnd(from, header);
  }
  void sendCompleted(int) override { std::abort(); }
  void linkFailed(int, const Error&) override { std::abort(); }

 private:
  static constexpr std::uint64_t kMemoryBytes = 1 << 16;

  Mailbox& mailbox_;
  bool isOpen_ = false;
  FrameHeader begun_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  Mailbox mailbox(2, {[] {}, [](int, const Error&) {},
                      [](int peer, const FrameHeader& header, std::string_view text) {
                        require(peer == kPeer && header.channel == Channel::kControl &&
                                text.size() == header.length);
                      }});
  std::array<std::vector<std::byte>, 4> buffers = {
      std::vector<std::byte>(0), std::vector<std::byte>(1), std::vector<std::byte>(8),
      std::vector<std::byte>(300)};
  std::array<Receive, 4> receives;
  for (std::size_t i = 0; i < receives.size(); ++i) {
    receives[i].peer = (i & 1) != 0 ? kPeer : smd::transport::kAnyPeer;
    receives[i].channel = (i & 2) != 0 ? Channel::kCollective : Channel::kPointToPoint;
    receives[i].tag = i & 1;
    receives[i].data = buffers[i].data();
    receives[i].bytes = buffers[i].size();
  }
  const auto post = [&](unsigned which) {
    for (std::size_t i = 0; i < receives.size(); ++i) {
      if ((which >> i & 1) != 0) mailbox.post(receives[i]);
    }
  };
  post(data[0] & 0xFU);

  SmallMemory sink(mailbox);
  smd::transport::tcp::FrameParser parser(kPeer, sink);
  auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  bool isWrong = false;
  while (!bytes.empty() && !isWrong) {
    const auto cut = std::to_integer<std::size_t>(bytes.front());
    std::size_t part = std::min<std::size_t>(bytes.size(), 1 + cut);
    if (parser.missing() > 0 && (cut & 1) != 0) {
      part = std::min<std::uint64_t>(part, parser.missing());
      std::memcpy(parser.destination(), bytes.data(), part);
      parser.placed(part);
    } else {
      const auto reason = parser.consume(bytes.first(part));
      isWrong = reason.has_value();
      require(!isWrong || reason->starts_with("it "));
    }
    bytes = bytes.subspan(part);
  }
  post(~static_cast<unsigned>(data[0]) & 0xFU);  // those find what has come already
  while (const auto message = mailbox.takeMessage()) {
    require(message->source == kPeer && message->header.channel == Channel::kMessage);
  }
  for (Receive& receive : receives) {
    require(receive.isDone() || receive.state.load() == Receive::State::kStreaming ||
            mailbox.cancel(receive));
  }
  return 0;
}
