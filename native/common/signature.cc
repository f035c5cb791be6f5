// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/signature.h"

namespace smd {
namespace {

bool reduces(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kReduce || kind == OpKind::kReduceScatter;
}

bool isMessage(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

}  // namespace

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
