// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/raising.h"

#include <string>

#include "tensorflow_ops/tensor_ptr.h"

namespace smd::tensorflow_ops {

void computeRaise(void*, TfContext* context) {
  const StatusPtr status = makeStatus();
  TfTensor* raw = nullptr;
  api().GetInput(context, 0, &raw, status.get());
  const TensorPtr tensor(raw);
  if (isOk(status)) {
    const std::string text(static_cast<const char*>(api().TensorData(tensor.get())),
                           api().TensorByteSize(tensor.get()));
    if (text.empty()) {
      api().SetOutput(context, 0, tensor.get(), status.get());
    } else {
      api().SetStatus(status.get(), TfCode::kAborted, text.c_str());
    }
  }
  if (!isOk(status)) api().OpKernelContext_Failure(context, status.get());
}

}  // namespace smd::tensorflow_ops
