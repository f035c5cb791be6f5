// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The first exchange of every operation on one host: each rank publishes what it is about to do,
// all compare, and small data rides along.
#pragma once

#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

#include "algorithms/request.h"

namespace smd::algorithms {

using Bytes = std::span<const std::byte>;

template <class T>
Bytes bytesOf(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// Publishes this rank's arrival with the concatenation of `pieces` (at most kSlotBytes) as payload.
void arrive(const Context& context, std::span<const Bytes> pieces);
inline void arrive(const Context& context) { arrive(context, std::span<const Bytes>{}); }
inline void arrive(const Context& context, Bytes payload) {
  arrive(context, std::span<const Bytes>(&payload, 1));
}

// Here and below peers are positions on this host (ranks, if there is no other host).
// Payload of `bytes` bytes that `peer` published with its arrival. Valid until the next operation.
inline const std::byte* payloadOf(const Context& context, int peer, std::uint64_t bytes) {
  const std::uint64_t sequence = context.signature.sequence;
  return bytes <= transport::kInlineBytes ? context.memory->arrival(peer, sequence).payload
                                          : context.memory->slot(peer, sequence);
}

// Met when every rank of this host has arrived. Throws the mismatch error when signatures differ.
class AllArrived final : public Condition {
 public:
  explicit AllArrived(const Context& context) : context_(context) {}
  bool isMet() override;
  std::vector<int> missingRanks() override;

 private:
  const Context& context_;
  int next_ = 0;  // all ranks before it have arrived
};

}  // namespace smd::algorithms
