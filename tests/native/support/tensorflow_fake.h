// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// As much of a TensorFlow as the operations use, behind its C functions: tensors with reference
// counts, one run of a kernel at a time, and the callback as TensorFlow passes it, which is gone
// once the kernel has returned.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/engine_harness.h"
#include "tensorflow_ops/api.h"
#include "tensorflow_ops/dtypes.h"
#include "tensorflow_ops/registration.h"

namespace smd::tensorflow_ops {

struct TfStatus {
  TfCode code = TfCode::kOk;
  std::string text;
};

struct FakeBuffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  DeallocateFn drop = nullptr;  // null: our own
  void* argument = nullptr;
  ~FakeBuffer() {
    if (drop != nullptr) {
      drop(data, bytes, argument);
    } else {
      ::operator delete(data, std::align_val_t{64});
    }
  }
};

struct TfTensor {
  TfType type{};
  std::vector<std::int64_t> dims;
  std::shared_ptr<FakeBuffer> buffer;
  std::shared_ptr<std::atomic<int>> held = {};  // of the run it was given to; null: of none
};

struct TfContext {
  std::vector<TfTensor> inputs;  // the token first
  std::vector<TfTensor> outputs;
  std::shared_ptr<std::atomic<int>> held = std::make_shared<std::atomic<int>>(0);
  TfCode code = TfCode::kOk;
  std::string text;
};

struct TfConstruction {
  std::map<std::string, std::string> strings;
  std::map<std::string, std::int64_t> integers;
  TfCode code = TfCode::kOk;
  std::string text = {};
};

struct TfKernelBuilder {
  std::string name, device;
  CreateFn create;
  ComputeFn compute;
  DeleteFn destroy;
  ComputeAtOnceFn computeAtOnce;  // in place of compute
};

struct TfOpBuilder {
  std::string name;
  std::vector<std::string> attributes, inputs, outputs;
  bool isStateful = false;
  ShapeFn shape = nullptr;
};

struct TfShape {
  bool isKnown = true;
  std::vector<std::int64_t> dims;  // -1: unknown
};

struct TfShapes {
  std::vector<TfShape> inputs, outputs;
};

