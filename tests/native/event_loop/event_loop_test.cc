// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "event_loop/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/error.h"
#include "common/file_descriptor.h"
#include "support/sanitizers.h"

namespace smd::event_loop {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{60};

FileDescriptor makeEvent(unsigned value) {
  return FileDescriptor::fromCall([&] { return ::eventfd(value, EFD_CLOEXEC | EFD_NONBLOCK); });
}

// Runs `function` on the loop thread and waits for it.
void runOn(EventLoop& loop, const std::function<void()>& function) {
  std::promise<void> done;
  loop.defer([&] {
    function();
    done.set_value();
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
}

// Threads of this process with the name of the loop's.
int countLoopThreads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    count += name == "smd-event-loop" ? 1 : 0;
  }
  return count;
}

// The kernel lists a thread a moment longer than it can be joined, and its name comes a moment
// late.
bool comesToLoopThreads(int count) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (countLoopThreads() != count) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

TEST(EventLoop, IsOneForAllAndEndsWithItsLastUser) {
  auto first = EventLoop::process();
  auto second = EventLoop::process();
  EXPECT_EQ(first, second);
  EXPECT_TRUE(comesToLoopThreads(1));
  first.reset();
  runOn(*second, [] {});
  EXPECT_EQ(countLoopThreads(), 1);
  second.reset();
  EXPECT_TRUE(comesToLoopThreads(0));
  EXPECT_NE(EventLoop::process(), nullptr);
}

TEST(EventLoop, DeferredFunctionsRunInOrderOnTheLoopThread) {
  const auto loop = EventLoop::process();
  EXPECT_FALSE(loop->isLoopThread());
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    loop->defer([&order, i] { order.push_back(i); });
  }
  runOn(*loop, [&] { EXPECT_TRUE(loop->isLoopThread()); });
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
}

TEST(EventLoop, ReportsADescriptorUntilItIsUnwatched) {
  const auto loop = EventLoop::process();
  const FileDescriptor event = makeEvent(1);
  std::atomic<int> calls{0};
  std::promise<void> thirdCall;
  loop->watch(event.get(), EPOLLIN, [&](std::uint32_t events) {
    EXPECT_EQ(events, static_cast<std::uint32_t>(EPOLLIN));
    if (++calls == 3) {  // level-triggered: nobody reads the event, so it is reported again
      thirdCall.set_value();
    }
  });
  ASSERT_EQ(thirdCall.get_future().wait_for(kPatience), std::future_status::ready);
  loop->unwatch(event.get());
  const int before = calls;
  runOn(*loop, [] {});
  EXPECT_EQ(calls, before);
}

