// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Large buffers on one host, through the stages of block_pipeline.h. Operations use those that they
// need (a piece is the part of a block that is meant for one peer):
//
//   all_reduce, reduce         contribute others' shares | reduce own share | consume others'
//                              results
//   reduce_scatter             contribute pieces         | reduce own piece
//   all_gather, broadcast      contribute block          |                  | consume
//   gather, scatter, all_to_all  contribute block/pieces |                  | consume
//
// For an all_reduce of S bytes over n ranks each rank copies (n-1)/n S in, reads (n-1)/n S to
// reduce, writes S/n twice and copies (n-1)/n S out.
#include <algorithm>
#include <cstring>

#include "algorithms/fragments.h"
#include "algorithms/one_host/announcement.h"
#include "algorithms/one_host/block_pipeline.h"
#include "kernels/kernels.h"
#include "step_tables/shares.h"

namespace smd::algorithms {
namespace {

using step_tables::pieceOf;
using step_tables::Range;
using step_tables::shareOf;

// Trials on two cores (Zen 3, 512 KiB of cache each, 32 MiB shared), 2 ranks, 1 and 25 MiB: blocks
// of 128 KiB 62 us and 2.1 ms, 64 KiB 66 us and 2.2 ms, 32 KiB 78 us and 2.3 ms. Fewer blocks are
// slower: a line is dear to write again while the peer that read it still has it in its cache.
constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;
constexpr std::uint64_t kCacheLine = 64;
constexpr Stages kInBlocks{.blockBytes = kBlockBytes};

std::uint64_t maxOf(const std::vector<std::uint64_t>& counts) {
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

void copyBytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes != 0) kernels::copy(to, from, bytes);
}
// The caller's own part: its input may already be where the output is.
void copyOwn(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

// all_reduce and reduce.
Task reduceInBlocks(Context& context) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t perBlock = kBlockBytes / element;
  const std::uint64_t unit = std::max<std::uint64_t>(1, kCacheLine / element);
  const bool hasOutput = request.kind == OpKind::kAllReduce || context.rank == request.root;
  Stages stages = kInBlocks;
  stages.rounds = step_tables::numPieces(request.count, perBlock);
  stages.reduces = true;
  stages.consumes = hasOutput;
  stages.consumesResults = true;
  const kernels::ReduceFn kernel = kernels::reduceOrThrow(request.op, request.dtype);

  struct Shares {
    std::uint64_t first;  // element of the buffer where the block begins
    Range mine;           // elements within the block
    std::uint64_t size;   // elements of the block
  };
  const auto sharesOf = [&context, &request, perBlock, unit](std::uint64_t round) {
    const Range block = pieceOf(request.count, perBlock, round);
    return Shares{block.begin, shareOf(block.size, context.size, context.rank, unit), block.size};
  };
  return runPipeline(
      context, stages,
      [&context, &request, sharesOf, element](Pipeline& pipeline) {
        return [&context, &request, &pipeline, sharesOf, element](std::uint64_t round) {
          const Shares shares = sharesOf(round);
          const Input input(request);
          std::byte* target = pipeline.block(context.rank, round);
          const std::uint64_t after = shares.mine.begin + shares.mine.size;
          input.copy(target, shares.first * element, shares.mine.begin * element);
          input.copy(target + after * element, (shares.first + after) * element,
                     (shares.size - after) * element);
        };
      },
      [&context, &request, sharesOf, element, kernel, hasOutput](Pipeline& pipeline) {
        std::vector<const void*> sources(static_cast<std::size_t>(context.size));
        return [&context, &request, &pipeline, sharesOf, element, kernel, hasOutput,
                sources](std::uint64_t round) mutable {
          const Shares shares = sharesOf(round);
          if (shares.mine.size == 0) return;
          const std::uint64_t inBlock = shares.mine.begin * element;
          const std::uint64_t inBuffer = (shares.first + shares.mine.begin) * element;
          for (int peer = 0; peer < context.size; ++peer) {
            sources[static_cast<std::size_t>(peer)] = pipeline.block(peer, round) + inBlock;
          }
          std::byte* published = pipeline.block(context.rank, round) + inBlock;
          sources[static_cast<std::size_t>(context.rank)] =
              Input(request).read(inBuffer, shares.mine.size * element, published);
          // The root of a reduce publishes nothing: nobody reads it, so nothing would keep this
          // rank from having refilled the block with a later, shorter one whose shares lie
          // elsewhere.
          const bool isOutputOnly = request.kind == OpKind::kReduce && hasOutput;
          kernel(hasOutput ? request.output + inBuffer : published,
                 hasOutput && !isOutputOnly ? published : nullptr, sources.data(), sources.size(),
                 shares.mine.size, context.size);
        };
      },
      [&context, &request, perBlock, unit, element](Pipeline& pipeline) {
        return [&context, &request, &pipeline, perBlock, unit, element](std::uint64_t round) {
          const Range block = pieceOf(request.count, perBlock, round);
          for (int step = 1; step < context.size; ++step) {
            const int peer = (context.rank + step) % context.size;
            const Range share = shareOf(block.size, context.size, peer, unit);
            copyBytes(request.output + (block.begin + share.begin) * element,
                      pipeline.block(peer, round) + share.begin * element, share.size * element);
          }
        };
      });
}

std::uint64_t elementsPerPiece(const Context& context, std::uint64_t element) {
  const std::uint64_t bytes = kBlockBytes / static_cast<std::uint64_t>(context.size);
  const std::uint64_t aligned = bytes >= kCacheLine ? bytes / kCacheLine * kCacheLine : bytes;
  return std::max<std::uint64_t>(1, aligned / element);
}

// Each peer's piece of the block, one behind the other.
auto contributePieces(Context& context, std::uint64_t perPiece) {
  return [&context, perPiece](Pipeline& pipeline) {
    return [&context, &pipeline, perPiece](std::uint64_t round) {
      const Request& request = context.request;
      const std::uint64_t element = elementSize(request.dtype);
      std::byte* block = pipeline.block(context.rank, round);
      for (int peer = 0; peer < context.size; ++peer) {
        if (peer == context.rank) continue;
        const Range piece = pieceOf(request.inputCount(peer), perPiece, round);
        copyBytes(block + static_cast<std::uint64_t>(peer) * perPiece * element,
                  request.inputs[static_cast<std::size_t>(peer)] + piece.begin * element,
                  piece.size * element);
      }
    };
  };
}

// reduce_scatter, also uneven.
Task reduceScatterInPieces(Context& context) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t perPiece = elementsPerPiece(context, element);
  Stages stages = kInBlocks;
  stages.rounds = step_tables::numPieces(maxOf(request.inputCounts), perPiece);
  stages.reduces = true;
  stages.consumes = false;
  const kernels::ReduceFn kernel = kernels::reduceOrThrow(request.op, request.dtype);
  return runPipeline(
      context, stages, contributePieces(context, perPiece),
      [&context, &request, perPiece, element, kernel](Pipeline& pipeline) {
        std::vector<const void*> sources(static_cast<std::size_t>(context.size));
        return [&context, &request, &pipeline, perPiece, element, kernel,
                sources](std::uint64_t round) mutable {
          const Range piece = pieceOf(request.count, perPiece, round);
          if (piece.size == 0) return;
          const std::uint64_t inBlock =
              static_cast<std::uint64_t>(context.rank) * perPiece * element;
          for (int peer = 0; peer < context.size; ++peer) {
            sources[static_cast<std::size_t>(peer)] =
                peer == context.rank
                    ? request.inputs[static_cast<std::size_t>(peer)] + piece.begin * element
                    : pipeline.block(peer, round) + inBlock;
          }
          kernel(request.output + piece.begin * element, nullptr, sources.data(), sources.size(),
                 piece.size, context.size);
        };
      },
      kSkip);
}

