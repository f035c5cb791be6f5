// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The C functions of TensorFlow that are used here. Declared by hand and looked up at run time in
// the TensorFlow that the process has: its headers are those of one version, and its C++ symbols
// differ between versions, but these functions have stayed since 2.13.
//
// Source: tensorflow/c/{kernels,ops,tf_tensor,tf_status,tf_datatype}.h of TensorFlow 2.14 to 2.21.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace smd::tensorflow_ops {

// TensorFlow's, never looked into.
struct TfStatus;
struct TfTensor;
struct TfContext;       // TF_OpKernelContext: one run of a kernel
struct TfConstruction;  // TF_OpKernelConstruction
struct TfDone;          // TF_AsyncOpKernelDoneCallback
struct TfKernelBuilder;
struct TfOpBuilder;  // TF_OpDefinitionBuilder
struct TfShapes;     // TF_ShapeInferenceContext
struct TfShape;      // TF_ShapeHandle

// TF_Code
enum class TfCode : int {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
};

// TF_DataType
enum class TfType : int {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUInt8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kBFloat16 = 14,
  kUInt16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUInt32 = 22,
  kUInt64 = 23,
};

using CreateFn = void* (*)(TfConstruction*);
using ComputeFn = void (*)(void*, TfContext*, TfDone*);
using ComputeAtOnceFn = void (*)(void*, TfContext*);
using DeleteFn = void (*)(void*);
using ShapeFn = void (*)(TfShapes*, TfStatus*);
using DeallocateFn = void (*)(void*, std::size_t, void*);

// Result, name without "TF_", parameters.
#define SMD_TF_FUNCTIONS(X)                                                                     \
  X(TfStatus*, NewStatus, ())                                                                   \
  X(void, DeleteStatus, (TfStatus*))                                                            \
  X(void, SetStatus, (TfStatus*, TfCode, const char*))                                          \
  X(TfCode, GetCode, (const TfStatus*))                                                         \
  X(const char*, Message, (const TfStatus*))                                                    \
  X(TfTensor*, NewTensor,                                                                       \
    (TfType, const std::int64_t*, int, void*, std::size_t, DeallocateFn, void*))                \
  X(void, DeleteTensor, (TfTensor*))                                                            \
  X(TfType, TensorType, (const TfTensor*))                                                      \
  X(int, NumDims, (const TfTensor*))                                                            \
  X(std::int64_t, Dim, (const TfTensor*, int))                                                  \
  X(std::size_t, TensorByteSize, (const TfTensor*))                                             \
  X(void*, TensorData, (const TfTensor*))                                                       \
  X(int, NumInputs, (TfContext*))                                                               \
  X(void, GetInput, (TfContext*, int, TfTensor**, TfStatus*))                                   \
  X(void, SetOutput, (TfContext*, int, const TfTensor*, TfStatus*))                             \
  X(TfTensor*, AllocateOutput,                                                                  \
    (TfContext*, int, TfType, const std::int64_t*, int, std::size_t, TfStatus*))                \
  X(void, OpKernelContext_Failure, (TfContext*, TfStatus*))                                     \
  X(void, OpKernelConstruction_Failure, (TfConstruction*, TfStatus*))                           \
  X(void, OpKernelConstruction_GetAttrSize,                                                     \
    (TfConstruction*, const char*, std::int32_t*, std::int32_t*, TfStatus*))                    \
  X(void, OpKernelConstruction_GetAttrString,                                                   \
    (TfConstruction*, const char*, char*, std::size_t, TfStatus*))                              \
  X(void, OpKernelConstruction_GetAttrInt64,                                                    \
    (TfConstruction*, const char*, std::int64_t*, TfStatus*))                                   \
  X(void, OpKernelConstruction_GetAttrType, (TfConstruction*, const char*, TfType*, TfStatus*)) \
  X(TfKernelBuilder*, NewKernelBuilder,                                                         \
    (const char*, const char*, CreateFn, ComputeAtOnceFn, DeleteFn))                            \
  X(TfKernelBuilder*, NewAsyncKernelBuilder,                                                    \
    (const char*, const char*, CreateFn, ComputeFn, DeleteFn))                                  \
  X(void, RegisterKernelBuilder, (const char*, TfKernelBuilder*, TfStatus*))                    \
  X(TfOpBuilder*, NewOpDefinitionBuilder, (const char*))                                        \
  X(void, OpDefinitionBuilderAddAttr, (TfOpBuilder*, const char*))                              \
  X(void, OpDefinitionBuilderAddInput, (TfOpBuilder*, const char*))                             \
  X(void, OpDefinitionBuilderAddOutput, (TfOpBuilder*, const char*))                            \
  X(void, OpDefinitionBuilderSetIsStateful, (TfOpBuilder*, bool))                               \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TfOpBuilder*, ShapeFn))                \
  X(void, RegisterOpDefinition, (TfOpBuilder*, TfStatus*))                                      \
  X(std::int64_t, ShapeInferenceContextNumInputs, (TfShapes*))                                  \
  X(TfShape*, NewShapeHandle, ())                                                               \
  X(void, DeleteShapeHandle, (TfShape*))                                                        \
  X(void, ShapeInferenceContextGetInput, (TfShapes*, int, TfShape*, TfStatus*))                 \
  X(void, ShapeInferenceContextSetOutput, (TfShapes*, int, TfShape*, TfStatus*))                \
  X(void, ShapeInferenceContextWithRankAtLeast,                                                 \
    (TfShapes*, TfShape*, std::int64_t, TfShape*, TfStatus*))                                   \
  X(TfShape*, ShapeInferenceContextScalar, (TfShapes*))                                         \
  X(TfShape*, ShapeInferenceContextVectorFromSize, (TfShapes*, std::size_t))                    \
  X(void, ShapeInferenceContextSubshape,                                                        \
    (TfShapes*, TfShape*, std::int64_t, std::int64_t, TfShape*, TfStatus*))                     \
  X(void, ShapeInferenceContextConcatenateShapes,                                               \
    (TfShapes*, TfShape*, TfShape*, TfShape*, TfStatus*))

struct Api {
#define SMD_TF_POINTER(result, name, parameters) result(*name) parameters = nullptr;
  SMD_TF_FUNCTIONS(SMD_TF_POINTER)
#undef SMD_TF_POINTER
};

// What is in use. Set once, before any operation is registered; tests set a fake.
const Api& api();
void setApi(const Api& functions);

// Looks all of it up in the TensorFlow of this process. Returns what keeps it from being used, in
// words; empty if nothing does.
std::string findApi(Api& functions);

}  // namespace smd::tensorflow_ops
