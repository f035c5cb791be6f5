// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Whatever a peer of this host writes into its ring, counters included: what frames_fuzz.cc asks
// for, through the real ring, whose end comes in the middle of anything.
//
// Input: one byte that says which receives are posted, two bytes for where in the ring it begins,
// then pieces: a byte that says how many bytes are written before the receiver looks, and those.
// kSpoils: eight bytes that are added to a counter instead.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "receiving.h"
#include "transport/shm/factory.h"

namespace {

namespace shm = smd::transport::shm;
using smd::fuzz::kPeer;
using smd::fuzz::require;

constexpr std::uint8_t kSpoilsWritten = 0xFF;
constexpr std::uint8_t kSpoilsRead = 0xFE;

// One for all inputs: to make one takes longer than to read an input.
const std::shared_ptr<shm::Region>& region() {
  static const std::shared_ptr<shm::Region> instance = shm::Region::create(2);
  return instance;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) {
    return 0;
  }
  shm::RingControl& control = region()->ringControl(kPeer, 0);
  std::byte* ring = region()->ringData(kPeer, 0);
  std::uint64_t written = shm::kRingBytes - (std::uint64_t{data[1]} << 8 | data[2]);
  control.written = written;
  control.read = written;

  smd::fuzz::Receiving sink;
  sink.post(data[0] & 0xFU);
  const auto receiver = shm::createTransport(region(), 0, {0, kPeer}, sink);
  auto bytes = std::as_bytes(std::span(data, size)).subspan(3);
  while (!bytes.empty()) {
    const auto piece = std::to_integer<std::uint8_t>(bytes.front());
    bytes = bytes.subspan(1);
    const std::size_t wanted = piece >= kSpoilsRead ? sizeof(std::uint64_t) : piece;
    const auto part = bytes.first(std::min(bytes.size(), wanted));
    bytes = bytes.subspan(part.size());
    if (piece >= kSpoilsRead) {
      std::uint64_t stray = 0;
      std::memcpy(&stray, part.data(), part.size());
      (piece == kSpoilsWritten ? control.written : control.read) += stray;
    } else {
      for (const std::byte each : part) ring[written++ % shm::kRingBytes] = each;
      control.written += part.size();
    }
    const bool wasRefused = sink.isRefused();
    receiver->poll();
    require(!wasRefused || sink.isRefused());
  }
  receiver->catchUp();
  sink.post(~static_cast<unsigned>(data[0]) & 0xFU);
  receiver->close(std::chrono::milliseconds(0));
  sink.check();
  return 0;
}
