// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations of a graph that wait long for other ranks.
//
// TensorFlow cannot cancel a kernel that waits, and it raises the error of another operation of the
// step only when all kernels have returned. But in a step that has failed it begins no function. So
// an operation that has waited for a while returns before its collective has ended, and gives a
// ticket in place of the results. In the graph (kernels.py) a loop, called as a function, waits for
// the ticket, as long each time; then an operation takes the results:
//
//     Smddp...OrTicket -> ticket -> if != 0: while != 0: SmddpWait -> SmddpSettle -> results
//
// The ticket of an operation that has ended in time is 0, and SmddpSettle hands its results on.
// That needs no function: in a step that has failed TensorFlow still runs all other kernels.
//
// If a step fails before its loop could begin, or go on, TensorFlow frees the ticket, a tensor of
// ours. Then this rank is out of step with the others, and they are told at once.
#pragma once

#include <cstdint>
#include <memory>

#include "tensorflow_ops/api.h"
#include "tensorflow_ops/tensor_ptr.h"

namespace smd::tensorflow_ops {

class Invocation;

// A number of its own for an operation, as a tensor. Throws bad_alloc.
TensorPtr makeTicket(std::shared_ptr<Invocation> invocation);
// An output that says 0: the operation has ended in time.
void returnNoTicket(TfContext* context, int output, const StatusPtr& status);
// Takes the place of results that are not there yet.
TensorPtr makePlaceholder(TfType type);

// The kernels of SmddpWait and SmddpSettle.
void* createWait(TfConstruction* construction);
void computeWait(void* operation, TfContext* context, TfDone* done);
void destroyWait(void* operation);
void computeSettle(void* operation, TfContext* context);

}  // namespace smd::tensorflow_ops
