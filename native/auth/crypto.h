// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The few cryptographic functions that we need, as OpenSSL computes them.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>

namespace smd::auth {

using Bytes = std::span<const std::byte>;
using Digest = std::array<std::byte, 32>;  // of SHA-256

// Fills `bytes` with random bits that nobody can predict. Throws Error(kInternal).
void fillRandom(std::span<std::byte> bytes);

// HMAC-SHA256 (RFC 2104) of `parts`, one after the other. Where the length of a part may vary, the
// caller sees to it that no two lists of parts are the same bytes. Throws Error(kInternal).
Digest hmacSha256(Bytes key, std::initializer_list<Bytes> parts);

// A key for the purpose `info`, derived from `secret` and the public `salt` (HKDF-SHA256,
// RFC 5869). Throws Error(kInternal).
Digest hkdfSha256(Bytes secret, Bytes salt, Bytes info);

// Compares in a time that does not depend on where they differ.
bool isEqual(const Digest& a, const Digest& b);

}  // namespace smd::auth
