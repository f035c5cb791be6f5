// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Collectives as coroutines. An algorithm is written as straight code that awaits conditions ("all
// peers have contributed block 3"). Its driver, the caller's thread or the progress thread, polls
// the condition at which it stopped, and resumes it. So one thread can serve many communicators,
// and an operation can start on one thread and end on another.
#pragma once

#include <coroutine>
#include <exception>
#include <utility>
#include <vector>

namespace smd {

// Something an operation waits for. Lives in the coroutine's frame while it is waited for.
class Condition {
 public:
  virtual ~Condition() = default;
  virtual bool isMet() = 0;
  // The ranks that keep it from being met, for error texts.
  virtual std::vector<int> missingRanks() = 0;
  // Ends the waiting if nobody else is in the middle of something with us; returns whether it did.
  // The condition will not be met afterwards.
  virtual bool abandon() { return false; }
  // Whether nothing but messages of other hosts can meet it.
  virtual bool awaitsOtherHosts() const { return false; }
};

class Task {
 public:
  struct promise_type {
    Condition* awaited = nullptr;
    std::exception_ptr error;

    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }

    // co_await condition; always suspends, and advance() looks at the condition: so what isMet()
    // throws leaves the frame, and the messages under way in it, in place until reset().
    struct Awaiter {
      Condition& condition;
      bool await_ready() { return false; }
      void await_suspend(std::coroutine_handle<promise_type> handle) {
        handle.promise().awaited = &condition;
      }
      void await_resume() {}
    };
    Awaiter await_transform(Condition& condition) { return Awaiter{condition}; }
    Awaiter await_transform(Condition&& condition) { return Awaiter{condition}; }
  };

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() { reset(); }

  // Runs as far as it gets. Returns whether it has finished; throws what the coroutine threw.
  bool advance() {
    promise_type& promise = handle_.promise();
    while (!handle_.done()) {
      if (promise.awaited != nullptr) {
        if (!promise.awaited->isMet()) return false;
        promise.awaited = nullptr;
      }
      handle_.resume();
    }
    if (promise.error) std::rethrow_exception(promise.error);
    return true;
  }

  // What it waits for; null before the first advance().
  Condition* awaited() const { return handle_ ? handle_.promise().awaited : nullptr; }
  bool isDone() const { return handle_ && handle_.done(); }
  bool isStarted() const { return handle_ && handle_.promise().awaited != nullptr; }

  void reset() {
    if (handle_) handle_.destroy();
    handle_ = nullptr;
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// Runs one task inside another: co_await nested;
class Nested final : public Condition {
 public:
  explicit Nested(Task& task) : task_(task) {}
  // May be asked again after the end: a coroutine must not be resumed there.
  bool isMet() override { return isDone_ || (isDone_ = task_.advance()); }
  std::vector<int> missingRanks() override {
    return task_.awaited() == nullptr ? std::vector<int>{} : task_.awaited()->missingRanks();
  }
  bool awaitsOtherHosts() const override {
    return task_.awaited() != nullptr && task_.awaited()->awaitsOtherHosts();
  }

 private:
  Task& task_;
  bool isDone_ = false;
};

}  // namespace smd
