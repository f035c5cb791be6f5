// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// One tensor goes from the root's input straight into the others' outputs; several are packed. The
// root's outputs are its inputs.
#include <memory>
#include <utility>

#include "tensorflow_ops/bucket.h"
#include "tensorflow_ops/operations.h"

namespace smd::tensorflow_ops {
namespace {

struct Broadcast {
  bool isRoot = false;
  bool isPacked = false;
  Layout layout;
  std::vector<TensorView> tensors;  // the root's inputs; elsewhere what the outputs look like
  std::vector<TensorView> outputs;  // elsewhere; of several, once they are there
  std::shared_ptr<MemoryPool::Lease> memory;  // of several; null if all are empty
};

void giveOut(Broadcast& state, Invocation& invocation) {
  if (!state.isRoot && state.isPacked) {
    state.outputs = allocateLike(invocation, state.tensors);
    for (std::size_t i = 0; i < state.outputs.size() && state.memory != nullptr; ++i) {
      const TensorView& output = state.outputs[i];
      copyBytes(output.data, state.memory->data() + state.layout.offsets[i], output.bytes);
    }
  }
  auto& results = state.isRoot ? state.tensors : state.outputs;
  for (std::size_t i = 0; i < results.size(); ++i) {
    invocation.give(static_cast<int>(i), std::move(results[i].tensor));
  }
}

}  // namespace

void broadcast(const Operation& operation, const OpenGroupPtr& open,
               const InvocationPtr& invocation) {
  plugin_api::Group& group = *open->group;
  if (operation.root < 0 || operation.root >= group.size()) {
    throw Error(ErrorKind::kConfiguration, "root " + std::to_string(operation.root) +
                                               " is not a rank of this group; expected 0 "
                                               "to " +
                                               std::to_string(group.size() - 1));
  }
  auto& state = invocation->keep<Broadcast>();
  state.isRoot = operation.root == group.rank();
  state.tensors = tensorsOf(*invocation);
  state.layout = layOut(state.tensors);
  std::byte* data = nullptr;
  state.isPacked = state.tensors.size() > 1;
  if (state.isPacked) {
    if (state.layout.bytes != 0) {
      state.memory = open->memory->take(state.layout.bytes);
      data = state.memory->data();
    }
    if (state.isRoot) pack(state.layout, state.tensors, data);
  } else if (state.isRoot) {
    data = state.tensors.front().data;
  } else {
    state.outputs = allocateLike(*invocation, state.tensors);
    data = state.outputs.front().data;
  }
  if (!state.isRoot) {
    for (TensorView& each : state.tensors) each.tensor.reset();
  }
  group.broadcast(data, state.layout.count(), state.layout.dtype, static_cast<int>(operation.root),
                  agreementOf(operation, state.layout, state.tensors),
                  [&state, invocation](const Error* error) {
                    runGuarded(*invocation, [&] {
                      if (error != nullptr) {
                        if (state.memory != nullptr) state.memory->discard();
                        return invocation->fail(*error);
                      }
                      giveOut(state, *invocation);
                      invocation->finish();
                    });
                  });
}

}  // namespace smd::tensorflow_ops
