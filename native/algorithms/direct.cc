// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives over messages, for groups that span hosts (or wherever memory is not shared). Every
// rank sends straight to whoever needs the data: with full-bandwidth networks each rank moves the
// least possible, 2 (n-1)/n S for an all_reduce of S bytes, in two phases. Reductions happen at one
// rank per element in rank order, so the bits are those of the shared-memory algorithms.
//
//   barrier         dissemination, ceil(log2 n) rounds of empty messages
//   all_reduce      small: everyone sends everything to everyone and reduces for itself;
//                   large: in rounds of kRoundBytes, each rank reduces its share and sends it to
//                   all
//   broadcast       binomial tree
//   the rest        one message per pair
#include <algorithm>
#include <cstring>

#include "algorithms/arrival.h"
#include "algorithms/exchange.h"
#include "algorithms/mismatch.h"
#include "kernels/kernels.h"
#include "patterns/shares.h"
#include "patterns/tree.h"

namespace smd::algorithms {
namespace {

using patterns::pieceOf;
using patterns::Range;
using patterns::shareOf;

// Up to this many bytes n messages of S bytes are cheaper than two phases of S/n.
constexpr std::uint64_t kSmallBytes = std::uint64_t{16} << 10;
// Bounds the scratch memory of a reduction to (n-1)/n of this.
constexpr std::uint64_t kRoundBytes = std::uint64_t{8} << 20;

Task barrier(Context& context) {
  std::uint64_t step = 0;
  for (int distance : patterns::disseminationDistances(context.size)) {
    Exchange exchange(context, step++);
    exchange.send((context.rank + distance) % context.size, nullptr, 0);
    exchange.receive((context.rank - distance + context.size) % context.size, nullptr, 0);
    co_await exchange;
  }
}

// Reduces `count` elements that all ranks have sent here: peers' in `scratch` by rank, own in
// `own`.
void reduceInRankOrder(const Context& context, const std::byte* own, const std::byte* scratch,
                       std::uint64_t count, std::byte* output) {
  if (count == 0) return;
  const Request& request = context.request;
  const std::uint64_t bytes = count * elementSize(request.dtype);
  std::vector<const void*> sources;
  for (int peer = 0; peer < context.size; ++peer) {
    sources.push_back(peer == context.rank ? own
                                           : scratch + static_cast<std::uint64_t>(peer) * bytes);
  }
  kernels::reduceOrThrow(request.op, request.dtype)(output, nullptr, sources.data(), sources.size(),
                                                    count, context.size);
}

// all_reduce and reduce of buffers up to kSmallBytes.
Task reduceEverywhere(Context& context) {
  const Request& request = context.request;
  const std::uint64_t bytes = request.count * elementSize(request.dtype);
  const bool hasOutput = request.kind == OpKind::kAllReduce || context.rank == request.root;
  std::vector<std::byte> scratch(static_cast<std::uint64_t>(context.size) * bytes);
  {
    Exchange exchange(context, 0);
    for (int step = 1; step < context.size; ++step) {
      const int to = (context.rank + step) % context.size;
      const int from = (context.rank - step + context.size) % context.size;
      if (request.kind == OpKind::kAllReduce || to == request.root) {
        exchange.send(to, request.input, bytes);
      }
      if (hasOutput) {
        exchange.receive(from, scratch.data() + static_cast<std::uint64_t>(from) * bytes, bytes);
      }
    }
    co_await exchange;
  }
  if (hasOutput)
    reduceInRankOrder(context, request.input, scratch.data(), request.count, request.output);
}

// all_reduce and reduce of large buffers: reduce-scatter, then all-gather (or gather at the root).
Task reduceByShares(Context& context) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t perRound = kRoundBytes / element;
  const std::uint64_t unit = std::max<std::uint64_t>(1, 64 / element);
  const bool hasOutput = request.kind == OpKind::kAllReduce || context.rank == request.root;
  std::vector<std::byte> scratch;
  std::vector<std::byte> result;
  std::uint64_t step = 0;
  for (std::uint64_t round = 0; round < patterns::numPieces(request.count, perRound); ++round) {
    const Range block = pieceOf(request.count, perRound, round);
    const Range mine = shareOf(block.size, context.size, context.rank, unit);
    const std::uint64_t mineAt = (block.begin + mine.begin) * element;
    scratch.resize(static_cast<std::uint64_t>(context.size) * mine.size * element);
    {
      Exchange exchange(context, step++);
      for (int offset = 1; offset < context.size; ++offset) {
        const int to = (context.rank + offset) % context.size;
        const int from = (context.rank - offset + context.size) % context.size;
        const Range theirs = shareOf(block.size, context.size, to, unit);
        exchange.send(to, request.input + (block.begin + theirs.begin) * element,
                      theirs.size * element);
        exchange.receive(from,
                         scratch.data() + static_cast<std::uint64_t>(from) * mine.size * element,
                         mine.size * element);
      }
      co_await exchange;
    }
    std::byte* reduced = request.output + mineAt;
    if (!hasOutput) {
      result.resize(mine.size * element);
      reduced = result.data();
    }
    reduceInRankOrder(context, request.input + mineAt, scratch.data(), mine.size, reduced);
    {
      Exchange exchange(context, step++);
      for (int offset = 1; offset < context.size; ++offset) {
        const int to = (context.rank + offset) % context.size;
        const int from = (context.rank - offset + context.size) % context.size;
        const Range theirs = shareOf(block.size, context.size, from, unit);
        if (request.kind == OpKind::kAllReduce || to == request.root) {
          exchange.send(to, reduced, mine.size * element);
        }
        if (hasOutput) {
          exchange.receive(from, request.output + (block.begin + theirs.begin) * element,
                           theirs.size * element);
        }
      }
      co_await exchange;
    }
  }
}

Task reduceScatter(Context& context) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t bytes = request.count * element;
  std::vector<std::byte> scratch(static_cast<std::uint64_t>(context.size) * bytes);
  {
    Exchange exchange(context, 0);
    for (int offset = 1; offset < context.size; ++offset) {
      const int to = (context.rank + offset) % context.size;
      const int from = (context.rank - offset + context.size) % context.size;
      exchange.send(to, request.inputs[static_cast<std::size_t>(to)],
                    request.inputCount(to) * element);
      exchange.receive(from, scratch.data() + static_cast<std::uint64_t>(from) * bytes, bytes);
    }
    co_await exchange;
  }
  reduceInRankOrder(context, request.inputs[static_cast<std::size_t>(context.rank)], scratch.data(),
                    request.count, request.output);
}

