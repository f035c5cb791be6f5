// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// One run of an asynchronous kernel, from its inputs to TensorFlow's callback; to the end of its
// collective, if it gives TensorFlow a ticket before that (tickets.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/types.h"
#include "tensorflow_ops/api.h"
#include "tensorflow_ops/failure.h"
#include "tensorflow_ops/groups.h"
#include "tensorflow_ops/patience.h"
#include "tensorflow_ops/tensor_ptr.h"

namespace smd::tensorflow_ops {

using Dims = std::vector<std::int64_t>;
using OpenGroupPtr = std::shared_ptr<const OpenGroup>;

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

// Told when an operation with a ticket has ended.
class EndListener {
 public:
  virtual ~EndListener() = default;
  virtual void hasEnded(const std::optional<Failure>& failure) noexcept = 0;
};

// Shared by all threads that may end it. It ends once, by finish() or fail(), within a step
// (runGuarded()); steps of one operation follow each other. Once TensorFlow has been called back,
// nothing that it gave us is touched: so what must outlive the kernel's call is kept here, and
// freed before the callback. With a ticket that is true of the run's context only: tensors are
// counted.
class Invocation final : public Waiting, public std::enable_shared_from_this<Invocation> {
 public:
  // Of a collective of this group, if any. With `patience` there is an output for a ticket;
  // without, TensorFlow waits to the end.
  Invocation(TfContext* context, const TfDone* done, std::string key, OpenGroupPtr group = nullptr,
             std::chrono::milliseconds patience = {});
  ~Invocation() override;
  Invocation(const Invocation&) = delete;
  Invocation& operator=(const Invocation&) = delete;

  // The tensors are behind the order token. There are as many outputs, and the ticket behind them,
  // if there is one.
  int numTensors() const;
  TensorView tensor(int index) const;

  // Memory for an output, to be given when it is there.
  TensorView allocate(int output, TfType type, const Dims& dims, std::size_t bytes);
  void give(int output, TensorPtr tensor);

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

  // After the first step.
  void beginPatience();
  bool giveUp() noexcept override;

  // --- with a ticket ---
  // False: it has ended already, and the listener has been told.
  bool tellEnd(std::shared_ptr<EndListener> listener);
  // Makes what it has ended with the outputs of another run, or its failure the status; once.
  void settle(TfContext* other, const StatusPtr& status);
  // Nobody will take the results, which the other ranks have or will have.
  void abandon() noexcept;

 private:
  friend class Step;
  enum class Phase {
    kOpen,   // TensorFlow waits
    kLate,   // TensorFlow has the ticket, and the collective goes on
    kEnded,  // with results or a failure
  };
  bool hasTicket() const { return patience_ > patience_.zero(); }
  void returnTicket();
  void setOutput(int output, const TfTensor* tensor) const;

  TfContext* const context_;
  const std::string key_;
  const OpenGroupPtr group_;
  const std::chrono::milliseconds patience_;
  // Guards what follows. Recursive: a collective may end where it is begun.
  std::recursive_mutex mutex_;
  int numSteps_ = 0;  // that are being made, one within another
  Phase phase_ = Phase::kOpen;
  std::function<void()> done_;  // empty: it has been called
  std::shared_ptr<void> kept_;
  std::vector<bool> isAllocated_;  // by output: TensorFlow has it already
  // With a ticket.
  std::vector<TensorPtr> results_;
  std::optional<Failure> failure_;
  std::shared_ptr<EndListener> listener_;
};

// A step of an operation is being made. At its end, if the operation has ended, TensorFlow is told,
// without any lock. The invocation outlives it.
class Step {
 public:
  explicit Step(Invocation& invocation);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

 private:
  Invocation& invocation_;
};

// The exception that is being handled is the operation's failure.
void failWithException(Invocation& invocation) noexcept;

// Makes a step of an operation; an exception is the operation's failure. TensorFlow is compiled to
// know of none.
template <class Function>
void runGuarded(Invocation& invocation, const Function& step) noexcept {
  const Step meanwhile(invocation);
  try {
    step();
  } catch (...) {
    failWithException(invocation);
  }
}

}  // namespace smd::tensorflow_ops
