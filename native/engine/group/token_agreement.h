// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether all ranks have the same job token, and whether all or none use TLS. Asked while the group
// is made: so every rank learns at once which rank differs, instead of each peer refusing that rank
// on its own. This helps people who forgot a setting; the protection is the handshake of each
// connection.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "auth/session_key.h"
#include "hosts/identity.h"

namespace smd::engine {

// What a rank publishes. It does not help to guess a random token.
std::string tokenMark(const auth::SessionKey& key, bool usesTls);

// `marks` are those of all ranks, by rank. If they differ, throws the same Error(kConfiguration) on
// every rank. It names the ranks whose mark is not that of most ranks (if that is a tie: of rank
// 0).
void requireOneToken(const std::vector<std::string>& marks,
                     const std::vector<hosts::Identity>& identities);

}  // namespace smd::engine
