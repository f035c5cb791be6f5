// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Each operation is stateful (it must run, once, whoever uses its outputs), and takes the order
// token first: a resource that it does not look at, by which TensorFlow keeps operations in the
// order of the program. There are kernels for CPUs; TensorFlow copies what lies elsewhere.
#include "adapters/tensorflow/registration.h"

#include <memory>

#include "adapters/tensorflow/api.h"
#include "adapters/tensorflow/dtypes.h"
#include "adapters/tensorflow/kernels.h"

namespace smd::tensorflow {
namespace {

enum class Extra { kNone, kOp, kRoot };
using StartFn = void (*)(const Kernel&, const OpenGroupPtr&, const InvocationPtr&);

bool isOk(const StatusPtr& status) { return api().GetCode(status.get()) == TfCode::kOk; }

// --- kernels -------------------------------------------------------------------------------------

bool readKey(TfConstruction* construction, std::string& key, const StatusPtr& status) {
  std::int32_t listSize = 0, size = 0;
  api().OpKernelConstruction_GetAttrSize(construction, "key", &listSize, &size, status.get());
  if (!isOk(status)) return false;
  key.resize(static_cast<std::size_t>(size));
  api().OpKernelConstruction_GetAttrString(construction, "key", key.data(), key.size(),
                                           status.get());
  return isOk(status);
}

bool readInteger(TfConstruction* construction, const char* name, std::int64_t& value,
                 const StatusPtr& status) {
  api().OpKernelConstruction_GetAttrInt64(construction, name, &value, status.get());
  return isOk(status);
}

template <Extra kExtra>
void* create(TfConstruction* construction) {
  const StatusPtr status = makeStatus();
  auto kernel = std::make_unique<Kernel>();
  std::int64_t op = 0, label = 0;
  bool isGood = readKey(construction, kernel->key, status) &&
                readInteger(construction, "label", label, status) &&
                readInteger(construction, "group", kernel->group, status);
  if (isGood && kExtra == Extra::kOp) isGood = readInteger(construction, "op", op, status);
  if (isGood && kExtra == Extra::kRoot) {
    isGood = readInteger(construction, "root", kernel->root, status);
  }
  if (isGood && (op < 0 || op >= kNumReduceOps)) {
    const std::string text = "SMDDPConfigInvalid: " + std::to_string(op) +
                             " is no reduce operation; expected one of ReduceOp; in " + kernel->key;
    api().SetStatus(status.get(), TfCode::kInvalidArgument, text.c_str());
    isGood = false;
  }
  if (!isGood) {
    api().OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  kernel->label = static_cast<std::uint64_t>(label);
  kernel->op = static_cast<ReduceOp>(op);
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

template <StartFn kStart>
void compute(void* opaque, TfContext* context, TfDone* done) {
  const auto& kernel = *static_cast<const Kernel*>(opaque);
  const auto invocation = std::make_shared<Invocation>(context, done, kernel.key);
  const OpenGroupPtr open = findGroup(kernel.group);
  if (open == nullptr) return invocation->failWithoutGroup();
  runGuarded(*invocation, [&] { kStart(kernel, open, invocation); });
}

}  // namespace

seam::Agreement agreementOf(const Kernel& kernel, const Layout& layout,
                            const std::vector<TensorView>& tensors) {
  constexpr std::size_t kMostShapes = 3;
  seam::Agreement agreement{layout.digest, kernel.label, ""};
  if (kernel.label == 0) return agreement;
  agreement.purpose = kernel.key + (tensors.size() == 1 ? ", shape" : ", shapes");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i == kMostShapes) {
      agreement.purpose += ", ...";
      break;
    }
    agreement.purpose += i == 0 ? " [" : ", [";
    for (std::size_t axis = 0; axis < tensors[i].dims.size(); ++axis) {
      agreement.purpose += (axis == 0 ? "" : ", ") + std::to_string(tensors[i].dims[axis]);
    }
    agreement.purpose += ']';
  }
  return agreement;
}

namespace {

// --- shapes --------------------------------------------------------------------------------------

class ShapeHandle {
 public:
  explicit ShapeHandle(TfShape* shape) : shape_(shape) {}
  ShapeHandle() : ShapeHandle(api().NewShapeHandle()) {}
  ~ShapeHandle() { api().DeleteShapeHandle(shape_); }
  ShapeHandle(const ShapeHandle&) = delete;
  ShapeHandle& operator=(const ShapeHandle&) = delete;
  TfShape* get() const { return shape_; }

