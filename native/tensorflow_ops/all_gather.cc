// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Two collectives: first everyone's shape, then the rows. What the ranks disagree on is found in
// the first, by all of them alike, and then there is no second.
#include <array>
#include <memory>
#include <utility>

#include "tensorflow_ops/bucket.h"
#include "tensorflow_ops/dtypes.h"
#include "tensorflow_ops/operations.h"

namespace smd::tensorflow_ops {
namespace {

constexpr std::size_t kMaxDims = 16;

// Of one rank; what it sends to the others. 64-bit words.
struct Shape {
  std::uint64_t dtype = 0;
  std::uint64_t numDims = 0;  // may be more than there is room for
  std::array<std::uint64_t, kMaxDims> dims{};

  bool isLike(const Shape& other) const {  // but for the number of rows
    return dtype == other.dtype && numDims == other.numDims &&
           std::equal(dims.begin() + 1, dims.end(), other.dims.begin() + 1);
  }
};
constexpr std::size_t kWords = sizeof(Shape) / sizeof(std::uint64_t);

struct Gathering {
  OpenGroupPtr open;  // for the second collective
  TensorView input;
  DType dtype{};
  Shape own;
  std::vector<Shape> shapes;  // by rank
  TensorView output;
  plugin_api::Agreement agreement;
};

std::string describe(const Shape& shape) {
  std::string text(name(static_cast<DType>(shape.dtype)));
  text += " [";
  for (std::size_t i = 0; i < std::min<std::size_t>(shape.numDims, kMaxDims); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape.dims[i]);
  }
  return text + "]";
}

// Throws what the ranks disagree on; the same on all of them.
void compare(const std::vector<Shape>& shapes) {
  const Shape& first = shapes.front();
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    const Shape& shape = shapes[rank];
    if (shape.numDims == 0 || shape.numDims > kMaxDims) {
      throw Error(ErrorKind::kConfiguration,
                  "all_gather takes tensors of 1 to " + std::to_string(kMaxDims) +
                      " dimensions, and rank " + std::to_string(rank) + " passes one of " +
                      std::to_string(shape.numDims) +
                      "; expected rows that can be joined. Use tf.reshape()");
    }
    if (!shape.isLike(first)) {
      throw Error(ErrorKind::kMismatch,
                  "all_gather: rank 0 passes " + describe(first) + " and rank " +
                      std::to_string(rank) + " passes " + describe(shape) +
                      "; expected one dtype, and shapes that differ in the number of rows (the "
                      "first dimension) only. Look for data of uneven shape, or for a branch that "
                      "depends on the rank before this call");
    }
  }
}

void gatherRows(Gathering& state, const InvocationPtr& invocation) {
  compare(state.shapes);
  std::uint64_t perRow = 1;
  for (std::size_t i = 1; i < state.own.numDims; ++i) perRow *= state.own.dims[i];
  std::uint64_t rows = 0;
  std::vector<std::uint64_t> counts;
  for (const Shape& shape : state.shapes) {
    counts.push_back(shape.dims[0] * perRow);
    rows += shape.dims[0];
  }
  const std::uint64_t element = elementSize(state.dtype);
  Dims dims = state.input.dims;
  dims[0] = static_cast<std::int64_t>(rows);
  state.output = invocation->allocate(0, state.input.type, dims, rows * perRow * element);
  if (state.output.bytes == 0) {  // all ranks know
    invocation->give(0, std::move(state.output.tensor));
    return invocation->finish();
  }
  std::vector<std::byte*> outputs;
  std::byte* at = state.output.data;
  for (const std::uint64_t count : counts) {
    outputs.push_back(at);
    at += count * element;
  }
  const OpenGroupPtr open = state.open;
  open->group->allGather(state.input.data, std::move(outputs), std::move(counts), state.dtype,
                         state.agreement, [&state, invocation](const Error* error) {
                           runGuarded(*invocation, [&] {
                             if (error != nullptr) return invocation->fail(*error);
                             invocation->give(0, std::move(state.output.tensor));
                             invocation->finish();
                           });
                         });
}

}  // namespace

void allGather(const Operation& operation, const OpenGroupPtr& open,
               const InvocationPtr& invocation) {
  auto& state = invocation->keep<Gathering>();
  state.open = open;
  std::vector<TensorView> inputs = tensorsOf(*invocation);
  const Layout layout = layOut(inputs);
  state.dtype = layout.dtype;
  state.agreement = agreementOf(operation, layout, inputs);
  state.input = std::move(inputs.front());
  state.own.dtype = static_cast<std::uint64_t>(state.dtype);
  state.own.numDims = state.input.dims.size();
  for (std::size_t i = 0; i < std::min(kMaxDims, state.input.dims.size()); ++i) {
    state.own.dims[i] = static_cast<std::uint64_t>(state.input.dims[i]);
  }
  const auto size = static_cast<std::size_t>(open->group->size());
  state.shapes.resize(size);
  std::vector<std::byte*> outputs;
  for (Shape& shape : state.shapes) outputs.push_back(reinterpret_cast<std::byte*>(&shape));
  open->group->allGather(reinterpret_cast<const std::byte*>(&state.own), std::move(outputs),
                         std::vector<std::uint64_t>(size, kWords), DType::kUInt64, state.agreement,
                         [&state, invocation](const Error* error) {
                           runGuarded(*invocation, [&] {
                             if (error != nullptr) return invocation->fail(*error);
                             gatherRows(state, invocation);
                           });
                         });
}

}  // namespace smd::tensorflow_ops
