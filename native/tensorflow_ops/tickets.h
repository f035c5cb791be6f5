// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations of a graph that wait long for other ranks.
//
// TensorFlow cannot cancel a kernel that waits, and raises the error of another operation of the
// step when all kernels have returned. But it begins no function in a step that has failed. So
// after some patience an operation returns before its collective has ended, and gives a ticket in
// place of results. In the graph (kernels.py) a loop, called as a function, waits for the ticket,
// as long each time, and an operation takes the results:
//
//     Smddp...OrTicket -> ticket -> if != 0: while != 0: SmddpWait -> SmddpSettle -> results
//
// The ticket of an operation that has ended in time is 0, and SmddpSettle hands its results on. No
// function is on that way: TensorFlow runs all other kernels of a step that has failed.
//
// If it has failed before a loop could begin, or go on, it lets go of the ticket: a tensor of ours,
// whose last reference goes. Then this rank is out of step with the others, which are told at once.
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
