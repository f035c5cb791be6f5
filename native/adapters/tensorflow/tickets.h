// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations of a graph that wait long for other ranks.
//
// TensorFlow cannot cancel a kernel that waits, and raises the error of another operation of the
// step when all kernels have returned. But between two operations it looks whether the step has
// failed. So after some patience an operation returns before its collective has ended, and gives a
// ticket in place of results. In the graph (kernels.py) it is followed by a loop that waits for the
// ticket, as long each time, and by an operation that takes the results:
//
//     Smddp...OrTicket -> ticket -> while (ticket != 0) SmddpWait -> SmddpSettle -> results
//
// The ticket of an operation that has ended in time is 0, and SmddpSettle hands its results on.
//
// A step that has failed runs none of that, and lets go of the ticket: a tensor of ours, whose last
// reference goes. Then this rank is out of step with the others, which are told at once.
#pragma once

#include <cstdint>
#include <memory>

#include "adapters/tensorflow/api.h"
#include "adapters/tensorflow/tensor_ptr.h"

namespace smd::tensorflow {

class Invocation;

// A number of its own for an operation, as a tensor. Throws bad_alloc.
TensorPtr makeTicket(std::shared_ptr<Invocation> invocation);
// An output that says 0: the operation has ended in time.
void returnNoTicket(TfContext* context, int output, const StatusPtr& status);
// Takes the place of results that are not there yet.
TensorPtr makePlaceholder(TfType type);

// The kernels of SmddpWait and SmddpSettle.
void* createWait(TfConstruction* construction);
void computeWait(void* kernel, TfContext* context, TfDone* done);
void destroyWait(void* kernel);
void computeSettle(void* kernel, TfContext* context);

}  // namespace smd::tensorflow
