// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// One exchange and done. Each of n ranks writes S bytes once and reads (n - 1) S; the arrival that
// every operation needs anyway carries the data, so the latency is that of one flag. Every rank
// reduces for itself, in rank order, which gives everyone the same bits.
#include <algorithm>
#include <cstring>

#include "algorithms/one_host/arrival.h"
#include "kernels/kernels.h"

namespace smd::algorithms {
namespace {

void reducePayloads(const Context& context, std::uint64_t payloadBytes, std::uint64_t skipBytes,
                    std::uint64_t count, std::byte* output) {
  constexpr int kOnStack = 64;
  const void* onStack[kOnStack];
  std::vector<const void*> onHeap;
  const void** sources = onStack;
  if (context.size > kOnStack) {
    onHeap.resize(static_cast<std::size_t>(context.size));
    sources = onHeap.data();
  }
  for (int peer = 0; peer < context.size; ++peer) {
    sources[peer] = payloadOf(context, peer, payloadBytes) + skipBytes;
  }
  const Request& request = context.request;
  kernels::reduceOrThrow(request.op, request.dtype)(
      output, nullptr, sources, static_cast<std::size_t>(context.size), count, context.size);
}

}  // namespace

std::uint64_t oneShotBytes(const Request& request) {
  std::uint64_t count = request.count;
  if (request.kind == OpKind::kAllGather) {
    count = *std::max_element(request.outputCounts.begin(), request.outputCounts.end());
  } else if (request.kind == OpKind::kReduceScatter) {
    count = 0;
    for (std::uint64_t part : request.inputCounts) count += part;
  }
  return count * elementSize(request.dtype);
}

Task runOneShot(Context& context) {
  const Request& request = context.request;
  const std::size_t element = elementSize(request.dtype);
  const std::uint64_t bytes = request.count * element;
  const bool isRoot = context.rank == request.root;
  switch (request.kind) {
    case OpKind::kBroadcast:
      arrive(context, isRoot ? Bytes(request.input, bytes) : Bytes());
      break;
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kAllGather:
      arrive(context, Bytes(request.input, bytes));
      break;
    case OpKind::kReduceScatter: {
      std::vector<Bytes> pieces;
      for (int peer = 0; peer < context.size; ++peer) {
        pieces.emplace_back(request.inputs[static_cast<std::size_t>(peer)],
                            request.inputCount(peer) * element);
      }
      arrive(context, pieces);
      break;
    }
    default:
      arrive(context);
      break;
  }
  AllArrived allArrived(context);
  co_await allArrived;
  switch (request.kind) {
    case OpKind::kAllReduce:
      if (bytes != 0) reducePayloads(context, bytes, 0, request.count, request.output);
      break;
    case OpKind::kReduce:
      if (isRoot && bytes != 0) reducePayloads(context, bytes, 0, request.count, request.output);
      break;
    case OpKind::kBroadcast:
      if (!isRoot && bytes != 0) {
        kernels::copy(request.output, payloadOf(context, request.root, bytes), bytes);
      }
      break;
    case OpKind::kAllGather:
      for (int peer = 0; peer < context.size; ++peer) {
        const std::uint64_t theirs = request.outputCount(peer) * element;
        if (theirs == 0) continue;
        kernels::copy(request.outputs[static_cast<std::size_t>(peer)],
                      payloadOf(context, peer, theirs), theirs);
      }
      break;
    case OpKind::kReduceScatter: {
      std::uint64_t before = 0;
      for (int peer = 0; peer < context.rank; ++peer) before += request.inputCount(peer);
      if (request.count != 0) {
        reducePayloads(context, oneShotBytes(request), before * element, request.count,
                       request.output);
      }
      break;
    }
    default:
      break;
  }
}

}  // namespace smd::algorithms
