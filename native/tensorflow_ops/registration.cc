// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Each operation but one is stateful: it must run once, whether its outputs are used or not.
// SmddpAddUp only computes. Collectives take the order token first: a resource that they do not
// look at, by which TensorFlow keeps operations in the order of the program. There are kernels for
// CPUs; TensorFlow copies what lies elsewhere.
#include "tensorflow_ops/registration.h"

#include <memory>

#include "tensorflow_ops/add_up.h"
#include "tensorflow_ops/api.h"
#include "tensorflow_ops/dtypes.h"
#include "tensorflow_ops/operations.h"
#include "tensorflow_ops/raising.h"
#include "tensorflow_ops/tickets.h"

namespace smd::tensorflow_ops {
namespace {

enum class Extra { kNone, kOp, kRoot };
enum class Ending { kWithResults, kInTime };
using StartFn = void (*)(const Operation&, const OpenGroupPtr&, const InvocationPtr&);

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

template <Extra kExtra, Ending kEnding>
void* create(TfConstruction* construction) {
  const StatusPtr status = makeStatus();
  auto operation = std::make_unique<Operation>();
  std::int64_t op = 0, label = 0, patience = 0;
  bool isGood = readKey(construction, operation->key, status) &&
                readInteger(construction, "label", label, status) &&
                readInteger(construction, "group", operation->group, status);
  if (isGood && kExtra == Extra::kOp) isGood = readInteger(construction, "op", op, status);
  if (isGood && kExtra == Extra::kRoot) {
    isGood = readInteger(construction, "root", operation->root, status);
  }
  if (isGood && kEnding == Ending::kInTime) {
    isGood = readInteger(construction, "patience_ms", patience, status);
  }
  if (isGood && (op < 0 || op >= kNumReduceOps)) {
    const std::string text = "SMDDPConfigInvalid: " + std::to_string(op) +
                             " is no reduce operation; expected one of ReduceOp; in " +
                             operation->key;
    api().SetStatus(status.get(), TfCode::kInvalidArgument, text.c_str());
    isGood = false;
  }
  if (!isGood) {
    api().OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  operation->label = static_cast<std::uint64_t>(label);
  operation->op = static_cast<ReduceOp>(op);
  operation->patience = std::chrono::milliseconds(patience);
  return operation.release();
}

void destroy(void* operation) { delete static_cast<Operation*>(operation); }

template <StartFn kStart>
void compute(void* opaque, TfContext* context, TfDone* done) {
  const auto& operation = *static_cast<const Operation*>(opaque);
  const OpenGroupPtr open = findGroup(operation.group);
  const auto invocation =
      std::make_shared<Invocation>(context, done, operation.key, open, operation.patience);
  runGuarded(*invocation, [&] {
    if (open == nullptr) return invocation->failWithoutGroup();
    kStart(operation, open, invocation);
  });
  invocation->beginPatience();
}

void* createNothing(TfConstruction*) { return nullptr; }
void destroyNothing(void*) {}

}  // namespace

plugin_api::Agreement agreementOf(const Operation& operation, const Layout& layout,
                                  const std::vector<TensorView>& tensors) {
  constexpr std::size_t kMostShapes = 3;
  plugin_api::Agreement agreement{layout.digest, operation.label, ""};
  if (operation.label == 0) return agreement;
  agreement.purpose = operation.key + (tensors.size() == 1 ? ", shape" : ", shapes");
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

void scalar(TfShapes* shapes, int output, TfStatus* status) {
  const ShapeHandle shape(api().ShapeInferenceContextScalar(shapes));
  api().ShapeInferenceContextSetOutput(shapes, output, shape.get(), status);
}

// Output i is like tensor i, of those behind `before` other inputs.
template <int before>
void sameShapes(TfShapes* shapes, TfStatus* status) {
  const std::int64_t numInputs = api().ShapeInferenceContextNumInputs(shapes);
  for (int i = before; i < numInputs; ++i) {
    const ShapeHandle shape;
    api().ShapeInferenceContextGetInput(shapes, i, shape.get(), status);
    if (api().GetCode(status) != TfCode::kOk) return;
    api().ShapeInferenceContextSetOutput(shapes, i - before, shape.get(), status);
    if (api().GetCode(status) != TfCode::kOk) return;
  }
}

// The same, and a ticket.
void sameShapesAndTicket(TfShapes* shapes, TfStatus* status) {
  sameShapes<1>(shapes, status);
  if (api().GetCode(status) != TfCode::kOk) return;
  scalar(shapes, static_cast<int>(api().ShapeInferenceContextNumInputs(shapes)) - 1, status);
}

void firstShape(TfShapes* shapes, TfStatus* status) {
  const ShapeHandle shape;
  api().ShapeInferenceContextGetInput(shapes, 0, shape.get(), status);
  if (api().GetCode(status) != TfCode::kOk) return;
  api().ShapeInferenceContextSetOutput(shapes, 0, shape.get(), status);
}

void ticketAlone(TfShapes* shapes, TfStatus* status) { scalar(shapes, 0, status); }

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

void anyRowsAndTicket(TfShapes* shapes, TfStatus* status) {
  anyRows(shapes, status);
  if (api().GetCode(status) == TfCode::kOk) scalar(shapes, 1, status);
}

// --- definitions ---------------------------------------------------------------------------------

// A list ends with null.
struct Definition {
  const char* name;
  const char* inputs[4];
  const char* outputs[3];
  const char* attributes[8];
  ShapeFn shape;
  CreateFn create;
  DeleteFn destroy;
  ComputeFn compute;  // or
  ComputeAtOnceFn computeAtOnce = nullptr;
  bool isStateful = true;
};

constexpr const char* kToken = "token: resource";
constexpr const char* kKey = "key: string";
constexpr const char* kLabel = "label: int = 0";
constexpr const char* kGroup = "group: int = 0";
constexpr const char* kCount = "N: int >= 1";
constexpr const char* kTicket = "ticket: int64";
constexpr const char* kPatience = "patience_ms: int >= 1 = 1000";

constexpr Definition kDefinitions[] = {
    {"SmddpAllReduce",
     {kToken, "tensors: N * T"},
     {"reduced: N * T"},
     {kCount, kTypes, "op: int", kKey, kLabel, kGroup},
     &sameShapes<1>,
     &create<Extra::kOp, Ending::kWithResults>,
     &destroy,
     &compute<&allReduce>},
    {"SmddpAllReduceOrTicket",
     {kToken, "tensors: N * T"},
     {"reduced: N * T", kTicket},
     {kCount, kTypes, "op: int", kKey, kLabel, kGroup, kPatience},
     &sameShapesAndTicket,
     &create<Extra::kOp, Ending::kInTime>,
     &destroy,
     &compute<&allReduce>},
    {"SmddpBroadcast",
     {kToken, "tensors: N * T"},
     {"received: N * T"},
     {kCount, kTypes, "root: int", kKey, kLabel, kGroup},
     &sameShapes<1>,
     &create<Extra::kRoot, Ending::kWithResults>,
     &destroy,
     &compute<&broadcast>},
    {"SmddpBroadcastOrTicket",
     {kToken, "tensors: N * T"},
     {"received: N * T", kTicket},
     {kCount, kTypes, "root: int", kKey, kLabel, kGroup, kPatience},
     &sameShapesAndTicket,
     &create<Extra::kRoot, Ending::kInTime>,
     &destroy,
     &compute<&broadcast>},
    {"SmddpAllGather",
     {kToken, "tensor: T"},
     {"gathered: T"},
     {kTypes, kKey, kLabel, kGroup},
     &anyRows,
     &create<Extra::kNone, Ending::kWithResults>,
     &destroy,
     &compute<&allGather>},
    {"SmddpAllGatherOrTicket",
     {kToken, "tensor: T"},
     {"gathered: T", kTicket},
     {kTypes, kKey, kLabel, kGroup, kPatience},
     &anyRowsAndTicket,
     &create<Extra::kNone, Ending::kInTime>,
     &destroy,
     &compute<&allGather>},
    {"SmddpWait",
     {kTicket},
     {"left: int64"},
     {kPatience},
     &ticketAlone,
     &createWait,
     &destroyWait,
     &computeWait},
    {"SmddpSettle",
     {kTicket, kToken, "tensors: N * T"},
     {"settled: N * T"},
     {kCount, kTypes},
     &sameShapes<2>,
     &createNothing,
     &destroyNothing,
     nullptr,
     &computeSettle},
    {"SmddpRaise",
     {"text: uint8"},
     {"nothing: uint8"},
     {},
     &sameShapes<0>,
     &createNothing,
     &destroyNothing,
     nullptr,
     &computeRaise},
    {"SmddpAddUp",
     {"tensors: N * T"},
     {"total: T"},
     {kCount, "T: {float, double}", "divisor: int >= 1 = 1"},
     &firstShape,
     &createAddUp,
     &destroyAddUp,
     nullptr,
     &computeAddUp,
     false},
};

void define(const Definition& definition, const StatusPtr& status) {
  TfOpBuilder* builder = api().NewOpDefinitionBuilder(definition.name);
  for (const char* const* each = definition.inputs; *each != nullptr; ++each) {
    api().OpDefinitionBuilderAddInput(builder, *each);
  }
  for (const char* const* each = definition.outputs; *each != nullptr; ++each) {
    api().OpDefinitionBuilderAddOutput(builder, *each);
  }
  for (const char* const* each = definition.attributes; *each != nullptr; ++each) {
    api().OpDefinitionBuilderAddAttr(builder, *each);
  }
  api().OpDefinitionBuilderSetIsStateful(builder, definition.isStateful);
  api().OpDefinitionBuilderSetShapeInferenceFunction(builder, definition.shape);
  api().RegisterOpDefinition(builder, status.get());
}

}  // namespace

std::string registerOperations() {
  const StatusPtr status = makeStatus();
  for (const Definition& definition : kDefinitions) {
    define(definition, status);
    if (isOk(status)) {
      const bool isAsync = definition.compute != nullptr;
      TfKernelBuilder* builder =
          isAsync ? api().NewAsyncKernelBuilder(definition.name, "CPU", definition.create,
                                                definition.compute, definition.destroy)
                  : api().NewKernelBuilder(definition.name, "CPU", definition.create,
                                           definition.computeAtOnce, definition.destroy);
      api().RegisterKernelBuilder(definition.name, builder, status.get());
    }
    if (!isOk(status)) {
      return std::string("TensorFlow refuses the operation ") + definition.name + ": " +
             api().Message(status.get());
    }
  }
  return "";
}

}  // namespace smd::tensorflow_ops
