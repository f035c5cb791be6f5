// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/request.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"

namespace smd::algorithms {
namespace {

// FNV-1a over the counts: enough to notice that two ranks' lists differ.
std::uint64_t digest(const std::vector<std::uint64_t>& counts) {
  std::uint64_t hash = 14695981039346656037ull;
  for (std::uint64_t count : counts) hash = (hash ^ count) * 1099511628211ull;
  return hash;
}

bool isUniform(const std::vector<std::uint64_t>& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

void describeLists(const std::vector<std::uint64_t>& counts, Signature& signature) {
  signature.count = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  signature.detail = isUniform(counts) ? 0 : digest(counts);
}

void copyBytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

std::uint64_t agreedBytes(const Request& request) {
  return signatureOf(request).count * elementSize(request.dtype);
}

bool lacksMemory(const Request& request, bool isRoot) {
  const auto isNowhere = [](const auto& buffers, const std::vector<std::uint64_t>& counts) {
    for (std::size_t i = 0; i < std::min(buffers.size(), counts.size()); ++i) {
      if (buffers[i] == nullptr && counts[i] != 0) return true;
    }
    return false;
  };
  if (isNowhere(request.inputs, request.inputCounts)) return true;
  if (isNowhere(request.outputs, request.outputCounts)) return true;
  for (const Piece& piece : request.pieces) {
    if (piece.count != 0 && (piece.input == nullptr || piece.output == nullptr)) return true;
  }
  if (request.count == 0 || !request.pieces.empty()) return false;
  const bool readsNowhere = request.input == nullptr && request.fragments.empty();
  const bool writesNowhere = request.output == nullptr;
  switch (request.kind) {
    case OpKind::kAllReduce:
      return readsNowhere || writesNowhere;
    case OpKind::kReduce:
      return readsNowhere || (isRoot && writesNowhere);
    case OpKind::kBroadcast:
      return isRoot ? readsNowhere : writesNowhere;
    case OpKind::kAllGather:
    case OpKind::kGather:
    case OpKind::kSend:
      return readsNowhere;
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
    case OpKind::kRecv:
      return writesNowhere;
    default:
      return false;
  }
}

bool isSummedWide(const Request& request) {
  const bool isReduced = request.kind == OpKind::kAllReduce || request.kind == OpKind::kReduce ||
                         request.kind == OpKind::kReduceScatter;
  const bool isShort = request.dtype == DType::kFloat16 || request.dtype == DType::kBFloat16;
  const bool isChosen = request.op == ReduceOp::kMin || request.op == ReduceOp::kMax;
  return isReduced && isShort && !isChosen;
}

Signature signatureOf(const Request& request) {
  Signature signature;
  signature.kind = request.kind;
  signature.dtype = request.dtype;
  signature.root = request.root;
  switch (request.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      signature.op = request.op;
      signature.count = request.count;
      signature.detail = request.layout;
      break;
    case OpKind::kReduceScatter:
      signature.op = request.op;
      describeLists(request.inputCounts, signature);
      break;
    case OpKind::kAllGather:
      describeLists(request.outputCounts, signature);
      break;
    case OpKind::kAllToAll:  // pairs agree, not all ranks: compared through the published tables
    case OpKind::kGather:
    case OpKind::kScatter:
      break;
    case OpKind::kBroadcast:
      signature.count = request.count;
      signature.detail = request.layout;
      break;
    case OpKind::kSend:
    case OpKind::kRecv:
      signature.count = request.count;
      break;
    case OpKind::kBarrier:
      break;
  }
  if (!request.pieces.empty()) {  // else lists of other sizes but one sum would be mixed up
    std::vector<std::uint64_t> counts;
    for (const Piece& piece : request.pieces) counts.push_back(piece.count);
    if (request.layout != 0) counts.push_back(request.layout);
    signature.detail = digest(counts);
  }
  if (request.label != 0) signature.detail = digest({signature.detail, request.label});
  return signature;
}

bool touches(const Request& request, const std::byte* begin, std::uint64_t bytes) {
  const std::uint64_t element = elementSize(request.dtype);
  const auto lies = [&](const std::byte* buffer, std::uint64_t length) {
    const auto from = reinterpret_cast<std::uintptr_t>(buffer);
    const auto at = reinterpret_cast<std::uintptr_t>(begin);
    return from < at + bytes && at < from + length;
  };
  const auto overlaps = [&](const std::byte* buffer, std::uint64_t count) {
    return lies(buffer, count * element);
  };
  if (overlaps(request.input, request.count) || overlaps(request.output, request.count)) {
    return true;
  }
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    if (overlaps(request.inputs[i], request.inputCounts[i])) return true;
  }
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    if (overlaps(request.outputs[i], request.outputCounts[i])) return true;
  }
  for (const Fragment& each : request.fragments) {
    if (lies(each.data, each.bytes)) return true;
  }
  const std::uint64_t outputShares = std::max<std::uint64_t>(1, request.outputs.size());
  return std::any_of(request.pieces.begin(), request.pieces.end(), [&](const Piece& piece) {
    return overlaps(piece.output, piece.count * outputShares);  // inputs have been packed
  });
}

void premultiply(Context& context, std::vector<std::byte>& scratch) {
  Request& request = context.request;
  if (request.op != ReduceOp::kPremulSum) return;
  const kernels::ScaleFn scale = kernels::kernels().scale(request.dtype);
  const std::uint64_t element = elementSize(request.dtype);
  if (request.kind == OpKind::kReduceScatter) {
    std::uint64_t total = 0;
    for (std::uint64_t count : request.inputCounts) total += count;
    scratch.resize(total * element);
    std::byte* target = scratch.data();
    for (std::size_t peer = 0; peer < request.inputs.size(); ++peer) {
      scale(target, request.inputs[peer], request.inputCounts[peer], request.factor);
      request.inputs[peer] = target;
      target += request.inputCounts[peer] * element;
    }
    return;
  }
  if (request.kind != OpKind::kAllReduce && request.kind != OpKind::kReduce) return;
  std::byte* target = request.output;
  if (target != request.input || request.kind == OpKind::kReduce) {
    scratch.resize(request.count * element);
    target = scratch.data();
  }
  scale(target, request.input, request.count, request.factor);
  request.input = target;
}

void runAlone(Context& context) {
  const Request& request = context.request;
  const std::size_t element = elementSize(request.dtype);
  switch (request.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce: {
      const void* source = request.input;
      const auto reduce = kernels::reduceOrThrow(request.op, request.dtype);
      if (request.count != 0) reduce(request.output, nullptr, &source, 1, request.count, 1.0);
      break;
    }
    case OpKind::kReduceScatter: {
      const void* source = request.inputs[0];
      const auto reduce = kernels::reduceOrThrow(request.op, request.dtype);
      if (request.count != 0) reduce(request.output, nullptr, &source, 1, request.count, 1.0);
      break;
    }
    case OpKind::kAllGather:
    case OpKind::kGather:
      copyBytes(request.outputs[0], request.input, request.count * element);
      break;
    case OpKind::kScatter:
      copyBytes(request.output, request.inputs[0], request.count * element);
      break;
    case OpKind::kAllToAll:
      copyBytes(request.outputs[0], request.inputs[0], request.inputCounts[0] * element);
      break;
    default:
      break;
  }
}

}  // namespace smd::algorithms
