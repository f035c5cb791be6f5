// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Two objects: `Loop` is what users hold; `Core` is what the thread works on and shares with it.
// So the last user may let go anywhere, also inside a callback on the loop thread: the thread then
// finishes on its own Core, detached.
//
// Core's mutex protects bookkeeping only. No callback, deferred function or destructor of one runs
// under it, so users may hold their own locks when they call in.
#include "event_loop/event_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/file_descriptor.h"
#include "common/fork.h"
#include "common/log.h"
#include "common/signals.h"

namespace smd::event_loop {
namespace {

using Clock = std::chrono::steady_clock;
using Function = std::function<void()>;
using Callback = std::function<void(std::uint32_t)>;

// Events carry the number of their watch, not the descriptor: after unwatch() and close() the
// descriptor's number may be reused while an old event for it is still in hand.
constexpr std::uint64_t kWakeWatch = 0;
constexpr std::size_t kEventsPerRound = 64;

class Core {
 public:
  Core() {
    epoll_ = FileDescriptor::fromCall([] { return ::epoll_create1(EPOLL_CLOEXEC); });
    if (!epoll_.isOpen()) {
      throw systemError("epoll_create1");
    }
    wake_ = FileDescriptor::fromCall([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (!wake_.isOpen()) {
      throw systemError("eventfd");
    }
    control(EPOLL_CTL_ADD, wake_.get(), EPOLLIN, kWakeWatch);
  }

  void watch(int fd, std::uint32_t events, Callback callback) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t number = nextWatch_++;
    // All of it or, without memory, nothing: unwatch() may be called in any case.
    const auto [place, isNew] = numbers_.try_emplace(fd, number);
    try {
      watches_.emplace(number, std::make_shared<Callback>(std::move(callback)));
      control(EPOLL_CTL_ADD, fd, events, number);
    } catch (...) {
      watches_.erase(number);
      if (isNew) numbers_.erase(place);
      throw;
    }
    place->second = number;
  }

  void modify(int fd, std::uint32_t events) {
    const std::lock_guard lock(mutex_);
    if (const auto found = numbers_.find(fd); found != numbers_.end()) {
      control(EPOLL_CTL_MOD, fd, events, found->second);
    }
  }

  void unwatch(int fd) {
    std::shared_ptr<Callback> callback;  // destroyed after the lock is released
    std::unique_lock lock(mutex_);
    const auto found = numbers_.find(fd);
    if (found == numbers_.end()) {
      return;
    }
    const std::uint64_t number = found->second;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    numbers_.erase(found);
    const auto watch = watches_.find(number);
    callback = std::move(watch->second);
    watches_.erase(watch);
    if (!isLoopThread()) {
      callbackDone_.wait(lock, [&] { return running_ != number; });
    }
  }

  void defer(Function function) {
    const std::lock_guard lock(mutex_);
    deferred_.push_back(std::move(function));
    wakeLocked();
  }

  void runAfter(Clock::duration delay, Function function) {
    const std::lock_guard lock(mutex_);
    timers_.push_back({Clock::now() + delay, nextTimer_++, std::move(function)});
    std::push_heap(timers_.begin(), timers_.end(), firesLater);
    wakeLocked();
  }

  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    wakeLocked();
  }

  bool isLoopThread() const {
    return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  void run() {
    thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    std::array<epoll_event, kEventsPerRound> events;
    while (true) {
      if (!runDueFunctions()) {
        return;
      }
      const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerRound, timeout());
      for (int i = 0; i < count; ++i) {
        dispatch(events[static_cast<std::size_t>(i)]);
      }
    }
  }

 private:
  struct Timer {
    Clock::time_point deadline;
    std::uint64_t number;  // equal deadlines fire in the order of their making
    Function function;
  };

  static bool firesLater(const Timer& a, const Timer& b) {
    return a.deadline != b.deadline ? a.deadline > b.deadline : a.number > b.number;
  }

  void control(int operation, int fd, std::uint32_t events, std::uint64_t number) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = number;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
      throw systemError("epoll_ctl");
    }
  }

