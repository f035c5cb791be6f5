// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Whatever a peer sends once it is let in: every frame lands whole and in bounds, in a receive,
// among those kept for later or in the engine's ear; or nothing more is taken, with a reason.
//
// Input: one byte that says which receives are posted, then the peer's bytes, cut into pieces by
// their own values; some go through consume(), some straight into their place, as in the receiver.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "receiving.h"
#include "transport/frame_parser.h"

using smd::fuzz::kPeer;
using smd::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  smd::fuzz::Receiving sink;
  sink.post(data[0] & 0xFU);
  smd::transport::FrameParser parser(kPeer, sink);
  auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  bool isWrong = false;
  while (!bytes.empty()) {
    const auto cut = std::to_integer<std::size_t>(bytes.front());
    std::size_t part = std::min<std::size_t>(bytes.size(), 1 + cut);
    if (parser.missing() > 0 && (cut & 1) != 0) {
      part = std::min<std::uint64_t>(part, parser.missing());
      std::memcpy(parser.destination(), bytes.data(), part);
      require(!parser.placed(part).has_value());
    } else {
      const auto refusal = parser.consume(bytes.first(part));
      require(refusal.has_value() || !isWrong);  // once refused, always refused
      isWrong = refusal.has_value();
      require(!isWrong || refusal->text().starts_with("it "));
    }
    bytes = bytes.subspan(part);
  }
  sink.post(~static_cast<unsigned>(data[0]) & 0xFU);  // those find what has come already
  parser.cancel();
  sink.check();
  return 0;
}
