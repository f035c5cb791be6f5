// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Large buffers on one host. Words:
//   block   what passes through one rank's staging buffer at a time, at most kBlockBytes
//   round   block k of every rank; a rank's staging buffer holds a few of them, used in turn
//   share   the part of a block that one rank reduces (cut by patterns::shareOf)
//   piece   the part of a block that is meant for one peer
//
// Each rank goes through three stages for every round and tells how far it is with three counters
// (PeerMemory): contributed (copied into its staging buffer), reduced (its share, result published
// in its own staging buffer), consumed (everything of peers it needed has been read). Operations
// use the stages they need:
//
//   all_reduce, reduce         contribute others' shares | reduce own share | consume others'
//                              results
//   reduce_scatter             contribute pieces         | reduce own piece
//   all_gather, broadcast      contribute block          |                  | consume
//   gather, scatter, all_to_all  contribute block/pieces |                  | consume
//
// A stage of a later round may start before an earlier round is through, so ranks need not keep in
// step: copying, reducing and waiting overlap across ranks. For an all_reduce of S bytes over n
// ranks each rank copies (n-1)/n S in, reads (n-1)/n S to reduce, writes S/n twice and copies
// (n-1)/n S out.
#include <algorithm>
#include <cstring>

#include "algorithms/announcement.h"
#include "kernels/kernels.h"
#include "patterns/shares.h"

namespace smd::algorithms {
namespace {

using patterns::pieceOf;
using patterns::Range;
using patterns::shareOf;

// Trials on two cores (Zen 3, 512 KiB of cache each, 32 MiB shared), 2 ranks, 1 and 25 MiB: blocks
// of 128 KiB 62 us and 2.1 ms, 64 KiB 66 us and 2.2 ms, 32 KiB 78 us and 2.3 ms. Fewer blocks are
// slower: a line is dear to write again while the peer that read it still has it in its cache.
constexpr std::uint64_t kBlockBytes = std::uint64_t{128} << 10;
constexpr std::uint64_t kBlocks = transport::kStagingBytes / kBlockBytes;
constexpr std::uint64_t kCacheLine = 64;
constexpr int kEveryone = -1;

// Which stages this rank goes through, and whom it waits for.
struct Stages {
  std::uint64_t rounds = 0;
  bool contributes = true;
  bool reduces = false;
  bool consumes = true;
  int contributor = kEveryone;  // the only rank whose contributions are consumed
};

// Progress of one rank through the rounds of one operation.
class Pipeline final : public Condition {
 public:
  Pipeline(Context& context, const Stages& stages)
      : context_(context),
        memory_(*context.memory),
        stages_(stages),
        base_(*context.blocksDone),
        copyAhead_(context.copyAhead),
        arrived_(context) {
    // Stages that this rank skips are reported as done: nobody has to wait for them.
    if (!stages.contributes) publish(memory_.mine().contributed, contributed_ = stages.rounds);
    if (!stages.reduces) publish(memory_.mine().reduced, reduced_ = stages.rounds);
    if (!stages.consumes) publish(memory_.mine().consumed, consumed_ = stages.rounds);
    if (!stages.contributes || !stages.reduces || !stages.consumes) tellPeers();
  }

  std::uint64_t base() const { return base_; }
  std::byte* block(int peer, std::uint64_t round) const {
    return memory_.staging(peer) + (base_ + round) % kBlocks * kBlockBytes;
  }

  bool isDone() const {
    return isSafe_ && std::min({contributed_, reduced_, consumed_}) == stages_.rounds;
  }
  // Until every rank has arrived with the same signature nothing of the caller's may be written.
  bool isSafe() {
    if (!isSafe_ && arrived_.isMet()) {
      fullFence();  // what peers published before they could see all arrive is seen from here on
      isSafe_ = true;
    }
    return isSafe_;
  }

  bool canContribute() {
    if (contributed_ == stages_.rounds) return false;
    if (contributed_ >= std::min(reduced_, consumed_) + copyAhead_) return false;
    // The staging block was last used so many rounds ago, perhaps by an earlier operation: every
    // peer must have reduced from it and read the results in it.
    const std::uint64_t target = base_ + contributed_ + 1;
    if (target <= kBlocks) return true;
    return reached(&transport::RankCells::reduced, target - kBlocks, kEveryone, freedByReduce_) &&
           reached(&transport::RankCells::consumed, target - kBlocks, kEveryone, freedByConsume_);
  }
  bool canReduce() {
    return reduced_ < stages_.rounds && contributed_ > reduced_ &&
           reached(&transport::RankCells::contributed, base_ + reduced_ + 1, kEveryone,
                   contributorsSeen_);
  }
  bool canConsume() {
    if (consumed_ == stages_.rounds) return false;
    const std::uint64_t target = base_ + consumed_ + 1;
    return stages_.reduces ? reduced_ > consumed_ && reached(&transport::RankCells::reduced, target,
                                                             kEveryone, reducersSeen_)
                           : reached(&transport::RankCells::contributed, target,
                                     stages_.contributor, contributorsSeen_);
  }

