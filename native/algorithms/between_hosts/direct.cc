// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives over messages, rank to rank: those in which each pair of ranks has data of its own
// (gather, scatter, all_to_all), so that there is nothing to save on the way; and all_gather and
// reduce_scatter of ranks with a host each. One message per pair. Sums are taken where they are
// needed, in rank order, so the bits are those of the shared-memory algorithms.
#include <cstring>
#include <utility>
#include <vector>

#include "algorithms/message_set.h"
#include "algorithms/mismatch.h"
#include "algorithms/one_host/arrival.h"
#include "kernels/kernels.h"

namespace smd::algorithms {
namespace {

// What messages may be using.
struct UnderWay {
  explicit UnderWay(const Context& context) : messages(context, 0) {}
  Scratch::Buffer received;
  MessageSet messages;
};

Task reduceScatter(Context& context, UnderWay& underWay) {
  const Request& request = context.request;
  const std::uint64_t element = elementSize(request.dtype);
  const std::uint64_t bytes = request.count * element;
  if (bytes != 0) {
    underWay.received = context.scratch->take(static_cast<std::uint64_t>(context.size) * bytes);
  }
  std::byte* const received = underWay.received.data.get();
  for (int offset = 1; offset < context.size; ++offset) {
    const int to = (context.rank + offset) % context.size;
    const int from = (context.rank - offset + context.size) % context.size;
    underWay.messages.send(to, request.inputs[static_cast<std::size_t>(to)],
                           request.inputCount(to) * element);
    underWay.messages.receive(from, received + static_cast<std::uint64_t>(from) * bytes, bytes);
  }
  co_await underWay.messages;
  if (request.count == 0) co_return;
  std::vector<const void*> sources;
  for (int peer = 0; peer < context.size; ++peer) {
    sources.push_back(peer == context.rank ? request.inputs[static_cast<std::size_t>(peer)]
                                           : received + static_cast<std::uint64_t>(peer) * bytes);
  }
  kernels::reduceOrThrow(request.op, request.dtype)(request.output, nullptr, sources.data(),
                                                    sources.size(), request.count, context.size);
}

// all_gather, all_to_all, gather, scatter.
Task pairwise(Context& context, UnderWay& underWay) {
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
  MessageSet& messages = underWay.messages;
  for (int offset = 1; offset < context.size; ++offset) {
    const int to = (context.rank + offset) % context.size;
    const int from = (context.rank - offset + context.size) % context.size;
    if (sendsToAll || (request.kind == OpKind::kGather && to == request.root)) {
      messages.send(to, input(to), inputBytes(to));
    }
    if (receivesFromAll || (request.kind == OpKind::kScatter && from == request.root)) {
      messages.receive(from, output(from), outputBytes(from));
    }
  }
  if (keepsOwn) {
    const std::uint64_t bytes = outputBytes(context.rank);
    if (bytes != 0 && output(context.rank) != input(context.rank)) {
      std::memmove(output(context.rank), input(context.rank), bytes);
    }
  }
  co_await messages;
}

}  // namespace

Task runDirect(Context& context) {
  // Whatever the operation, those of a host begin with an arrival: a rank that skipped one could be
  // two operations ahead of a peer, and overwrite the arrival line that the peer still reads.
  if (context.memory != nullptr) {
    arrive(context);
    AllArrived allArrived(context);
    co_await allArrived;
  }
  // An error (no memory, say) ends the frame that it leaves; what messages use is in this one.
  UnderWay underWay(context);
  Task body = context.request.kind == OpKind::kReduceScatter ? reduceScatter(context, underWay)
                                                             : pairwise(context, underWay);
  Nested nested(body);
  co_await nested;
  if (underWay.received.bytes != 0) context.scratch->giveBack(std::move(underWay.received));
}

}  // namespace smd::algorithms