// all_gather, also uneven; broadcast and gather are the same with one contributor or one consumer.
Task gatherInBlocks(Context& context, Stages stages, std::vector<std::uint64_t> counts) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t perBlock = kBlockBytes / element;
  stages.rounds = step_tables::numPieces(maxOf(counts), perBlock);
  const std::uint64_t ownCount = counts[static_cast<std::size_t>(context.rank)];
  return runPipeline(
      context, stages,
      [&context, &request, perBlock, element, ownCount](Pipeline& pipeline) {
        return [&context, &request, &pipeline, perBlock, element, ownCount](std::uint64_t round) {
          const Range piece = pieceOf(ownCount, perBlock, round);
          copyBytes(pipeline.block(context.rank, round), request.input + piece.begin * element,
                    piece.size * element);
        };
      },
      kSkip,
      [&context, &request, perBlock, element, counts = std::move(counts)](Pipeline& pipeline) {
        return [&context, &request, &pipeline, perBlock, element, counts](std::uint64_t round) {
          for (int step = 0; step < context.size; ++step) {
            const int peer = (context.rank + step) % context.size;
            const Range piece = pieceOf(counts[static_cast<std::size_t>(peer)], perBlock, round);
            if (piece.size == 0) continue;
            if (peer != context.rank) {
              std::byte* output = request.kind == OpKind::kBroadcast
                                      ? request.output
                                      : request.outputs[static_cast<std::size_t>(peer)];
              copyBytes(output + piece.begin * element, pipeline.block(peer, round),
                        piece.size * element);
            } else if (request.kind != OpKind::kBroadcast) {
              copyOwn(request.outputs[static_cast<std::size_t>(peer)] + piece.begin * element,
                      request.input + piece.begin * element, piece.size * element);
            }
          }
        };
      });
}

