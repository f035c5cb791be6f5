// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "tensorflow_ops/invocation.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "tensorflow_ops/tickets.h"

namespace smd::tensorflow_ops {
namespace {

constexpr std::align_val_t kAlignment{64};

// Of a run whose context is gone.
TensorPtr allocateOwn(TfType type, const Dims& dims, std::size_t bytes) {
  void* data = ::operator new(std::max<std::size_t>(bytes, 1), kAlignment);
  const auto drop = [](void* memory, std::size_t, void*) { ::operator delete(memory, kAlignment); };
  TensorPtr tensor(api().NewTensor(type, dims.data(), static_cast<int>(dims.size()), data, bytes,
                                   drop, nullptr));
  if (tensor == nullptr) throw std::bad_alloc();  // and TensorFlow has dropped the memory
  return tensor;
}

void check(const StatusPtr& status) {
  if (!isOk(status)) throw Refused{api().GetCode(status.get()), api().Message(status.get())};
}

}  // namespace

// TensorFlow passes the address of a parameter on its stack, of a std::function<void()>, as if it
// were an object of its own that lives until it is called. It does not: what lies there is gone
// once the kernel has returned, so it is copied first. kernels.py makes sure that it is so.
Invocation::Invocation(TfContext* context, const TfDone* done, std::string key, OpenGroupPtr group,
                       std::chrono::milliseconds patience)
    : context_(context),
      key_(std::move(key)),
      group_(std::move(group)),
      patience_(patience),
      done_(*reinterpret_cast<const std::function<void()>*>(done)) {}

// Not reached without finish() or fail() but by a mistake of ours; TensorFlow would wait for ever.
Invocation::~Invocation() {
  const Step last(*this);
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

TensorView Invocation::allocate(int output, TfType type, const Dims& dims, std::size_t bytes) {
  TensorView view;
  if (phase_ == Phase::kOpen) {
    const auto index = static_cast<std::size_t>(output);
    if (isAllocated_.size() <= index) isAllocated_.resize(index + 1);
    const StatusPtr status = makeStatus();
    view.tensor.reset(api().AllocateOutput(context_, output, type, dims.data(),
                                           static_cast<int>(dims.size()), bytes, status.get()));
    check(status);
    isAllocated_[index] = true;
  } else {
    view.tensor = allocateOwn(type, dims, bytes);
  }
  view.type = type;
  view.dims = dims;
  view.data = static_cast<std::byte*>(api().TensorData(view.tensor.get()));
  view.bytes = bytes;
  return view;
}

void Invocation::give(int output, TensorPtr tensor) {
  const auto index = static_cast<std::size_t>(output);
  if (phase_ == Phase::kLate) {
    results_.at(index) = std::move(tensor);
  } else if (index >= isAllocated_.size() || !isAllocated_[index]) {
    setOutput(output, tensor.get());
  }
}

void Invocation::setOutput(int output, const TfTensor* tensor) const {
  const StatusPtr status = makeStatus();
  api().SetOutput(context_, output, tensor, status.get());
  check(status);
}

void Invocation::finish() {
  if (phase_ == Phase::kOpen && hasTicket()) {
    const StatusPtr status = makeStatus();
    returnNoTicket(context_, numTensors(), status);
    check(status);
  }
  phase_ = Phase::kEnded;
}

void Invocation::fail(const Failure& failure) {
  if (phase_ == Phase::kOpen) {
    const StatusPtr status = makeStatus();
    api().SetStatus(status.get(), failure.code, failure.text.c_str());
    api().OpKernelContext_Failure(context_, status.get());
  } else if (phase_ == Phase::kLate) {
    failure_ = failure;
    results_.clear();
  }
  phase_ = Phase::kEnded;
}

void Invocation::beginPatience() {
  if (!hasTicket()) return;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kOpen) return;
  }
  giveUpAfter(patience_, weak_from_this());
}

bool Invocation::giveUp() noexcept {
  std::function<void()> done;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;  // a step is being made
    if (phase_ != Phase::kOpen) return true;
    try {
      returnTicket();
    } catch (const Refused&) {
      return false;
    } catch (const std::exception&) {  // no memory, most likely
      return false;
    }
    done.swap(done_);
  }
  done();
  return true;
}

void Invocation::returnTicket() {
  const auto count = static_cast<std::size_t>(numTensors());
  std::vector<TensorPtr> placeholders(count);
  isAllocated_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!isAllocated_[i]) placeholders[i] = makePlaceholder(tensor(static_cast<int>(i)).type);
  }
  results_.resize(count);
  const TensorPtr ticket = makeTicket(shared_from_this());
  for (std::size_t i = 0; i < count; ++i) {
    if (!isAllocated_[i]) setOutput(static_cast<int>(i), placeholders[i].get());
  }
  setOutput(static_cast<int>(count), ticket.get());
  phase_ = Phase::kLate;
}

bool Invocation::tellEnd(std::shared_ptr<EndListener> listener) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kEnded) {
      listener_ = std::move(listener);
      return true;
    }
  }
  listener->hasEnded(failure_);  // which does not change any more
  return false;
}

void Invocation::settle(TfContext* other, const StatusPtr& status) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kEnded) {
    api().SetStatus(status.get(), TfCode::kInternal, "SMDDPError: a ticket was taken too early");
  } else if (failure_) {
    api().SetStatus(status.get(), failure_->code, failure_->text.c_str());
  }
  for (std::size_t i = 0; i < results_.size() && isOk(status); ++i) {
    api().SetOutput(other, static_cast<int>(i), results_[i].get(), status.get());
  }
  results_.clear();
}

void Invocation::abandon() noexcept {
  {
    const std::lock_guard lock(mutex_);
    // Also if it has ended meanwhile: the others have the results.
    if (phase_ == Phase::kOpen || failure_) return;
  }
  try {
    group_->group->abort("its step failed or was cancelled while " + key_ +
                         " waited for other ranks; its own error says why, if there is one");
  } catch (const std::exception&) {  // no memory for the text
    group_->group->abort("its step failed or was cancelled");
  }
}

Step::Step(Invocation& invocation) : invocation_(invocation) {
  invocation_.mutex_.lock();
  ++invocation_.numSteps_;
}

Step::~Step() {
  std::function<void()> done;
  std::shared_ptr<void> kept;
  std::shared_ptr<EndListener> listener;
  if (--invocation_.numSteps_ == 0 && invocation_.phase_ == Invocation::Phase::kEnded) {
    done.swap(invocation_.done_);
    kept.swap(invocation_.kept_);
    listener.swap(invocation_.listener_);
  }
  invocation_.mutex_.unlock();
  kept.reset();
  if (done) done();
  if (listener) listener->hasEnded(invocation_.failure_);  // which does not change any more
}

void failWithException(Invocation& invocation) noexcept {
  try {
    throw;
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

}  // namespace smd::tensorflow_ops