TEST(EventLoop, ModifyChangesWhatIsReported) {
  const auto loop = EventLoop::process();
  const FileDescriptor event = makeEvent(1);
  std::atomic<int> calls{0};
  loop->watch(event.get(), 0, [&](std::uint32_t) {
    ++calls;
    loop->modify(event.get(), 0);
  });
  runOn(*loop, [] {});
  EXPECT_EQ(calls, 0);
  loop->modify(event.get(), EPOLLIN);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (calls == 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  runOn(*loop, [] {});
  EXPECT_EQ(calls, 1);
  loop->unwatch(event.get());
  loop->modify(event.get(), EPOLLIN);  // no longer watched: harmless
}

TEST(EventLoop, UnwatchWaitsForARunningCallback) {
  const auto loop = EventLoop::process();
  for (int round = 0; round < 200; ++round) {
    const FileDescriptor event = makeEvent(1);
    std::atomic<bool> hasStarted{false};
    std::atomic<bool> isRunning{false};
    loop->watch(event.get(), EPOLLIN, [&](std::uint32_t) {
      isRunning = true;
      hasStarted = true;
      std::this_thread::yield();
      isRunning = false;
    });
    while (!hasStarted) {
      std::this_thread::yield();
    }
    loop->unwatch(event.get());
    ASSERT_FALSE(isRunning);
  }
}

TEST(EventLoop, CallbackMayUnwatchItself) {
  const auto loop = EventLoop::process();
  const FileDescriptor event = makeEvent(1);
  std::atomic<int> calls{0};
  const auto owned = std::make_shared<int>(0);
  std::promise<void> done;
  loop->watch(event.get(), EPOLLIN, [&, owned](std::uint32_t) {
    ++calls;
    loop->unwatch(event.get());
    done.set_value();
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  runOn(*loop, [] {});
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(owned.use_count(), 1);  // the callback is gone, with what it owned
}

TEST(EventLoop, WatchingADescriptorTwiceIsAnError) {
  const auto loop = EventLoop::process();
  const FileDescriptor event = makeEvent(0);
  loop->watch(event.get(), EPOLLIN, [](std::uint32_t) {});
  EXPECT_THROW(loop->watch(event.get(), EPOLLIN, [](std::uint32_t) {}), Error);
  loop->unwatch(event.get());
}

TEST(EventLoop, TimersFireInTheOrderOfTheirDeadlinesAndNeverEarly) {
  const auto loop = EventLoop::process();
  std::vector<int> order;
  std::promise<void> done;
  const auto start = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration lastFired{};
  runOn(*loop, [&] {  // so that all are set before the first can fire
    loop->runAfter(milliseconds(30), [&] {
      order.push_back(3);
      lastFired = std::chrono::steady_clock::now() - start;
      done.set_value();
    });
    loop->runAfter(milliseconds(10), [&] { order.push_back(1); });
    loop->runAfter(milliseconds(10), [&] { order.push_back(2); });
    loop->runAfter(milliseconds(0), [&] { order.push_back(0); });
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_GE(lastFired, milliseconds(30));
}

TEST(EventLoop, LastUserMayLetGoOnTheLoopThread) {
  std::promise<void> done;
  {
    auto loop = EventLoop::process();
    EventLoop* raw = loop.get();
    std::promise<void> isOurs;
    auto released = isOurs.get_future();
    raw->defer([loop = std::move(loop), &done, &released]() mutable {
      released.wait();
      loop.reset();
      done.set_value();
    });
    isOurs.set_value();
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  }
  EXPECT_TRUE(comesToLoopThreads(0));
}

TEST(EventLoop, ItsThreadTakesNoSignals) {
  const auto loop = EventLoop::process();
  runOn(*loop, [] {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGINT), 1);
    EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
    EXPECT_EQ(sigismember(&blocked, SIGCHLD), 1);
  });
}

// What a test body does in a forked child; its exit code there tells whether all went well.
void expectInChild(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(static_cast<unsigned>(kPatience.count()));
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "the child ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(EventLoop, ForkedChildGetsALoopOfItsOwn) {
  if (!test::kCanStartThreadsInForkedChildren) {
    GTEST_SKIP() << test::kNoThreadsInForkedChildren;
  }
  auto loop = EventLoop::process();
  const FileDescriptor event = makeEvent(1);
  std::atomic<int> calls{0};
  loop->watch(event.get(), EPOLLIN, [&](std::uint32_t) { ++calls; });
  expectInChild([&] {
    std::atomic<bool> hasRun{false};
    loop->defer([&] { hasRun = true; });  // the parent's: does nothing
    loop->unwatch(event.get());           // must not reach the parent's epoll
    auto ours = EventLoop::process();
    if (ours == loop || hasRun) {
      return false;
    }
    loop.reset();
    ours->defer([&] { hasRun = true; });
    ours.reset();  // joins; may or may not have run the function
    auto again = EventLoop::process();
    std::promise<void> done;
    again->defer([&] { done.set_value(); });
    return done.get_future().wait_for(kPatience) == std::future_status::ready;
  });
  const int before = calls;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (calls == before && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_GT(calls, before);  // still watched here
  loop->unwatch(event.get());
}

TEST(EventLoop, ForkWhileTheLoopIsBusyIsHarmless) {
  if (!test::kMayForkWhileOthersAllocate) {
    GTEST_SKIP() << test::kNoForkWhileOthersAllocate;
  }
  if (!test::kCanStartThreadsInForkedChildren) {
    GTEST_SKIP() << test::kNoThreadsInForkedChildren;
  }
  const auto loop = EventLoop::process();
  const FileDescriptor event = makeEvent(1);
  loop->watch(event.get(), EPOLLIN, [&](std::uint32_t) { loop->defer([] {}); });
  for (int round = 0; round < 20; ++round) {
    expectInChild([] {
      const auto ours = EventLoop::process();
      std::promise<void> done;
      ours->defer([&] { done.set_value(); });
      return done.get_future().wait_for(kPatience) == std::future_status::ready;
    });
  }
  loop->unwatch(event.get());
}

}  // namespace
}  // namespace smd::event_loop
