// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/one_host/arrival.h"

#include <sched.h>

#include "algorithms/mismatch.h"
#include "common/clock.h"
#include "common/futex.h"

namespace smd::algorithms {
namespace {

bool hasArrived(const Context& context, int peer) {
  const std::uint64_t sequence = context.signature.sequence;
  return context.memory->arrival(peer, sequence).sequence.load(std::memory_order_acquire) ==
         sequence;
}

bool haveAllArrived(const Context& context) {
  for (int peer = 0; peer < context.memory->size(); ++peer) {
    if (!hasArrived(context, peer)) return false;
  }
  return true;
}

}  // namespace

void arrive(const Context& context, std::span<const Bytes> pieces) {
  const transport::PeerMemory& memory = *context.memory;
  const std::uint64_t sequence = context.signature.sequence;
  transport::ArrivalLine& line = memory.arrival(memory.index(), sequence);
  std::uint64_t total = 0;
  for (const Bytes& piece : pieces) total += piece.size();
  std::byte* target =
      total <= transport::kInlineBytes ? line.payload : memory.slot(memory.index(), sequence);
  for (const Bytes& piece : pieces) {
    if (!piece.empty()) std::memcpy(target, piece.data(), piece.size());
    target += piece.size();
  }
  line.signature = context.signature;
  memory.mine().processor.store(sched_getcpu(), std::memory_order_relaxed);
  line.sequence.store(sequence, std::memory_order_release);
  // Nobody waits for fewer than all of them: only the last one has something to tell. Of two that
  // arrive at once at least one sees the other.
  fullFence();
  if (haveAllArrived(context)) memory.ringPeers();
}

bool AllArrived::isMet() {
  const int size = context_.memory->size();
  while (next_ < size) {
    if (!hasArrived(context_, next_)) return false;
    ++next_;
  }
  if (next_ > size) return true;
  ++next_;  // signatures are compared once
  const std::uint64_t sequence = context_.signature.sequence;
  for (int peer = 0; peer < size; ++peer) {
    if (context_.memory->arrival(peer, sequence).signature == context_.signature) continue;
    std::vector<Call> calls;
    for (int each = 0; each < size; ++each) {
      const auto purpose = purposeOn(context_.memory->cells(each).flight);
      calls.push_back({context_.rankAt(each), context_.memory->arrival(each, sequence).signature,
                       purpose ? purpose->of(sequence) : ""});
    }
    throw mismatchError(calls);
  }
  if (context_.arrivedNs != nullptr && *context_.arrivedNs == 0) {
    *context_.arrivedNs = nanoseconds(Clock::now().time_since_epoch()).count();
  }
  return true;
}

std::vector<int> AllArrived::missingRanks() {
  std::vector<int> missing;
  for (int peer = 0; peer < context_.memory->size(); ++peer) {
    if (!hasArrived(context_, peer)) missing.push_back(context_.rankAt(peer));
  }
  return missing;
}

}  // namespace smd::algorithms
