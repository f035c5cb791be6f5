// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// all_reduce of buffers that all ranks can reach. Words:
//   place   where in its owner's arena a buffer begins, published with the arrival
//   share   the part of the buffer that one rank reduces (patterns::shareOf)
//   piece   what of its share a rank reduces at a time, small enough to stay in its cache
//
// Each rank waits for all to arrive, reduces its share in rank order straight from all ranks'
// buffers, and writes the result straight into all of them: S bytes read and S written per rank,
// for any number of ranks (staged: 3 S - 2 S/n read, 2 S written). Nobody returns before all shares
// are done.
//
// Between two waits (all arrived, all done) ranks do not hear from each other. The second one uses
// the counters of staged operations, and counts as one round of theirs, so the two kinds may follow
// each other.
//
// What makes it safe to write into a peer's buffer: the peer is in this operation, and cannot leave
// it before this rank has told that its share is done, except with an error; and then it withdraws
// its buffers first (PeerMemory::withdrawBuffers), which is looked at before every piece.
#include <algorithm>
#include <string>

#include "algorithms/arrival.h"
#include "kernels/kernels.h"
#include "patterns/shares.h"

namespace smd::algorithms {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kCacheLine = 64;

// Met when every rank, this one included, has told that its share is done.
class AllReduced final : public Condition {
 public:
  AllReduced(const Context& context, std::uint64_t round) : context_(context), round_(round) {}

  bool isMet() override {
    while (next_ < context_.size && isReduced(next_)) ++next_;
    return next_ == context_.size;
  }
  std::vector<int> missingRanks() override {
    std::vector<int> missing;
    for (int peer = 0; peer < context_.size; ++peer) {
      if (peer != context_.rank && !isReduced(peer)) missing.push_back(peer);
    }
    return missing;
  }

 private:
  bool isReduced(int peer) const {
    return context_.memory->cells(peer).reduced.load(std::memory_order_acquire) >= round_;
  }

  const Context& context_;
  const std::uint64_t round_;
  int next_ = 0;  // all ranks before it are done
};

std::uint64_t bytesOf(const Request& request) { return request.count * elementSize(request.dtype); }

// Every rank's buffer; empty if one of them is not shared.
std::vector<std::byte*> findBuffers(const Context& context) {
  const transport::PeerMemory& memory = *context.memory;
  std::vector<std::byte*> buffers;
  for (int peer = 0; peer < context.size; ++peer) {
    const BufferPlace place = placeOf(context, peer);
    if (place == 0) return {};
    if (!memory.isInArena(place - 1, bytesOf(context.request))) {
      throw Error(ErrorKind::kInternal,
                  "rank " + std::to_string(peer) + " offers a shared buffer of " +
                      std::to_string(bytesOf(context.request)) + " bytes at " +
                      std::to_string(place - 1) + "; expected it to lie within an arena of " +
                      std::to_string(memory.arenaBytes()) +
                      " bytes. All ranks must run the same release.");
    }
    buffers.push_back(memory.arena(peer) + (place - 1));
  }
  return buffers;
}

// Returns whether it got to the end; false: a rank has withdrawn its buffers.
bool reduceShare(const Context& context, const std::vector<std::byte*>& buffers) {
  const Request& request = context.request;
  const transport::PeerMemory& memory = *context.memory;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t unit = std::max<std::uint64_t>(1, kCacheLine / element);
  const kernels::ReduceFn kernel = kernels::reduceOrThrow(request.op, request.dtype);
  const patterns::Range share = patterns::shareOf(request.count, context.size, context.rank, unit);
  const std::uint64_t perPiece = kPieceBytes / element;
  const auto bufferAfter = [&](int step) {
    return buffers[static_cast<std::size_t>((context.rank + step) % context.size)];
  };
  std::vector<const void*> sources(buffers.size());
  for (std::uint64_t round = 0; round < patterns::numPieces(share.size, perPiece); ++round) {
    const patterns::Range piece = patterns::pieceOf(share.size, perPiece, round);
    const std::uint64_t at = (share.begin + piece.begin) * element;
    std::transform(buffers.begin(), buffers.end(), sources.begin(),
                   [at](const std::byte* buffer) { return buffer + at; });
    std::byte* mine = bufferAfter(0) + at;
    if (!memory.beginWritingToPeers()) return false;
    kernel(mine, bufferAfter(1) + at, sources.data(), sources.size(), piece.size, context.size);
    for (int step = 2; step < context.size; ++step) {
      kernels::copy(bufferAfter(step) + at, mine, piece.size * element);
    }
    memory.endWritingToPeers();
  }
  return true;
}

}  // namespace

bool hasSharedBuffer(const Context& context) {
  const Request& request = context.request;
  return request.kind == OpKind::kAllReduce && context.memory != nullptr &&
         context.memory->arenaBytes() != 0 && request.input == request.output &&
         context.memory->offsetInArena(request.output, bytesOf(request)).has_value();
}

Task runShared(Context& context) {
  const transport::PeerMemory& memory = *context.memory;
  arriveWithPlace(context,
                  *memory.offsetInArena(context.request.output, bytesOf(context.request)) + 1);
  AllArrived allArrived(context);
  co_await allArrived;
  const std::vector<std::byte*> buffers = findBuffers(context);
  if (buffers.empty()) {
    Task staged = runStagedAfterArrival(context);
    Nested nested(staged);
    co_await nested;
    co_return;
  }
  context.isInPlace = true;
  const std::uint64_t round = *context.blocksDone + 1;
  if (reduceShare(context, buffers)) {
    transport::RankCells& mine = memory.mine();
    mine.contributed.store(round, std::memory_order_release);
    mine.consumed.store(round, std::memory_order_release);
    mine.reduced.store(round, std::memory_order_release);
    memory.ringPeers();
  }  // else it is never met: the group is failing, and its driver is about to find out
  AllReduced allReduced(context, round);
  co_await allReduced;
  *context.blocksDone = round;
}

}  // namespace smd::algorithms
