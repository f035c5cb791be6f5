// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What TensorFlow gives us to delete.
#pragma once

#include <memory>

#include "tensorflow_ops/api.h"

namespace smd::tensorflow_ops {

struct DeleteTensor {
  void operator()(TfTensor* tensor) const { api().DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TfTensor, DeleteTensor>;

struct DeleteStatus {
  void operator()(TfStatus* status) const { api().DeleteStatus(status); }
};
using StatusPtr = std::unique_ptr<TfStatus, DeleteStatus>;
inline StatusPtr makeStatus() { return StatusPtr(api().NewStatus()); }
inline bool isOk(const StatusPtr& status) { return api().GetCode(status.get()) == TfCode::kOk; }

}  // namespace smd::tensorflow_ops
