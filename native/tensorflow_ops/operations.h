// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What the operations do. Each starts its collective and returns; the invocation ends when that
// does. Exceptions are failures of the operation (runGuarded).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "common/types.h"
#include "tensorflow_ops/bucket.h"
#include "tensorflow_ops/groups.h"
#include "tensorflow_ops/invocation.h"

namespace smd::tensorflow_ops {

// The attributes of an operation.
struct Operation {
  std::string key;          // what for, in words
  std::uint64_t label = 0;  // a digest of what the ranks must agree on besides shapes; 0: nothing
  std::int64_t group = 0;
  ReduceOp op = ReduceOp::kSum;           // of all_reduce
  std::int64_t root = -1;                 // of broadcast
  std::chrono::milliseconds patience{0};  // of TensorFlow, with it; 0: it waits to the end
};

// What the ranks must agree on for this operation on these tensors.
plugin_api::Agreement agreementOf(const Operation& operation, const Layout& layout,
                                  const std::vector<TensorView>& tensors);

using InvocationPtr = std::shared_ptr<Invocation>;

void allReduce(const Operation& operation, const OpenGroupPtr& open,
               const InvocationPtr& invocation);
void broadcast(const Operation& operation, const OpenGroupPtr& open,
               const InvocationPtr& invocation);
void allGather(const Operation& operation, const OpenGroupPtr& open,
               const InvocationPtr& invocation);

}  // namespace smd::tensorflow_ops
