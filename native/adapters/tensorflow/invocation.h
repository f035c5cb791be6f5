// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// One run of an asynchronous kernel, from its inputs to TensorFlow's callback.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapters/tensorflow/api.h"
#include "adapters/tensorflow/failure.h"
#include "common/types.h"

namespace smd::tensorflow {

struct DeleteTensor {
  void operator()(TfTensor* tensor) const { api().DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TfTensor, DeleteTensor>;
using Dims = std::vector<std::int64_t>;

struct DeleteStatus {
  void operator()(TfStatus* status) const { api().DeleteStatus(status); }
};
using StatusPtr = std::unique_ptr<TfStatus, DeleteStatus>;
StatusPtr makeStatus();

// An input, or an output that has been allocated.
struct TensorView {
  TensorPtr tensor;
  TfType type{};
  Dims dims;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// What TensorFlow refuses, with its own status. Caught by runGuarded().
struct Refused {
  TfCode code;
  std::string text;
};

// Shared by whoever may end it. It is ended once, by finish() or fail(), and what TensorFlow gave
// us is not touched after that: so whatever outlives the kernel's call is kept here, and let go of
// before TensorFlow is told. Not thread-safe: steps of one operation follow each other.
class Invocation {
 public:
  // `key` outlives it: the kernel's own.
  Invocation(TfContext* context, const TfDone* done, const std::string& key);
  ~Invocation();
  Invocation(const Invocation&) = delete;
  Invocation& operator=(const Invocation&) = delete;

  // Behind the order token, which is input 0.
  int numTensors() const;
  TensorView tensor(int index) const;

  TensorView allocate(int output, TfType type, const Dims& dims, std::size_t bytes) const;
  void setOutput(int output, const TfTensor* tensor) const;

  // What the operation needs until its end; once.
  template <class State>
  State& keep() {
    auto state = std::make_shared<State>();
    kept_ = state;
    return *state;
  }

  void finish();
  void fail(const Failure& failure);
  void fail(const Error& error) { fail(failureOf(error, key_)); }
  void failWithoutGroup() { fail(notInitialized(key_)); }

 private:
  TfContext* const context_;
  std::function<void()> done_;
  const std::string& key_;
  std::shared_ptr<void> kept_;
};

// Runs a step of an operation; an exception is the operation's failure. TensorFlow is compiled to
// know of none.
void runGuarded(Invocation& invocation, const std::function<void()>& step) noexcept;

}  // namespace smd::tensorflow
