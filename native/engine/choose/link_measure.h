// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// How fast the network between the hosts of a group is. Measured once per process, when the first
// group over several hosts is made; the cost model (cost_model.h) uses the result.
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

// What a rank tells the others, and back: "41.2 1.17e+09", or "" for nothing. A text that cannot be
// read counts as nothing.
std::string serializeLink(const std::optional<Link>& link);
std::optional<Link> parseLink(const std::string& text);

// The longest latency and the lowest bandwidth of those that there are, rounded to powers of two,
// so that the choices made by them seldom change from run to run. The default if there are none.
Link slowestOf(const std::vector<std::string>& links);

// The first rank of each host sends to the first rank of the next host, all at the same time: small
// messages one by one, then some large ones. Returns nothing on other ranks, and if the measurement
// does not end in time or a peer is lost. (The first operation that needs that peer will fail.)
std::optional<Link> measureLink(const hosts::Hosts& hosts, transport::Mailbox& mailbox,
                                const Liveness& liveness, std::chrono::nanoseconds limit);

// What this process has measured, or was told, in an earlier group over several hosts.
std::optional<Link> knownLink();
void rememberLink(const Link& link);

}  // namespace smd::engine
