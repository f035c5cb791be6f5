// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/signature.h"

#include <algorithm>

namespace smd {
namespace {

// The upper 16 bits of a detail that tells an order, and of one that has only a digest of it.
constexpr std::uint64_t kOrder = 0x51de;
constexpr std::uint64_t kOrderDigest = 0x51df;
constexpr int kTagShift = 48;
constexpr int kBitsEach = 4;  // index plus 1, from the lowest bits on; 0 ends the list
constexpr int kMostDimensions = kTagShift / kBitsEach;

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

bool isMessage(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

}  // namespace

std::uint64_t storageOrder(std::span<const int> dimensions) {
  const bool fits = dimensions.size() <= kMostDimensions &&
                    std::all_of(dimensions.begin(), dimensions.end(),
                                [](int dimension) { return dimension < (1 << kBitsEach) - 1; });
  if (!fits) {
    std::uint64_t hash = 14695981039346656037ull;  // FNV-1a
    for (const int dimension : dimensions) {
      hash = (hash ^ static_cast<std::uint64_t>(dimension)) * 1099511628211ull;
    }
    return kOrderDigest << kTagShift | hash >> (64 - kTagShift);
  }
  std::uint64_t order = kOrder << kTagShift;
  int shift = 0;
  for (const int dimension : dimensions) {
    order |= static_cast<std::uint64_t>(dimension + 1) << shift;
    shift += kBitsEach;
  }
  return order;
}

std::string describeStorageOrder(std::uint64_t detail) {
  const std::uint64_t tag = detail >> kTagShift;
  if (tag == kOrderDigest) return "dimensions in an order of their own";
  if (tag != kOrder) return "";
  std::string order;
  for (int i = 0; i < kMostDimensions; ++i) {
    const std::uint64_t entry = detail >> (i * kBitsEach) & ((1u << kBitsEach) - 1);
    if (entry == 0) break;
    if (i > 0) order += ", ";
    order += std::to_string(entry - 1);
  }
  std::string text = "dimensions in the order " + order;
  if (order == "0, 2, 3, 1") text += " (channels_last)";
  if (order == "0, 2, 3, 4, 1") text += " (channels_last_3d)";
  return text;
}

std::string describe(const Signature& signature) {
  std::string text(name(signature.kind));
  if (signature.sequence != 0) text += " #" + std::to_string(signature.sequence);
  if (signature.kind == OpKind::kBarrier) return text;
  if (isMessage(signature.kind)) {
    text += signature.kind == OpKind::kSend ? " to " : " from ";
    text += signature.root < 0 ? "any rank" : "rank " + std::to_string(signature.root);
    return text + " (" + std::string(name(signature.dtype)) + " x " +
           std::to_string(signature.count) + ", tag " + std::to_string(signature.detail) + ")";
  }
  text += " (";
  if (reduces(signature.kind)) text += std::string(name(signature.op)) + ", ";
  text += std::string(name(signature.dtype));
  if (signature.kind != OpKind::kAllToAll) text += " x " + std::to_string(signature.count);
  if (signature.root >= 0) text += ", root " + std::to_string(signature.root);
  return text + ")";
}

}  // namespace smd
