// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A sum of many tensors in one pass, one after the other. TensorFlow's AddN takes one pass too, but
// begins with whichever input's memory it can take; a chain of Add reads and writes the sum each
// time.
#pragma once

#include "tensorflow_ops/api.h"

namespace smd::tensorflow_ops {

// Of SmddpAddUp: what the sum is divided by.
void* createAddUp(TfConstruction* construction);
void destroyAddUp(void* operation);

// The kernel: ((first + second) + third) + ..., divided, with these roundings on every run.
void computeAddUp(void* operation, TfContext* context);

}  // namespace smd::tensorflow_ops
