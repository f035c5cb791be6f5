// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The operations as TensorFlow knows them: SmddpAllReduce, SmddpBroadcast, SmddpAllGather, which
// wait to the end; for graphs SmddpAllReduceOrTicket and so on, and what follows them there:
// SmddpWait and SmddpSettle.
#pragma once

#include <string>

namespace smd::tensorflow_ops {

// Through api(). Returns what went wrong, in words; empty if nothing did.
std::string registerOperations();

}  // namespace smd::tensorflow_ops
