// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether all ranks have the same job token, and all or none use TLS: asked while the group is
// made, so that a rank that differs is named to everybody at once, instead of being refused by each
// peer on its own. It is a courtesy to people who forgot a setting; what protects is the handshake
// of each connection.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "auth/session_key.h"
#include "hosts/identity.h"

namespace smd::engine {

// What a rank publishes. Of no use for guessing a random token.
std::string tokenMark(const auth::SessionKey& key, bool usesTls);

// `marks` of all ranks, by rank. Throws the same Error(kConfiguration) on every rank, which names
// those whose mark differs from that of most ranks (of equally many: of rank 0).
void requireOneToken(const std::vector<std::string>& marks,
                     const std::vector<hosts::Identity>& identities);

}  // namespace smd::engine
