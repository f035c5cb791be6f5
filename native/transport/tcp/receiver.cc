// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/receiver.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace smd::transport::tcp {
namespace {

// One call reads no more than this straight into a payload, so that peers take turns.
constexpr std::uint64_t kMaxDirectBytes = std::uint64_t{1} << 20;
// Whatever follows a long payload may be another long one, which is better read to its place by
// the next call than copied there: room for its header, and a few small frames.
constexpr std::uint64_t kLongBytes = std::uint64_t{16} << 10;
constexpr std::size_t kBehindLong = 512;

}  // namespace

Receiver::Receiver(Connection connection, Stream from, std::string endpoint, const Proofs& proofs,
                   FrameSink& sink)
    : connection_(std::move(connection)),
      from_(from),
      endpoint_(std::move(endpoint)),
      proofs_(proofs),
      parser_(from, sink) {}

Receiver::Result Receiver::receive(std::size_t budget, std::span<std::byte> scratch) {
  Result result;
  while (result.bytes < budget) {
    // The rest of a payload goes straight to its place; whatever follows it (often a burst of small
    // frames) comes with the same call.
    const std::uint64_t direct = std::min(parser_.missing(), kMaxDirectBytes);
    const std::size_t behind = direct >= kLongBytes ? kBehindLong : scratch.size();
    const std::size_t extra = direct == parser_.missing() ? behind : 0;
    const std::array<iovec, 2> parts = {{{parser_.destination(), direct}, {scratch.data(), extra}}};
    const ssize_t got = connection_.read(parts);
    if (got < 0 && errno == EAGAIN) {
      break;
    }
    if (got <= 0) {
      const int error = got < 0 ? errno : 0;
      result.end = parser_.hasLeft()    ? leftInGoodOrder(endpoint_)
                   : error == ETIMEDOUT ? unanswered(endpoint_)
                                        : closedUnexpectedly(endpoint_, connection_.problem(error));
      break;
    }
    const auto bytes = static_cast<std::size_t>(got);
    result.bytes += bytes;
    hasReceived_ = true;
    const std::size_t placed = std::min<std::size_t>(bytes, direct);
    auto refusal = parser_.placed(placed);
    if (!refusal.has_value()) {
      refusal = parser_.consume(scratch.first(bytes - placed));
    }
    if (refusal.has_value()) {
      result.refusal = refusal;
      break;
    }
    if (bytes < direct + extra) {
      break;  // the socket is empty: no need to be told so by another call
    }
  }
  result.hasMore = !result.end.has_value() && !result.refusal.has_value() && connection_.hasMore();
  return result;
}

}  // namespace smd::transport::tcp
