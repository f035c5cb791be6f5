// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What the network between the hosts of a group gives, measured once per process, when the first
// group over several hosts is made. The cost model (cost_model.h) counts with it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "engine/choose/cost_model.h"
#include "engine/group/liveness.h"
#include "hosts/hosts.h"
#include "transport/mailbox.h"

namespace smd::engine {

// What a rank tells the others, and back: "41.2 1.17e+09", or "" for nothing. What cannot be read
// counts as nothing.
std::string serializeLink(const std::optional<Link>& link);
std::optional<Link> parseLink(const std::string& text);

// Of the slowest: the longest latency and the lowest bandwidth of those that there are, rounded to
// powers of two, so that what is chosen by them seldom changes from run to run. The default if
// there are none.
Link slowestOf(const std::vector<std::string>& links);

// The first rank of each host sends to that of the next one, all at the same time: small messages
// one by one, then some large ones. Nothing on other ranks, and where it is not over in time or a
// peer is lost; whoever needs the peer will say so.
std::optional<Link> measureLink(const hosts::Hosts& hosts, transport::Mailbox& mailbox,
                                const Liveness& liveness, std::chrono::nanoseconds limit);

// What this process has measured, or was told, when it was in such a group before: for the next.
std::optional<Link> knownLink();
void rememberLink(const Link& link);

}  // namespace smd::engine
