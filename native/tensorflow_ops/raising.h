// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// An operation that fails with a text of the graph's. TensorFlow has none whose error is ABORTED
// and says nothing else; an error of a Python function's is UNKNOWN.
#pragma once

#include "tensorflow_ops/api.h"

namespace smd::tensorflow_ops {

// The kernel of SmddpRaise: gives its text back if it is empty, else fails with it.
void computeRaise(void* operation, TfContext* context);

}  // namespace smd::tensorflow_ops