Task broadcast(Context& context) {
  const Request& request = context.request;
  const std::uint64_t bytes = request.count * elementSize(request.dtype);
  const patterns::TreeNode node = patterns::binomialTree(context.size, request.root, context.rank);
  if (node.parent >= 0) {
    Exchange exchange(context, 0);
    exchange.receive(node.parent, request.output, bytes);
    co_await exchange;
  }
  Exchange exchange(context, 0);
  for (int child : node.children) {
    exchange.send(child, node.parent >= 0 ? request.output : request.input, bytes);
  }
  co_await exchange;
}

// all_gather, all_to_all, gather, scatter: one message per pair.
Task pairwise(Context& context) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const bool isRoot = context.rank == request.root;
  const bool sendsPieces = request.kind == OpKind::kAllToAll || request.kind == OpKind::kScatter;
  const bool receivesPieces = request.kind != OpKind::kScatter;
  const bool sendsToAll =
      request.kind != OpKind::kGather && (request.kind != OpKind::kScatter || isRoot);
  const bool receivesFromAll =
      request.kind != OpKind::kScatter && (request.kind != OpKind::kGather || isRoot);
  const auto input = [&request, sendsPieces](int peer) {
    return sendsPieces ? request.inputs[static_cast<std::size_t>(peer)] : request.input;
  };
  const auto inputBytes = [&request, sendsPieces, element](int peer) {
    return (sendsPieces ? request.inputCount(peer) : request.count) * element;
  };
  const auto output = [&request, receivesPieces](int peer) {
    return receivesPieces ? request.outputs[static_cast<std::size_t>(peer)] : request.output;
  };
  const auto outputBytes = [&request, receivesPieces, element](int peer) {
    return (receivesPieces ? request.outputCount(peer) : request.count) * element;
  };
  const bool keepsOwn =
      request.kind == OpKind::kAllGather || request.kind == OpKind::kAllToAll || isRoot;
  if (keepsOwn && outputBytes(context.rank) != inputBytes(context.rank)) {
    throw splitMismatchError(context.signature, context.rank, inputBytes(context.rank) / element,
                             context.rank, outputBytes(context.rank) / element);
  }
  Exchange exchange(context, 0);
  for (int offset = 1; offset < context.size; ++offset) {
    const int to = (context.rank + offset) % context.size;
    const int from = (context.rank - offset + context.size) % context.size;
    if (sendsToAll || (request.kind == OpKind::kGather && to == request.root)) {
      exchange.send(to, input(to), inputBytes(to));
    }
    if (receivesFromAll || (request.kind == OpKind::kScatter && from == request.root)) {
      exchange.receive(from, output(from), outputBytes(from));
    }
  }
  if (keepsOwn) {
    const std::uint64_t bytes = outputBytes(context.rank);
    if (bytes != 0 && output(context.rank) != input(context.rank)) {
      std::memmove(output(context.rank), input(context.rank), bytes);
    }
  }
  co_await exchange;
}

Task byMessages(Context& context) {
  const Request& request = context.request;
  switch (request.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      return request.count * elementSize(request.dtype) <= kSmallBytes ? reduceEverywhere(context)
                                                                       : reduceByShares(context);
    case OpKind::kReduceScatter:
      return reduceScatter(context);
    case OpKind::kBroadcast:
      return broadcast(context);
    case OpKind::kBarrier:
      return barrier(context);
    default:
      return pairwise(context);
  }
}

// On one host (if SMDDP_ALGORITHM says so) every operation begins with an arrival all the same: a
// rank that skipped one could be two operations ahead of a peer, and overwrite the arrival line
// that the peer still reads.
Task afterArrival(Context& context) {
  arrive(context);
  AllArrived allArrived(context);
  co_await allArrived;
  Task messages = byMessages(context);
  Nested nested(messages);
  co_await nested;
}

}  // namespace

Task runDirect(Context& context) {
  return context.memory != nullptr ? afterArrival(context) : byMessages(context);
}

}  // namespace smd::algorithms
