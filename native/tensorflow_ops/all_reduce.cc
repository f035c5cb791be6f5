// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Small tensors are reduced in their outputs, or packed tightly and copied out. Larger ones are
// reduced from where they lie into one bucket, of memory that all ranks share; the outputs are
// views of it. So the engine copies what other ranks read, and no more.
#include <memory>
#include <utility>

#include "tensorflow_ops/bucket.h"
#include "tensorflow_ops/operations.h"

namespace smd::tensorflow_ops {
namespace {

using Lease = std::shared_ptr<MemoryPool::Lease>;

struct SmallReduction {
  Layout layout;
  std::vector<TensorView> outputs;
  std::vector<std::byte> packed;  // of several
};

void giveOut(SmallReduction& reduction, Invocation& invocation) {
  const bool isPacked = reduction.outputs.size() > 1;
  for (std::size_t i = 0; i < reduction.outputs.size(); ++i) {
    TensorView& output = reduction.outputs[i];
    const std::byte* packed = reduction.packed.data();
    if (isPacked) copyBytes(output.data, packed + reduction.layout.offsets[i], output.bytes);
    invocation.give(static_cast<int>(i), std::move(output.tensor));
  }
}

void reduceSmall(const Operation& operation, const OpenGroupPtr& open,
                 const InvocationPtr& invocation, std::vector<TensorView> inputs, Layout layout) {
  auto& state = invocation->keep<SmallReduction>();
  state.outputs = allocateLike(*invocation, inputs);
  std::byte* data = nullptr;
  if (inputs.size() == 1) {
    data = state.outputs.front().data;
  } else {
    state.packed.resize(layout.bytes);
    data = state.packed.data();
  }
  pack(layout, inputs, data);
  plugin_api::Agreement agreement = agreementOf(operation, layout, inputs);
  inputs.clear();
  state.layout = std::move(layout);
  open->group->allReduce({{data, 0, state.layout.bytes}}, data, state.layout.count(),
                         state.layout.dtype, operation.op, std::move(agreement),
                         [&state, invocation](const Error* error) {
                           runGuarded(*invocation, [&] {
                             if (error != nullptr) return invocation->fail(*error);
                             giveOut(state, *invocation);
                             invocation->finish();
                           });
                         });
}

struct LargeReduction {
  Layout layout;
  std::vector<TensorView> inputs;  // the outputs will look like them
  Lease memory;
};

Fragments fragmentsOf(const LargeReduction& reduction) {
  Fragments fragments;
  fragments.reserve(reduction.inputs.size());
  for (std::size_t i = 0; i < reduction.inputs.size(); ++i) {
    const TensorView& each = reduction.inputs[i];
    if (each.bytes != 0) fragments.push_back({each.data, reduction.layout.offsets[i], each.bytes});
  }
  return fragments;
}

// A tensor of TensorFlow's that keeps the memory it lies in.
TensorPtr view(const LargeReduction& reduction, std::size_t index) {
  const TensorView& like = reduction.inputs[index];
  const auto drop = [](void*, std::size_t, void* kept) { delete static_cast<Lease*>(kept); };
  // TensorFlow's from here on: it drops it, too, if it makes no tensor.
  auto* kept = new Lease(reduction.memory);
  TensorPtr tensor(api().NewTensor(like.type, like.dims.data(), static_cast<int>(like.dims.size()),
                                   reduction.memory->data() + reduction.layout.offsets[index],
                                   like.bytes, drop, kept));
  if (tensor == nullptr) {
    throw Error(ErrorKind::kInternal, "TensorFlow made no tensor of " + std::to_string(like.bytes) +
                                          " bytes; expected one that views its bucket");
  }
  return tensor;
}

void giveOut(const LargeReduction& reduction, Invocation& invocation) {
  for (std::size_t i = 0; i < reduction.inputs.size(); ++i) {
    const TensorView& like = reduction.inputs[i];
    const int output = static_cast<int>(i);
    const bool isEmpty = like.bytes == 0;
    invocation.give(output, isEmpty ? invocation.allocate(output, like.type, like.dims, 0).tensor
                                    : view(reduction, i));
  }
}

void reduceLarge(const Operation& operation, const OpenGroupPtr& open,
                 const InvocationPtr& invocation, std::vector<TensorView> inputs, Layout layout) {
  auto& state = invocation->keep<LargeReduction>();
  state.memory = open->memory->take(layout.bytes);
  state.layout = std::move(layout);
  state.inputs = std::move(inputs);
  open->group->allReduce(fragmentsOf(state), state.memory->data(), state.layout.count(),
                         state.layout.dtype, operation.op,
                         agreementOf(operation, state.layout, state.inputs),
                         [&state, invocation](const Error* error) {
                           runGuarded(*invocation, [&] {
                             if (error != nullptr) {
                               state.memory->discard();
                               return invocation->fail(*error);
                             }
                             giveOut(state, *invocation);
                             invocation->finish();
                           });
                         });
}

}  // namespace

void allReduce(const Operation& operation, const OpenGroupPtr& open,
               const InvocationPtr& invocation) {
  std::vector<TensorView> inputs = tensorsOf(*invocation);
  Layout layout = layOut(inputs);
  const auto reduce = layout.isSmall() ? &reduceSmall : &reduceLarge;
  reduce(operation, open, invocation, std::move(inputs), std::move(layout));
}

}  // namespace smd::tensorflow_ops
