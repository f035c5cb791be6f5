// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/add_up.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ops/tensor_ptr.h"

namespace smd::tensorflow_ops {
namespace {

struct AddUp {
  std::int64_t divisor = 1;
};

// How many are read side by side.
constexpr std::size_t kMost = 8;

// Adds kCount tensors to the sum, or begins it with them.
template <std::size_t kCount, typename T>
void add(const T* const* from, std::size_t size, bool begins, T* __restrict total) {
  std::array<const T*, kCount> in;
  std::copy_n(from, kCount, in.begin());
  for (std::size_t i = 0; i < size; ++i) {
    T sum = begins ? in[0][i] : total[i] + in[0][i];
    for (std::size_t number = 1; number < kCount; ++number) sum += in[number][i];
    total[i] = sum;
  }
}

template <std::size_t kCount, typename T>
void addSome(std::size_t count, const T* const* from, std::size_t size, bool begins, T* total) {
  if (count == kCount) return add<kCount>(from, size, begins, total);
  if constexpr (kCount > 1) addSome<kCount - 1>(count, from, size, begins, total);
}

template <typename T>
void addUp(const std::vector<TensorPtr>& tensors, std::size_t size, std::int64_t divisor,
           T* total) {
  std::vector<const T*> from;
  for (const TensorPtr& tensor : tensors) {
    from.push_back(static_cast<const T*>(api().TensorData(tensor.get())));
  }
  for (std::size_t done = 0; done < from.size(); done += kMost) {
    const std::size_t count = std::min(kMost, from.size() - done);
    addSome<kMost>(count, from.data() + done, size, done == 0, total);
  }
  if (divisor == 1) return;
  const T by = static_cast<T>(divisor);
  for (std::size_t i = 0; i < size; ++i) total[i] /= by;
}

std::vector<std::int64_t> dimsOf(const TensorPtr& tensor) {
  std::vector<std::int64_t> dims(static_cast<std::size_t>(api().NumDims(tensor.get())));
  for (std::size_t i = 0; i < dims.size(); ++i) {
    dims[i] = api().Dim(tensor.get(), static_cast<int>(i));
  }
  return dims;
}

std::string text(const std::vector<std::int64_t>& dims) {
  std::string found = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    found += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  }
  return found + "]";
}

bool getInputs(TfContext* context, std::vector<TensorPtr>& tensors, const StatusPtr& status) {
  const int numInputs = api().NumInputs(context);
  for (int i = 0; i < numInputs; ++i) {
    TfTensor* raw = nullptr;
    api().GetInput(context, i, &raw, status.get());
    tensors.emplace_back(raw);
    if (!isOk(status)) return false;
    if (dimsOf(tensors[static_cast<std::size_t>(i)]) == dimsOf(tensors[0])) continue;
    const std::string error = "tensors of shapes " + text(dimsOf(tensors[0])) + " and " +
                              text(dimsOf(tensors.back())) + " cannot be added; expected one shape";
    api().SetStatus(status.get(), TfCode::kInvalidArgument, error.c_str());
    return false;
  }
  return true;
}

}  // namespace

void* createAddUp(TfConstruction* construction) {
  const StatusPtr status = makeStatus();
  auto operation = std::make_unique<AddUp>();
  api().OpKernelConstruction_GetAttrInt64(construction, "divisor", &operation->divisor,
                                          status.get());
  if (isOk(status)) return operation.release();
  api().OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void destroyAddUp(void* operation) { delete static_cast<AddUp*>(operation); }

void computeAddUp(void* operation, TfContext* context) {
  const StatusPtr status = makeStatus();
  std::vector<TensorPtr> tensors;
  if (getInputs(context, tensors, status)) {
    const auto dims = dimsOf(tensors[0]);
    const TfType type = api().TensorType(tensors[0].get());
    const std::size_t numBytes = api().TensorByteSize(tensors[0].get());
    const TensorPtr output(api().AllocateOutput(
        context, 0, type, dims.data(), static_cast<int>(dims.size()), numBytes, status.get()));
    if (isOk(status) && numBytes > 0) {
      void* const out = api().TensorData(output.get());
      const std::int64_t divisor = static_cast<const AddUp*>(operation)->divisor;
      if (type == TfType::kDouble) {
        addUp(tensors, numBytes / sizeof(double), divisor, static_cast<double*>(out));
      } else {
        addUp(tensors, numBytes / sizeof(float), divisor, static_cast<float*>(out));
      }
    }
  }
  if (!isOk(status)) api().OpKernelContext_Failure(context, status.get());
}

}  // namespace smd::tensorflow_ops
