// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "algorithms/coalesce.h"

#include <cstring>
#include <string>

#include "common/error.h"

namespace smd::algorithms {
namespace {

// Share number `share` of every piece, one after the other, at `target`; returns where they end.
std::byte* packShare(const Request& request, std::uint64_t share, std::byte* target) {
  const std::uint64_t element = elementSize(request.dtype);
  for (const Piece& piece : request.pieces) {
    const std::uint64_t bytes = piece.count * element;
    if (bytes != 0) std::memcpy(target, piece.input + share * bytes, bytes);
    target += bytes;
  }
  return target;
}

void unpackShare(const Request& request, std::uint64_t share, const std::byte* source) {
  const std::uint64_t element = elementSize(request.dtype);
  for (const Piece& piece : request.pieces) {
    const std::uint64_t bytes = piece.count * element;
    if (bytes != 0) std::memcpy(piece.output + share * bytes, source, bytes);
    source += bytes;
  }
}

}  // namespace

std::unique_ptr<std::byte[]> pack(Request& request, int size) {
  if (request.pieces.empty()) return nullptr;
  std::uint64_t count = 0;
  for (const Piece& piece : request.pieces) count += piece.count;
  const std::uint64_t bytes = count * elementSize(request.dtype);
  const auto ranks = static_cast<std::size_t>(size);
  request.count = count;
  switch (request.kind) {
    case OpKind::kAllReduce: {
      auto packed = std::make_unique_for_overwrite<std::byte[]>(bytes);
      packShare(request, 0, packed.get());
      request.input = request.output = packed.get();
      return packed;
    }
    case OpKind::kAllGather: {
      auto packed = std::make_unique_for_overwrite<std::byte[]>((ranks + 1) * bytes);
      std::byte* target = packShare(request, 0, packed.get());
      request.input = packed.get();
      for (std::size_t rank = 0; rank < ranks; ++rank, target += bytes) {
        request.outputs.push_back(target);
        request.outputCounts.push_back(count);
      }
      return packed;
    }
    case OpKind::kReduceScatter: {
      auto packed = std::make_unique_for_overwrite<std::byte[]>((ranks + 1) * bytes);
      std::byte* target = packed.get();
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        request.inputs.push_back(target);
        request.inputCounts.push_back(count);
        target = packShare(request, rank, target);
      }
      request.output = target;
      return packed;
    }
    default:
      throw Error(ErrorKind::kInternal,
                  std::string(name(request.kind)) +
                      " cannot be coalesced; expected all_reduce, all_gather or reduce_scatter. "
                      "Make one call for each buffer.");
  }
}

void unpack(const Request& request) {
  switch (request.kind) {
    case OpKind::kAllGather:
      for (std::size_t rank = 0; rank < request.outputs.size(); ++rank) {
        unpackShare(request, rank, request.outputs[rank]);
      }
      break;
    default:
      unpackShare(request, 0, request.output);
      break;
  }
}

}  // namespace smd::algorithms
