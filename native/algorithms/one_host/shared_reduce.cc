// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// all_reduce and reduce of shared buffers: each rank reduces its share in rank order straight from
// all ranks' buffers, and writes the result straight into all of them, or the root's. An all_reduce
// of S bytes reads S and writes S per rank, for any number of ranks (staged: 3 S - 2 S/n and 2 S).
// Of an input in fragments what peers read, all but this rank's share, is copied into the output
// before the ranks meet.
//
// Tried and left out, 2 ranks, 25 MiB, best of 30 on a busy machine, where this and plain loops
// without any waiting took 1.8 ms: streaming stores (kernels/stream.h) into peers' buffers 2.5 ms,
// into all 3.3 ms. Each line that is written has just been read, so there is nothing to save.
// Pieces of 16 KiB to 1 MiB made no difference.
#include <algorithm>

#include "algorithms/fragments.h"
#include "algorithms/one_host/shared.h"
#include "kernels/kernels.h"
#include "step_tables/shares.h"

namespace smd::algorithms {
namespace {

// Where results go: this rank's own buffer first, so that it is written while in the cache.
SharedBuffers targetsOf(const Context& context, const SharedBuffers& buffers) {
  if (context.request.kind == OpKind::kReduce) {
    return {buffers[static_cast<std::size_t>(context.request.root)]};
  }
  SharedBuffers targets = buffers;
  std::ranges::rotate(targets, targets.begin() + context.rank);
  return targets;
}

// The elements that this rank reduces.
step_tables::Range shareOf(const Context& context) {
  const std::uint64_t element = elementSize(context.request.dtype);
  const std::uint64_t unit = std::max<std::uint64_t>(1, kCacheLine / element);
  return step_tables::shareOf(context.request.count, context.size, context.rank, unit);
}

}  // namespace

void bringFragments(const Context& context) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const step_tables::Range share = shareOf(context);
  const std::uint64_t after = (share.begin + share.size) * element;
  const Input input(request);
  input.copy(request.output, 0, share.begin * element);
  input.copy(request.output + after, after, request.count * element - after);
}

bool reduceInPlace(const Context& context, const SharedBuffers& buffers) {
  const Request& request = context.request;
  const transport::PeerMemory& memory = *context.memory;
  const std::uint64_t element = elementSize(request.dtype);
  const kernels::ReduceFn kernel = kernels::reduceOrThrow(request.op, request.dtype);
  const step_tables::Range share = shareOf(context);
  const std::uint64_t perPiece = kPieceBytes / element;
  const SharedBuffers targets = targetsOf(context, buffers);
  const auto own = static_cast<std::size_t>(context.rank);
  std::vector<const void*> sources(buffers.size());
  for (std::uint64_t round = 0; round < step_tables::numPieces(share.size, perPiece); ++round) {
    const step_tables::Range piece = step_tables::pieceOf(share.size, perPiece, round);
    const std::uint64_t at = (share.begin + piece.begin) * element;
    std::ranges::transform(buffers, sources.begin(),
                           [at](const std::byte* buffer) { return buffer + at; });
    if (!request.fragments.empty()) {
      sources[own] = Input(request).read(at, piece.size * element, buffers[own] + at);
    }
    if (!memory.beginUsingPeers()) return false;
    kernel(targets[0] + at, targets.size() > 1 ? targets[1] + at : nullptr, sources.data(),
           sources.size(), piece.size, context.size);
    for (std::size_t i = 2; i < targets.size(); ++i) {
      kernels::copy(targets[i] + at, targets[0] + at, piece.size * element);
    }
    memory.endUsingPeers();
  }
  return !memory.haveWithdrawn();
}

}  // namespace smd::algorithms
