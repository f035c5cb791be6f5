// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's element types and the engine's.
#pragma once

#include <optional>

#include "common/types.h"
#include "tensorflow_ops/api.h"

namespace smd::tensorflow_ops {

// Nothing: the operations do not take it.
constexpr std::optional<DType> toDType(TfType type) {
  switch (type) {
    case TfType::kFloat:
      return DType::kFloat32;
    case TfType::kDouble:
      return DType::kFloat64;
    case TfType::kHalf:
      return DType::kFloat16;
    case TfType::kBFloat16:
      return DType::kBFloat16;
    case TfType::kInt8:
      return DType::kInt8;
    case TfType::kInt16:
      return DType::kInt16;
    case TfType::kInt32:
      return DType::kInt32;
    case TfType::kInt64:
      return DType::kInt64;
    case TfType::kUInt8:
      return DType::kUInt8;
    case TfType::kUInt16:
      return DType::kUInt16;
    case TfType::kUInt32:
      return DType::kUInt32;
    case TfType::kUInt64:
      return DType::kUInt64;
    case TfType::kBool:
      return DType::kBool;
    case TfType::kComplex64:
      return DType::kComplex64;
    case TfType::kComplex128:
      return DType::kComplex128;
  }
  return std::nullopt;
}

// The same, as the definition of an operation's attribute T.
inline constexpr const char* kTypes =
    "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
    "bool, complex64, complex128}";

}  // namespace smd::tensorflow_ops