// all_to_all and scatter: every contributor has a piece for every consumer.
Task movePieces(Context& context, Stages stages, std::uint64_t longest) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t perPiece = elementsPerPiece(context, element);
  stages.rounds = step_tables::numPieces(longest, perPiece);
  const bool isScatter = request.kind == OpKind::kScatter;
  return runPipeline(
      context, stages, contributePieces(context, perPiece), kSkip,
      [&context, &request, perPiece, element, isScatter](Pipeline& pipeline) {
        return [&context, &request, &pipeline, perPiece, element, isScatter](std::uint64_t round) {
          const std::uint64_t mine = static_cast<std::uint64_t>(context.rank) * perPiece * element;
          for (int step = 0; step < context.size; ++step) {
            const int peer = (context.rank + step) % context.size;
            if (isScatter && peer != request.root) continue;
            const std::uint64_t count = isScatter ? request.count : request.outputCount(peer);
            std::byte* output =
                isScatter ? request.output : request.outputs[static_cast<std::size_t>(peer)];
            const Range piece = pieceOf(count, perPiece, round);
            if (piece.size == 0) continue;
            if (peer == context.rank) {
              copyOwn(output + piece.begin * element,
                      request.inputs[static_cast<std::size_t>(peer)] + piece.begin * element,
                      piece.size * element);
            } else {
              copyBytes(output + piece.begin * element, pipeline.block(peer, round) + mine,
                        piece.size * element);
            }
          }
        };
      });
}

// gather, scatter and all_to_all: what each rank offers and expects is known only after all have
// announced it.
Task moveSplits(Context& context) {
  const Request& request = context.request;
  AllArrived allArrived(context);
  co_await allArrived;
  const Splits splits(context);
  const std::uint64_t longest = splits.check();
  const bool isRoot = context.rank == request.root;
  Stages stages = kInBlocks;
  Task body;
  if (request.kind == OpKind::kGather) {
    stages.consumes = isRoot;
    body = gatherInBlocks(context, stages, splits.offeredTo(request.root));
  } else {
    if (request.kind == OpKind::kScatter) {
      stages.contributes = isRoot;
      stages.contributor = request.root;
    }
    body = movePieces(context, stages, longest);
  }
  Nested nested(body);
  co_await nested;
}

Task broadcastInBlocks(Context& context) {
  const Request& request = context.request;
  const bool isRoot = context.rank == request.root;
  Stages stages = kInBlocks;
  stages.contributes = isRoot;
  stages.consumes = !isRoot;
  stages.contributor = request.root;
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(context.size), 0);
  counts[static_cast<std::size_t>(request.root)] = request.count;
  return gatherInBlocks(context, stages, std::move(counts));
}

}  // namespace

std::uint64_t copyAheadFor(int ranks, int cores) { return ranks <= cores ? 1 : kBlocks; }

Task runStagedAfterArrival(Context& context) {
  switch (context.request.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return reduceInBlocks(context);
    case OpKind::kReduceScatter:
      return reduceScatterInPieces(context);
    case OpKind::kAllGather:
      return gatherInBlocks(context, kInBlocks, context.request.outputCounts);
    case OpKind::kBroadcast:
      return broadcastInBlocks(context);
    default:
      return moveSplits(context);
  }
}

Task runStaged(Context& context) {
  announce(context, kNoPlace);  // also if the buffer is shared and only SMDDP_ALGORITHM says staged
  Task body = runStagedAfterArrival(context);
  Nested nested(body);
  co_await nested;
}

}  // namespace smd::algorithms
