// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations on buffers that all ranks can reach. Words:
//   place   where in its owner's arena a buffer begins, published with the arrival
//   share   the part of a buffer that one rank reduces (step_tables::shareOf)
//   piece   what a rank moves at a time (kPieceBytes)
//
// A rank contributes if peers read a buffer of its own. Every contributor publishes the place of
// its buffer, if it lies in its arena; all wait for all to arrive, and so know alike whether all
// places are there. (The other ranks of a broadcast publish places too, of their outputs, which may
// be missing.) If they are, each rank does its part at once: shared_reduce.cc reduces in
// place, shared_pull.cc reads from the inputs. If one is missing the operation is staged: a
// contributor without a place has begun with that already, the others join in.
//
// Between two waits (all arrived, all done) ranks do not hear from each other. Nobody returns while
// a peer still needs its buffer. The second wait uses the counters of staged operations, and counts
// as one round of theirs, so the two kinds may follow each other.
//
// What makes it safe to read from a peer's buffer, and to write into it: the peer is in this
// operation, and cannot leave it before this rank has told that it is done, except with an error;
// and then it withdraws its buffers first (PeerMemory::withdrawBuffers), which is looked at before
// every piece. It does not wait for a peer that is stopped in the middle of a piece. That peer,
// when it goes on, reads what is no longer the operation's input: harmless, because it looks once
// more at the end and then does not take its result for one. What it writes does not reach the
// owner any more: the buffer that is exposed to writers is replaced by a private copy then
// (exposed_buffer.h), and arenas of a failed group are not used again (transport/shm/arena.h).
#include "algorithms/one_host/shared.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "algorithms/one_host/announcement.h"

namespace smd::algorithms {
namespace {

// Met when ranks [begin, end) have told that they are done.
class Done final : public Condition {
 public:
  Done(const Context& context, std::uint64_t round, int begin, int end)
      : context_(context), round_(round), begin_(begin), end_(end), next_(begin) {}

  bool isMet() override {
    while (next_ < end_ && isDone(next_)) ++next_;
    return next_ == end_;
  }
  std::vector<int> missingRanks() override {
    std::vector<int> missing;
    for (int peer = begin_; peer < end_; ++peer) {
      if (peer != context_.rank && !isDone(peer)) missing.push_back(peer);
    }
    return missing;
  }

 private:
  bool isDone(int peer) const {
    return context_.memory->cells(peer).reduced.load(std::memory_order_acquire) >= round_;
  }

