// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The key of a group: what its ranks know and nobody else does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "auth/crypto.h"

namespace smd::auth {

// Random: the same on all ranks of a group, different for every group. Ranks learn it through the
// store at which they meet, so every reader of the store knows it too.
using SessionId = std::array<std::byte, 16>;

enum class Level : std::uint8_t {
  kStore,  // a process that can read the store can take part
  kToken,  // only a process that knows the job's token can
};

struct SessionKey {
  Digest bytes{};
  Level level = Level::kStore;
};

// With the job's `token` the key depends on it, and `session` only makes the keys of groups differ.
// Without one (empty) `session` itself is the secret.
SessionKey deriveSessionKey(std::string_view token, const SessionId& session);

// What a rank may show to everybody, so that others see whether it has the same key. Not a proof:
// any reader can repeat it.
Digest fingerprint(const SessionKey& key);

}  // namespace smd::auth
