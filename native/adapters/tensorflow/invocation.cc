// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "adapters/tensorflow/invocation.h"

#include <exception>
#include <new>
#include <utility>

namespace smd::tensorflow {
namespace {

void check(const StatusPtr& status) {
  const TfCode code = api().GetCode(status.get());
  if (code != TfCode::kOk) throw Refused{code, api().Message(status.get())};
}

}  // namespace

StatusPtr makeStatus() { return StatusPtr(api().NewStatus()); }

// TensorFlow passes the address of a parameter on its stack, of a std::function<void()>, as if it
// were an object of its own that lives until it is called. It does not: what lies there is gone
// once the kernel has returned, so it is copied first. kernels.py makes sure that it is so.
Invocation::Invocation(TfContext* context, const TfDone* done, const std::string& key)
    : context_(context), done_(*reinterpret_cast<const std::function<void()>*>(done)), key_(key) {}

// Not reached without finish() or fail() but by a mistake of ours; TensorFlow would wait for ever.
Invocation::~Invocation() {
  if (done_) fail(Error(ErrorKind::kInternal, "an operation was dropped before its end"));
}

int Invocation::numTensors() const { return api().NumInputs(context_) - 1; }

TensorView Invocation::tensor(int index) const {
  const StatusPtr status = makeStatus();
  TfTensor* raw = nullptr;
  api().GetInput(context_, index + 1, &raw, status.get());
  check(status);
  TensorView view;
  view.tensor.reset(raw);
  view.type = api().TensorType(raw);
  const int numDims = api().NumDims(raw);
  view.dims.reserve(static_cast<std::size_t>(numDims));
  for (int i = 0; i < numDims; ++i) view.dims.push_back(api().Dim(raw, i));
  view.data = static_cast<std::byte*>(api().TensorData(raw));
  view.bytes = api().TensorByteSize(raw);
  return view;
}

TensorView Invocation::allocate(int output, TfType type, const Dims& dims,
                                std::size_t bytes) const {
  const StatusPtr status = makeStatus();
  TensorView view;
  view.tensor.reset(api().AllocateOutput(context_, output, type, dims.data(),
                                         static_cast<int>(dims.size()), bytes, status.get()));
  check(status);
  view.type = type;
  view.dims = dims;
  view.data = static_cast<std::byte*>(api().TensorData(view.tensor.get()));
  view.bytes = bytes;
  return view;
}

void Invocation::setOutput(int output, const TfTensor* tensor) const {
  const StatusPtr status = makeStatus();
  api().SetOutput(context_, output, tensor, status.get());
  check(status);
}

void Invocation::finish() {
  const std::function<void()> done = std::exchange(done_, nullptr);
  kept_.reset();
  if (done) done();
}

void Invocation::fail(const Failure& failure) {
  if (!done_) return;
  const StatusPtr status = makeStatus();
  api().SetStatus(status.get(), failure.code, failure.text.c_str());
  api().OpKernelContext_Failure(context_, status.get());
  finish();
}

void runGuarded(Invocation& invocation, const std::function<void()>& step) noexcept {
  try {
    step();
  } catch (const Refused& refused) {
    invocation.fail(Failure{refused.code, refused.text});
  } catch (const Error& error) {
    invocation.fail(error);
  } catch (const std::bad_alloc&) {
    invocation.fail(Failure{TfCode::kResourceExhausted, "SMDDPError: out of memory"});
  } catch (const std::exception& exception) {
    invocation.fail(Error(ErrorKind::kInternal, exception.what()));
  }
}

}  // namespace smd::tensorflow