  const Context& context_;
  const std::uint64_t round_;
  const int begin_;
  const int end_;
  int next_;  // those before it are done
};

bool isReducedInPlace(OpKind kind) { return kind == OpKind::kAllReduce || kind == OpKind::kReduce; }

bool hasParts(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll || kind == OpKind::kScatter;
}

bool contributes(const Context& context, int rank) {
  switch (context.request.kind) {
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return rank == context.request.root;
    case OpKind::kGather:
      return rank != context.request.root;
    default:
      return true;
  }
}

std::uint64_t sumOf(const std::vector<std::uint64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

// Bytes of the buffer that `peer` contributes. After all have arrived.
std::uint64_t contributedBytes(const Context& context, int peer) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const Splits splits(context);
  switch (request.kind) {
    case OpKind::kAllGather:
      return request.outputCount(peer) * element;
    case OpKind::kReduceScatter:
      return sumOf(request.inputCounts) * element;
    case OpKind::kGather:
      return splits.offered(peer, request.root) * element;
    case OpKind::kScatter:
    case OpKind::kAllToAll:
      return splits.offeredBefore(peer, context.size) * element;
    default:
      return request.count * element;
  }
}

// What peers may use, in one piece: this rank's input, or its output away from a broadcast's root.
// Nothing if its parts do not lie one behind the other.
std::optional<Bytes> bufferOf(const Request& request, bool contributes) {
  const std::uint64_t element = elementSize(request.dtype);
  if (!hasParts(request.kind)) {
    const bool isInput = contributes && request.fragments.empty();
    return Bytes(isInput ? request.input : request.output, request.count * element);
  }
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (std::size_t peer = 0; peer < request.inputs.size(); ++peer) {
    if (request.inputCounts[peer] == 0) continue;
    if (begin == nullptr) begin = end = request.inputs[peer];
    if (request.inputs[peer] != end) return std::nullopt;
    end += request.inputCounts[peer] * element;
  }
  return Bytes(begin, end);
}

// Whether peers can read `input` while this rank writes its output: they do not overlap, or where
// they do is this rank's own part, in its place.
bool isLeftAlone(const Context& context, Bytes input) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const auto own = static_cast<std::size_t>(context.rank);
  const std::byte* ownPart = hasParts(request.kind) ? request.inputs[own] : request.input;
  const auto isClear = [&](const std::byte* output, std::uint64_t count, bool isOwn) {
    return (isOwn && output == ownPart) || !overlap(input, Bytes(output, count * element));
  };
  if (request.kind == OpKind::kReduceScatter || request.kind == OpKind::kScatter) {
    return isClear(request.output, request.count, true);
  }
  for (std::size_t peer = 0; peer < request.outputs.size(); ++peer) {
    if (!isClear(request.outputs[peer], request.outputCounts[peer], peer == own)) return false;
  }
  return true;
}

// Of the buffer that this rank contributes or, away from the root of a broadcast, fills.
BufferPlace ownPlace(const Context& context) {
  const Request& request = context.request;
  const bool isContributor = contributes(context, context.rank);
  if (!isContributor && request.kind != OpKind::kBroadcast) return kNoPlace;
  const std::optional<Bytes> buffer = bufferOf(request, isContributor);
  if (!buffer) return kNoPlace;
  if (buffer->empty()) return 1;  // nobody will look there
  if (isReducedInPlace(request.kind)) {
    const bool isOutput = request.kind == OpKind::kAllReduce || context.rank == request.root;
    const bool isElsewhere = request.fragments.empty() && request.input != request.output;
    if (isOutput && isElsewhere) return kNoPlace;
  } else if (isContributor && !isLeftAlone(context, *buffer)) {
    return kNoPlace;
  }
  const auto offset = context.memory->offsetInArena(buffer->data(), buffer->size());
  return offset ? *offset + 1 : kNoPlace;
}

// Every contributor's buffer, and those outputs of a broadcast that are shared; empty if the buffer
// of a contributor is not.
SharedBuffers findBuffers(const Context& context) {
  const transport::PeerMemory& memory = *context.memory;
  SharedBuffers buffers(static_cast<std::size_t>(context.size), nullptr);
  for (int peer = 0; peer < context.size; ++peer) {
    const BufferPlace place = placeOf(context, peer);
    if (place == kNoPlace) {
      if (contributes(context, peer)) return {};
      continue;
    }
    const std::uint64_t bytes = contributedBytes(context, peer);
    if (!memory.isInArena(place - 1, bytes)) {
      throw Error(ErrorKind::kInternal, "rank " + std::to_string(peer) +
                                            " offers a shared buffer of " + std::to_string(bytes) +
                                            " bytes at " + std::to_string(place - 1) +
                                            "; expected it to lie within an arena of " +
                                            std::to_string(memory.arenaBytes()) +
                                            " bytes. All ranks must run the same release.");
    }
    buffers[static_cast<std::size_t>(peer)] = memory.arena(peer) + (place - 1);
  }
  return buffers;
}

// Who must be done before this rank may go. Its own part counts: if it was broken off, the rank
// waits for its driver to find out why.
Done doneBeforeReturn(const Context& context, std::uint64_t round, bool isUsedByPeers) {
  if (!isUsedByPeers) {
    return Done(context, round, context.rank, context.rank + 1);
  }
  if (context.request.kind == OpKind::kGather) {  // only the root reads
    return Done(context, round, context.request.root, context.request.root + 1);
  }
  return Done(context, round, 0, context.size);
}

// What peers write to: the buffer of an all_reduce, at the root of a reduce, and away from that of
// a broadcast. The others are read only.
std::span<std::byte> writtenByPeers(const Context& context, BufferPlace place) {
  const Request& request = context.request;
  const bool isRoot = context.rank == request.root;
  const bool isWritten = request.kind == OpKind::kAllReduce ||
                         (request.kind == OpKind::kReduce && isRoot) ||
                         (request.kind == OpKind::kBroadcast && !isRoot);
  if (place == kNoPlace || !isWritten) return {};
  return {context.memory->arena(context.memory->index()) + (place - 1),
          request.count * elementSize(request.dtype)};
}

}  // namespace

bool mayShareBuffers(const Context& context) {
  return context.memory != nullptr && context.memory->arenaBytes() != 0 &&
         (!contributes(context, context.rank) || ownPlace(context) != kNoPlace);
}

Task runShared(Context& context) {
  const transport::PeerMemory& memory = *context.memory;
  const BufferPlace place = ownPlace(context);
  if (place != kNoPlace && !context.request.fragments.empty()) bringFragments(context);
  if (context.exposed != nullptr) context.exposed->set(writtenByPeers(context, place));
  announce(context, place);
  AllArrived allArrived(context);
  co_await allArrived;
  if (hasSplits(context.request.kind)) Splits(context).check();
  const SharedBuffers buffers = findBuffers(context);
  if (buffers.empty()) {
    Task staged = runStagedAfterArrival(context);
    Nested nested(staged);
    co_await nested;
    co_return;
  }
  context.isInPlace = true;
  const std::uint64_t round = *context.blocksDone + 1;
  if (isReducedInPlace(context.request.kind) ? reduceInPlace(context, buffers)
                                             : pull(context, buffers)) {
    transport::RankCells& mine = memory.mine();
    mine.contributed.store(round, std::memory_order_release);
    mine.consumed.store(round, std::memory_order_release);
    mine.reduced.store(round, std::memory_order_release);
    memory.ringPeers();
  }
  const bool isUsedByPeers = buffers[static_cast<std::size_t>(context.rank)] != nullptr;
  Done done = doneBeforeReturn(context, round, isUsedByPeers);
  co_await done;
  if (context.exposed != nullptr) context.exposed->set({});
  *context.blocksDone = round;
}

}  // namespace smd::algorithms
