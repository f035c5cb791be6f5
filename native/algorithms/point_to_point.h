// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Tagged send and receive, independent of the order of collectives.
#pragma once

#include <functional>

#include "algorithms/request.h"

namespace smd::algorithms {

// request: kSend, root = receiver, input, count; the tag is signature.detail. Done when the data
// has been copied out of the caller's buffer.
Task runSend(Context& context);

// request: kRecv, root = sender or transport::kAnyPeer, output, count. `onSource` is told who sent.
Task runReceive(Context& context, std::function<void(int)> onSource);

}  // namespace smd::algorithms