  std::uint64_t contributed() const { return contributed_; }
  std::uint64_t reduced() const { return reduced_; }
  std::uint64_t consumed() const { return consumed_; }
  void didContribute() { publish(memory_.mine().contributed, ++contributed_); }
  void didReduce() { publish(memory_.mine().reduced, ++reduced_); }
  void didConsume() { publish(memory_.mine().consumed, ++consumed_); }
  // Before all have arrived nobody can go on: who is asleep then is woken by the last to arrive.
  void tellPeers() {
    fullFence();
    if (isSafe()) memory_.ringPeers();
  }
  void finish() const { *context_.blocksDone += stages_.rounds; }

  bool isMet() override {
    return canContribute() || (isSafe() && (isDone() || canReduce() || canConsume()));
  }

  std::vector<int> missingRanks() override {
    if (!isSafe_) return arrived_.missingRanks();
    std::vector<int> missing;
    for (int peer = 0; peer < context_.size; ++peer) {
      const transport::RankCells& cells = memory_.cells(peer);
      const std::uint64_t slowest =
          std::min({cells.contributed.load(), cells.reduced.load(), cells.consumed.load()});
      if (peer != context_.rank && slowest < base_ + stages_.rounds) missing.push_back(peer);
    }
    return missing;
  }

 private:
  void publish(std::atomic<std::uint64_t>& counter, std::uint64_t rounds) {
    counter.store(base_ + rounds, std::memory_order_release);
  }

  // Have the ranks that matter reached `target`? `seen` remembers what is already known.
  bool reached(std::atomic<std::uint64_t> transport::RankCells::* counter, std::uint64_t target,
               int only, std::uint64_t& seen) {
    if (seen >= target) return true;
    std::uint64_t least = ~std::uint64_t{0};
    for (int peer = 0; peer < context_.size; ++peer) {
      if (peer == context_.rank || (only != kEveryone && peer != only)) continue;
      const std::uint64_t value = (memory_.cells(peer).*counter).load(std::memory_order_acquire);
      least = std::min(least, value);
      if (value < target) return false;
    }
    seen = least;
    return true;
  }

  Context& context_;
  const transport::PeerMemory& memory_;
  Stages stages_;
  std::uint64_t base_;
  std::uint64_t copyAhead_;
  AllArrived arrived_;
  bool isSafe_ = false;
  std::uint64_t contributed_ = 0, reduced_ = 0, consumed_ = 0;
  // What is known of the slowest peer that matters to each wait.
  std::uint64_t freedByReduce_ = 0, freedByConsume_ = 0, contributorsSeen_ = 0, reducersSeen_ = 0;
};

// Stage functions take the round.
template <class Contribute, class Reduce, class Consume>
Task runPipeline(Context& context, Stages stages, Contribute makeContribute, Reduce makeReduce,
                 Consume makeConsume) {
  Pipeline pipeline(context, stages);
  auto contribute = makeContribute(pipeline);
  auto reduce = makeReduce(pipeline);
  auto consume = makeConsume(pipeline);
  while (!pipeline.isDone()) {
    bool moved = false;
    if (pipeline.canContribute()) {
      contribute(pipeline.contributed());
      pipeline.didContribute();
      moved = true;
    }
    if (pipeline.isSafe()) {
      if (pipeline.canReduce()) {
        reduce(pipeline.reduced());
        pipeline.didReduce();
        moved = true;
      }
      if (pipeline.canConsume()) {
        consume(pipeline.consumed());
        pipeline.didConsume();
        moved = true;
      }
    }
    if (moved) {
      pipeline.tellPeers();
    } else {
      co_await pipeline;
    }
  }
  pipeline.finish();
}

constexpr auto kSkip = [](Pipeline&) { return [](std::uint64_t) {}; };

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
  Stages stages;
  stages.rounds = patterns::numPieces(request.count, perBlock);
  stages.reduces = true;
  stages.consumes = hasOutput;
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
          const std::byte* source = request.input + shares.first * element;
          std::byte* target = pipeline.block(context.rank, round);
          const std::uint64_t after = shares.mine.begin + shares.mine.size;
          copyBytes(target, source, shares.mine.begin * element);
          copyBytes(target + after * element, source + after * element,
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
            sources[static_cast<std::size_t>(peer)] = peer == context.rank
                                                          ? request.input + inBuffer
                                                          : pipeline.block(peer, round) + inBlock;
          }
          std::byte* published = pipeline.block(context.rank, round) + inBlock;
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
  Stages stages;
  stages.rounds = patterns::numPieces(maxOf(request.inputCounts), perPiece);
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
  stages.rounds = patterns::numPieces(maxOf(counts), perBlock);
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
Task exchangePieces(Context& context, Stages stages, std::uint64_t longest) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t perPiece = elementsPerPiece(context, element);
  stages.rounds = patterns::numPieces(longest, perPiece);
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
  Stages stages;
  Task body;
  if (request.kind == OpKind::kGather) {
    stages.consumes = isRoot;
    body = gatherInBlocks(context, stages, splits.offeredTo(request.root));
  } else {
    if (request.kind == OpKind::kScatter) {
      stages.contributes = isRoot;
      stages.contributor = request.root;
    }
    body = exchangePieces(context, stages, longest);
  }
  Nested nested(body);
  co_await nested;
}

Task broadcastInBlocks(Context& context) {
  const Request& request = context.request;
  const bool isRoot = context.rank == request.root;
  Stages stages;
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
      return gatherInBlocks(context, Stages{}, context.request.outputCounts);
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
