// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The operations as TensorFlow knows them: SmddpAllReduce, SmddpBroadcast, SmddpAllGather.
#pragma once

#include <string>

namespace smd::tensorflow {

// Through api(). Returns what went wrong, in words; empty if nothing did.
std::string registerOperations();

}  // namespace smd::tensorflow