namespace test {

using engine::test::kPatience;

inline constexpr std::size_t sizeOf(TfType type) {
  const auto dtype = toDType(type);
  return dtype ? elementSize(*dtype) : 1;
}

inline std::int64_t numElements(const std::vector<std::int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

inline TfTensor makeTensor(TfType type, std::vector<std::int64_t> dims) {
  TfTensor tensor{type, std::move(dims), std::make_shared<FakeBuffer>()};
  tensor.buffer->bytes = static_cast<std::size_t>(numElements(tensor.dims)) * sizeOf(type);
  tensor.buffer->data = tensor.buffer->bytes == 0
                            ? nullptr
                            : ::operator new(tensor.buffer->bytes, std::align_val_t{64});
  return tensor;
}

template <class T>
T* dataOf(const TfTensor& tensor) {
  return static_cast<T*>(tensor.buffer->data);
}

inline TfTensor makeFloats(std::vector<std::int64_t> dims, float first, float step = 0) {
  TfTensor tensor = makeTensor(TfType::kFloat, std::move(dims));
  for (std::int64_t i = 0; i < numElements(tensor.dims); ++i) {
    dataOf<float>(tensor)[i] = first + step * static_cast<float>(i);
  }
  return tensor;
}

inline std::vector<float> floatsOf(const TfTensor& tensor) {
  const float* data = dataOf<float>(tensor);
  return {data, data + numElements(tensor.dims)};
}

// What has been registered.
struct Registry {
  std::map<std::string, TfOpBuilder> operations;
  std::map<std::string, TfKernelBuilder> kernels;
  std::string refused;  // the name of an operation that is not taken
};
inline Registry& registry() {
  static Registry instance;
  return instance;
}

// Tensors that the operations hold.
inline std::atomic<int>& numHeld() {
  static std::atomic<int> count{0};
  return count;
}

inline TfTensor* hold(TfTensor tensor, const TfContext* context = nullptr) {
  numHeld().fetch_add(1);
  tensor.held = context == nullptr ? nullptr : context->held;
  if (tensor.held) tensor.held->fetch_add(1);
  return new TfTensor(std::move(tensor));
}

// What this TensorFlow refuses to do.
struct Refusals {
  std::atomic<bool> newTensor{false}, setOutput{false};
};
inline Refusals& refusals() {
  static Refusals instance;
  return instance;
}

inline void setStatus(TfStatus* status, TfCode code, const char* text) { *status = {code, text}; }

inline Api fakeApi() {
  Api fake;
  fake.NewStatus = [] { return new TfStatus; };
  fake.DeleteStatus = [](TfStatus* status) { delete status; };
  fake.SetStatus = &setStatus;
  fake.GetCode = [](const TfStatus* status) { return status->code; };
  fake.Message = [](const TfStatus* status) { return status->text.c_str(); };
  fake.NewTensor = [](TfType type, const std::int64_t* dims, int numDims, void* data,
                      std::size_t bytes, DeallocateFn drop, void* argument) {
    // TensorFlow copies what is not aligned: nothing of ours should be.
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
    TfTensor tensor{type, {dims, dims + numDims}, std::make_shared<FakeBuffer>()};
    EXPECT_EQ(bytes, static_cast<std::size_t>(numElements(tensor.dims)) * sizeOf(type));
    tensor.buffer->data = data;
    tensor.buffer->bytes = bytes;
    tensor.buffer->drop = drop;
    tensor.buffer->argument = argument;
    if (refusals().newTensor) return static_cast<TfTensor*>(nullptr);  // and drops the memory
    return hold(std::move(tensor));
  };
  fake.DeleteTensor = [](TfTensor* tensor) {
    numHeld().fetch_sub(1);
    if (tensor->held) tensor->held->fetch_sub(1);
    delete tensor;
  };
  fake.TensorType = [](const TfTensor* tensor) { return tensor->type; };
  fake.NumDims = [](const TfTensor* tensor) { return static_cast<int>(tensor->dims.size()); };
  fake.Dim = [](const TfTensor* tensor, int i) {
    return tensor->dims[static_cast<std::size_t>(i)];
  };
  fake.TensorByteSize = [](const TfTensor* tensor) { return tensor->buffer->bytes; };
  fake.TensorData = [](const TfTensor* tensor) { return tensor->buffer->data; };
  fake.NumInputs = [](TfContext* context) { return static_cast<int>(context->inputs.size()); };
  fake.GetInput = [](TfContext* context, int i, TfTensor** tensor, TfStatus*) {
    *tensor = hold(context->inputs.at(static_cast<std::size_t>(i)), context);
  };
  fake.SetOutput = [](TfContext* context, int i, const TfTensor* tensor, TfStatus* status) {
    if (refusals().setOutput) return setStatus(status, TfCode::kInternal, "no output");
    context->outputs.at(static_cast<std::size_t>(i)) = *tensor;
  };
  fake.AllocateOutput = [](TfContext* context, int i, TfType type, const std::int64_t* dims,
                           int numDims, std::size_t bytes, TfStatus* status) -> TfTensor* {
    // Stands for a machine whose memory is full.
    if (bytes > (std::size_t{1} << 40)) {
      setStatus(status, TfCode::kResourceExhausted, "no memory");
      return nullptr;
    }
    TfTensor tensor = makeTensor(type, {dims, dims + numDims});
    EXPECT_EQ(bytes, tensor.buffer->bytes);
    context->outputs.at(static_cast<std::size_t>(i)) = tensor;
    return hold(std::move(tensor), context);
  };
  fake.OpKernelContext_Failure = [](TfContext* context, TfStatus* status) {
    context->code = status->code;
    context->text = status->text;
  };
  fake.OpKernelConstruction_Failure = [](TfConstruction* construction, TfStatus* status) {
    construction->code = status->code;
    construction->text = status->text;
  };
  fake.OpKernelConstruction_GetAttrSize = [](TfConstruction* construction, const char* name,
                                             std::int32_t* listSize, std::int32_t* size,
                                             TfStatus* status) {
    const auto found = construction->strings.find(name);
    if (found == construction->strings.end()) {
      return setStatus(status, TfCode::kInvalidArgument, "no such attribute");
    }
    *listSize = -1;
    *size = static_cast<std::int32_t>(found->second.size());
  };
  fake.OpKernelConstruction_GetAttrString = [](TfConstruction* construction, const char* name,
                                               char* value, std::size_t size, TfStatus*) {
    std::memcpy(value, construction->strings.at(name).data(), size);
  };
  fake.OpKernelConstruction_GetAttrInt64 = [](TfConstruction* construction, const char* name,
                                              std::int64_t* value, TfStatus* status) {
    const auto found = construction->integers.find(name);
    if (found == construction->integers.end() && std::string_view(name) == "label") {
      *value = 0;  // the default
      return;
    }
    if (found == construction->integers.end()) {
      return setStatus(status, TfCode::kInvalidArgument, "no such attribute");
    }
    *value = found->second;
  };
  fake.NewKernelBuilder = [](const char* name, const char* device, CreateFn create,
                             ComputeAtOnceFn compute, DeleteFn destroy) {
    return new TfKernelBuilder{name, device, create, nullptr, destroy, compute};
  };
  fake.NewAsyncKernelBuilder = [](const char* name, const char* device, CreateFn create,
                                  ComputeFn compute, DeleteFn destroy) {
    return new TfKernelBuilder{name, device, create, compute, destroy, nullptr};
  };
  fake.RegisterKernelBuilder = [](const char* name, TfKernelBuilder* builder, TfStatus*) {
    registry().kernels.emplace(name, *builder);
    delete builder;
  };
  fake.NewOpDefinitionBuilder = [](const char* name) {
    auto* builder = new TfOpBuilder;
    builder->name = name;
    return builder;
  };
  fake.OpDefinitionBuilderAddAttr = [](TfOpBuilder* builder, const char* text) {
    builder->attributes.emplace_back(text);
  };
  fake.OpDefinitionBuilderAddInput = [](TfOpBuilder* builder, const char* text) {
    builder->inputs.emplace_back(text);
  };
  fake.OpDefinitionBuilderAddOutput = [](TfOpBuilder* builder, const char* text) {
    builder->outputs.emplace_back(text);
  };
  fake.OpDefinitionBuilderSetIsStateful = [](TfOpBuilder* builder, bool isStateful) {
    builder->isStateful = isStateful;
  };
  fake.OpDefinitionBuilderSetShapeInferenceFunction = [](TfOpBuilder* builder, ShapeFn shape) {
    builder->shape = shape;
  };
  fake.RegisterOpDefinition = [](TfOpBuilder* builder, TfStatus* status) {
    const std::unique_ptr<TfOpBuilder> owned(builder);
    if (builder->name == registry().refused) {
      return setStatus(status, TfCode::kInvalidArgument, "it is there already");
    }
    registry().operations.emplace(builder->name, *builder);
  };
  fake.ShapeInferenceContextNumInputs = [](TfShapes* shapes) {
    return static_cast<std::int64_t>(shapes->inputs.size());
  };
  fake.NewShapeHandle = [] { return new TfShape; };
  fake.DeleteShapeHandle = [](TfShape* shape) { delete shape; };
  fake.ShapeInferenceContextGetInput = [](TfShapes* shapes, int i, TfShape* shape, TfStatus*) {
    *shape = shapes->inputs.at(static_cast<std::size_t>(i));
  };
  fake.ShapeInferenceContextSetOutput = [](TfShapes* shapes, int i, TfShape* shape, TfStatus*) {
    const auto index = static_cast<std::size_t>(i);
    if (shapes->outputs.size() <= index) shapes->outputs.resize(index + 1);
    shapes->outputs[index] = *shape;
  };
  fake.ShapeInferenceContextWithRankAtLeast = [](TfShapes*, TfShape* shape, std::int64_t rank,
                                                 TfShape* result, TfStatus* status) {
    if (shape->isKnown && static_cast<std::int64_t>(shape->dims.size()) < rank) {
      return setStatus(status, TfCode::kInvalidArgument, "too few dimensions");
    }
    *result = *shape;
  };
  fake.ShapeInferenceContextScalar = [](TfShapes*) { return new TfShape; };
  fake.ShapeInferenceContextVectorFromSize = [](TfShapes*, std::size_t size) {
    return new TfShape{true, {static_cast<std::int64_t>(size)}};
  };
  fake.ShapeInferenceContextSubshape = [](TfShapes*, TfShape* shape, std::int64_t start,
                                          std::int64_t end, TfShape* result, TfStatus*) {
    EXPECT_EQ(end, INT64_MAX);
    result->isKnown = shape->isKnown;
    if (shape->isKnown) result->dims.assign(shape->dims.begin() + start, shape->dims.end());
  };
  fake.ShapeInferenceContextConcatenateShapes = [](TfShapes*, TfShape* first, TfShape* second,
                                                   TfShape* result, TfStatus*) {
    result->isKnown = first->isKnown && second->isKnown;
    if (!result->isKnown) return;
    result->dims = first->dims;
    result->dims.insert(result->dims.end(), second->dims.begin(), second->dims.end());
  };
  return fake;
}

// Once per program: the operations as TensorFlow would have them.
inline void registerOnce() {
  static const bool isDone = [] {
    setApi(fakeApi());
    EXPECT_EQ(registerOperations(), "");
    return true;
  }();
  SMD_REQUIRE(isDone);
}

// One run of an operation.
class OpRun {
 public:
  OpRun(const std::string& name, TfConstruction attributes, const std::vector<TfTensor>& tensors)
      : kernel_(registry().kernels.at(name)) {
    opaque_ = kernel_.create(&attributes);
    SMD_REQUIRE(opaque_ != nullptr);
    context_.inputs.push_back(makeTensor(TfType::kBool, {}));
    context_.inputs.insert(context_.inputs.end(), tensors.begin(), tensors.end());
    hasTicket_ = name.ends_with("OrTicket");
    context_.outputs.resize(tensors.size() + (hasTicket_ ? 1 : 0));
    compute();
  }
  // Of an operation that waits for a ticket, or takes what it stands for in place of the tensors.
  OpRun(const std::string& name, TfTensor ticket, std::vector<TfTensor> tensors)
      : kernel_(registry().kernels.at(name)) {
    TfConstruction attributes{{}, {{"patience_ms", 20}}};
    opaque_ = kernel_.create(&attributes);
    context_.outputs.resize(std::max<std::size_t>(tensors.size(), 1));
    context_.inputs = std::move(tensors);
    context_.inputs.insert(context_.inputs.begin(), makeTensor(TfType::kBool, {}));
    context_.inputs.insert(context_.inputs.begin(), std::move(ticket));
    compute();
  }
  // Of an operation that takes tensors alone, and gives one.
  struct Plain {};
  OpRun(const std::string& name, TfConstruction attributes, std::vector<TfTensor> tensors, Plain)
      : kernel_(registry().kernels.at(name)) {
    opaque_ = kernel_.create(&attributes);
    SMD_REQUIRE(opaque_ != nullptr);
    context_.inputs = std::move(tensors);
    context_.outputs.resize(1);
    compute();
  }
  ~OpRun() {
    wait();
    kernel_.destroy(opaque_);
  }
  OpRun(const OpRun&) = delete;
  OpRun& operator=(const OpRun&) = delete;

  bool isDone() {
    const std::lock_guard lock(mutex_);
    return numDone_ > 0;
  }
  // Until the operation has ended; then what it has returned.
  TfContext& wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return numDone_ > 0; })) {
      ADD_FAILURE() << "an operation did not end";
      std::abort();
    }
    EXPECT_EQ(numDone_, 1) << "the callback was called again";
    return context_;
  }
  std::vector<TfTensor>& outputs() {
    EXPECT_EQ(wait().text, "");
    takeTicket();
    return context_.outputs;
  }
  // What it has returned behind them.
  TfTensor& ticket() {
    wait();
    takeTicket();
    return ticket_;
  }

 private:
  // As in TensorFlow: the callback's address is one on the stack.
  __attribute__((noinline)) void compute() {
    std::function<void()> done = [this] {
      EXPECT_TRUE(isLate() || context_.held->load() == 0) << "tensors of a run that has ended";
      context_.inputs.clear();  // as TensorFlow may
      const std::lock_guard lock(mutex_);
      ++numDone_;
      changed_.notify_all();
    };
    if (kernel_.compute == nullptr) {
      kernel_.computeAtOnce(opaque_, &context_);
      return done();
    }
    kernel_.compute(opaque_, &context_, reinterpret_cast<TfDone*>(&done));
  }

  // Whether it has returned a ticket that stands for its results.
  bool isLate() const {
    const auto& last = context_.outputs.back();
    return hasTicket_ && last.buffer != nullptr && *dataOf<std::int64_t>(last) != 0;
  }
  void takeTicket() {
    if (!std::exchange(hasTicket_, false) || context_.outputs.empty()) return;
    ticket_ = std::move(context_.outputs.back());
    context_.outputs.pop_back();
  }

  const TfKernelBuilder& kernel_;
  void* opaque_ = nullptr;
  bool hasTicket_ = false;  // as the last of the outputs
  TfContext context_;
  TfTensor ticket_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int numDone_ = 0;
};

}  // namespace test
}  // namespace smd::tensorflow_ops