  void wakeLocked() {
    if (!awake_ && !isLoopThread()) {
      awake_ = true;
      const std::uint64_t one = 1;
      // Cannot fail short of a full counter, in which case the loop is awake anyway.
      [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
    }
  }

  // Milliseconds until the next timer, rounded up; -1 for "until something happens".
  int timeout() {
    const std::lock_guard lock(mutex_);
    if (!deferred_.empty() || stopped_) {
      return 0;
    }
    if (timers_.empty()) {
      return -1;
    }
    const auto wait =
        std::chrono::ceil<std::chrono::milliseconds>(timers_.front().deadline - Clock::now());
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(1);
    return static_cast<int>(std::clamp(wait, std::chrono::milliseconds(0), kLongest).count());
  }

  // Returns false when the loop has been stopped.
  bool runDueFunctions() {
    std::vector<Function> due;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) {
        return false;
      }
      due.swap(deferred_);
      const auto now = Clock::now();
      while (!timers_.empty() && timers_.front().deadline <= now) {
        std::pop_heap(timers_.begin(), timers_.end(), firesLater);
        due.push_back(std::move(timers_.back().function));
        timers_.pop_back();
      }
    }
    for (Function& function : due) {
      runGuarded(function);
      function = nullptr;  // what it owns goes now, not after the functions behind it
    }
    return true;
  }

  // Those who watch deal with their own errors. What they let through ends neither the process nor
  // the other users of the loop; most likely there was no memory.
  template <typename Work>
  static void runGuarded(const Work& work) {
    try {
      work();
    } catch (const std::exception& error) {
      logWarning(reasonOf(error));
    }
  }

  void dispatch(const epoll_event& event) {
    if (event.data.u64 == kWakeWatch) {
      const std::lock_guard lock(mutex_);
      std::uint64_t count = 0;
      [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof(count));
      awake_ = false;
      return;
    }
    std::shared_ptr<Callback> callback;
    {
      const std::lock_guard lock(mutex_);
      const auto found = watches_.find(event.data.u64);
      if (found == watches_.end()) {
        return;
      }
      callback = found->second;
      running_ = event.data.u64;
    }
    runGuarded([&] { (*callback)(event.events); });
    callback.reset();  // before unwatch() may return: the caller may destroy what it refers to
    {
      const std::lock_guard lock(mutex_);
      running_ = kWakeWatch;
    }
    callbackDone_.notify_all();
  }

  FileDescriptor epoll_;
  FileDescriptor wake_;
  std::atomic<std::thread::id> thread_{};

  std::mutex mutex_;
  std::condition_variable callbackDone_;
  std::uint64_t running_ = kWakeWatch;  // the watch whose callback is running
  std::uint64_t nextWatch_ = kWakeWatch + 1;
  std::uint64_t nextTimer_ = 0;
  std::unordered_map<int, std::uint64_t> numbers_;  // of the watches, by descriptor
  std::unordered_map<std::uint64_t, std::shared_ptr<Callback>> watches_;
  std::vector<Function> deferred_;
  std::vector<Timer> timers_;  // a heap
  bool awake_ = false;         // a wake-up is on its way
  bool stopped_ = false;
};

std::thread start(std::shared_ptr<Core> core) {
  const NoSignals meanwhile;
  return std::thread([core = std::move(core)] {
    pthread_setname_np(pthread_self(), "smd-event-loop");
    core->run();
  });
}

class Loop final : public EventLoop {
 public:
  Loop()
      : generation_(forkGeneration()),
        core_(std::make_shared<Core>()),
        thread_(std::make_unique<std::thread>()) {
    *thread_ = start(core_);  // no memory for its place would end the process if it ran already
  }

  ~Loop() override {
    if (isForkedChild(generation_)) {
      // No thread to join, and locks and condition variables may be caught in mid-air, where even
      // destroying them can hang. A leak in a child is harmless.
      static_cast<void>(thread_.release());
      static_cast<void>(new std::shared_ptr<Core>(std::move(core_)));
      return;
    }
    core_->stop();
    if (core_->isLoopThread()) {
      thread_->detach();
    } else {
      thread_->join();
    }
  }

  void watch(int fd, std::uint32_t events, Callback callback) override {
    if (belongsHere()) {
      core_->watch(fd, events, std::move(callback));
    }
  }
  void modify(int fd, std::uint32_t events) override {
    if (belongsHere()) {
      core_->modify(fd, events);
    }
  }
  void unwatch(int fd) override {
    if (belongsHere()) {
      core_->unwatch(fd);
    }
  }
  void defer(Function function) override {
    if (belongsHere()) {
      core_->defer(std::move(function));
    }
  }
  void runAfter(std::chrono::milliseconds delay, Function function) override {
    if (belongsHere()) {
      core_->runAfter(delay, std::move(function));
    }
  }
  bool isLoopThread() const override { return belongsHere() && core_->isLoopThread(); }

  bool belongsHere() const { return !isForkedChild(generation_); }

 private:
  const std::uint64_t generation_;
  std::shared_ptr<Core> core_;
  std::unique_ptr<std::thread> thread_;
};

struct ProcessLoop {
  std::mutex mutex;
  std::weak_ptr<Loop> loop;
};

// Never destroyed: threads may outlive the static objects of the program.
ProcessLoop& processLoop() {
  static ProcessLoop& instance = *new ProcessLoop;
  return instance;
}

}  // namespace

std::shared_ptr<EventLoop> EventLoop::process() {
  // Held over a fork so that a child never finds it locked by a thread that it does not have.
  static const int kInstalled = pthread_atfork([] { processLoop().mutex.lock(); },    //
                                               [] { processLoop().mutex.unlock(); },  //
                                               [] { processLoop().mutex.unlock(); });
  static_cast<void>(kInstalled);
  ProcessLoop& slot = processLoop();
  const std::lock_guard lock(slot.mutex);
  std::shared_ptr<Loop> loop = slot.loop.lock();
  if (loop == nullptr || !loop->belongsHere()) {
    loop = std::make_shared<Loop>();
    slot.loop = loop;
  }
  return loop;
}

}  // namespace smd::event_loop