 private:
  TfShape* const shape_;
};

// Output i is like tensor i.
void sameShapes(TfShapes* shapes, TfStatus* status) {
  const std::int64_t numInputs = api().ShapeInferenceContextNumInputs(shapes);
  for (int i = 1; i < numInputs; ++i) {
    const ShapeHandle shape;
    api().ShapeInferenceContextGetInput(shapes, i, shape.get(), status);
    if (api().GetCode(status) != TfCode::kOk) return;
    api().ShapeInferenceContextSetOutput(shapes, i - 1, shape.get(), status);
    if (api().GetCode(status) != TfCode::kOk) return;
  }
}

// Like the tensor, with any number of rows.
void anyRows(TfShapes* shapes, TfStatus* status) {
  const auto isGood = [status] { return api().GetCode(status) == TfCode::kOk; };
  const ShapeHandle input, checked, row, output;
  api().ShapeInferenceContextGetInput(shapes, 1, input.get(), status);
  if (!isGood()) return;
  api().ShapeInferenceContextWithRankAtLeast(shapes, input.get(), 1, checked.get(), status);
  if (!isGood()) return;
  constexpr std::int64_t kToEnd = INT64_MAX;
  api().ShapeInferenceContextSubshape(shapes, checked.get(), 1, kToEnd, row.get(), status);
  if (!isGood()) return;
  // -1 is how TensorFlow writes an unknown size.
  const ShapeHandle rows(
      api().ShapeInferenceContextVectorFromSize(shapes, static_cast<std::size_t>(-1)));
  api().ShapeInferenceContextConcatenateShapes(shapes, rows.get(), row.get(), output.get(), status);
  if (!isGood()) return;
  api().ShapeInferenceContextSetOutput(shapes, 0, output.get(), status);
}

// --- definitions ---------------------------------------------------------------------------------

struct Definition {
  const char* name;
  const char* input;
  const char* output;
  const char* extra;  // an attribute, or null
  bool isList;
  ShapeFn shape;
  CreateFn create;
  ComputeFn compute;
};

constexpr Definition kDefinitions[] = {
    {"SmddpAllReduce", "tensors: N * T", "reduced: N * T", "op: int", true, &sameShapes,
     &create<Extra::kOp>, &compute<&allReduce>},
    {"SmddpBroadcast", "tensors: N * T", "received: N * T", "root: int", true, &sameShapes,
     &create<Extra::kRoot>, &compute<&broadcast>},
    {"SmddpAllGather", "tensor: T", "gathered: T", nullptr, false, &anyRows, &create<Extra::kNone>,
     &compute<&allGather>},
};

void define(const Definition& definition, const StatusPtr& status) {
  TfOpBuilder* builder = api().NewOpDefinitionBuilder(definition.name);
  api().OpDefinitionBuilderAddInput(builder, "token: resource");
  api().OpDefinitionBuilderAddInput(builder, definition.input);
  api().OpDefinitionBuilderAddOutput(builder, definition.output);
  if (definition.isList) api().OpDefinitionBuilderAddAttr(builder, "N: int >= 1");
  api().OpDefinitionBuilderAddAttr(builder, kTypes);
  if (definition.extra != nullptr) api().OpDefinitionBuilderAddAttr(builder, definition.extra);
  api().OpDefinitionBuilderAddAttr(builder, "key: string");
  api().OpDefinitionBuilderAddAttr(builder, "label: int = 0");
  api().OpDefinitionBuilderAddAttr(builder, "group: int = 0");
  api().OpDefinitionBuilderSetIsStateful(builder, true);
  api().OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shape);
  api().RegisterOpDefinition(builder, status.get());
}

}  // namespace

std::string registerOperations() {
  const StatusPtr status = makeStatus();
  for (const Definition& definition : kDefinitions) {
    define(definition, status);
    if (isOk(status)) {
      TfKernelBuilder* builder = api().NewAsyncKernelBuilder(
          definition.name, "CPU", definition.create, definition.compute, &destroy);
      api().RegisterKernelBuilder(definition.name, builder, status.get());
    }
    if (!isOk(status)) {
      return std::string("TensorFlow refuses the operation ") + definition.name + ": " +
             api().Message(status.get());
    }
  }
  return "";
}

}  // namespace smd::tensorflow
