// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "auth/session_key.h"

#include <span>

namespace smd::auth {
namespace {

Bytes bytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

SessionKey deriveSessionKey(std::string_view token, const SessionId& session) {
  if (token.empty()) {
    return {hkdfSha256(session, session, bytesOf("smddp session, store")), Level::kStore};
  }
  return {hkdfSha256(bytesOf(token), session, bytesOf("smddp session, token")), Level::kToken};
}

Digest fingerprint(const SessionKey& key) {
  return hmacSha256(key.bytes, {bytesOf("smddp fingerprint")});
}

}  // namespace smd::auth
