// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Tasks, works and the progress thread, without any communication.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "common/task.h"
#include "engine/group/progress.h"
#include "engine/group/work.h"

namespace smd::engine {
namespace {

class Flag final : public Condition {
 public:
  bool isMet() override {
    if (throws) throw Error(ErrorKind::kMismatch, "from the condition");
    return isSet.load(std::memory_order_acquire);
  }
  std::vector<int> missingRanks() override { return {3}; }
  std::atomic<bool> isSet{false};
  bool throws = false;
};

Task waitTwice(Flag& first, Flag& second, std::vector<int>& steps) {
  steps.push_back(1);
  co_await first;
  steps.push_back(2);
  co_await second;
  steps.push_back(3);
}

Task outer(Task inner) {
  Nested nested(inner);
  co_await nested;
}

TEST(Task, StopsAtConditionsThatAreNotMet) {
  Flag first, second;
  std::vector<int> steps;
  Task task = waitTwice(first, second, steps);
  EXPECT_TRUE(steps.empty());
  EXPECT_FALSE(task.advance());
  EXPECT_FALSE(task.advance());
  EXPECT_EQ(steps, (std::vector<int>{1}));
  EXPECT_EQ(task.awaited(), &first);
  first.isSet = true;
  EXPECT_FALSE(task.advance());
  EXPECT_EQ(task.awaited(), &second);
  second.isSet = true;
  EXPECT_TRUE(task.advance());
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3}));
}

// Whoever judges a waiting operation looks at its condition between two advances; nested in another
// one it may finish at that. Before 0.1.0 was released the next advance resumed it once more.
TEST(Task, ANestedOneMayFinishWhileItsConditionIsLookedAt) {
  Flag first, second;
  std::vector<int> steps;
  Task task = outer(waitTwice(first, second, steps));
  EXPECT_FALSE(task.advance());
  EXPECT_EQ(task.awaited()->missingRanks(), (std::vector<int>{3}));
  first.isSet = second.isSet = true;
  EXPECT_TRUE(task.awaited()->isMet());
  EXPECT_TRUE(task.awaited()->isMet());
  EXPECT_TRUE(task.advance());
  EXPECT_TRUE(task.advance());
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3}));
}

struct Guard {
  explicit Guard(bool& isAlive) : isAlive_(isAlive) { isAlive_ = true; }
  ~Guard() { isAlive_ = false; }
  bool& isAlive_;
};

Task holdAndWait(Flag& flag, bool& isAlive) {
  Guard guard(isAlive);
  co_await flag;
}

// Messages under way refer to what is in the frame: it stays until reset(), also if the condition
// throws at its first look. Before 0.1.0 was released that unwound the frame.
TEST(Task, AConditionThatThrowsLeavesTheFrameInPlace) {
  Flag flag;
  flag.throws = true;
  bool isAlive = false;
  Task task = holdAndWait(flag, isAlive);
  EXPECT_THROW(task.advance(), Error);
  EXPECT_TRUE(isAlive);
  task.reset();
  EXPECT_FALSE(isAlive);
}

Task throwing() {
  throw Error(ErrorKind::kInternal, "from the body");
  co_return;
}

TEST(Task, WhatTheBodyThrowsIsThrownAgain) {
  Task task = outer(throwing());
  EXPECT_THROW(task.advance(), Error);
}

TEST(Work, WaitersWakeUpAndCallbacksRunOnce) {
  for (int repetition = 0; repetition < 200; ++repetition) {
    Work work;
    std::atomic<int> numCalls{0};
    work.onCompletion([&] { ++numCalls; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        work.onCompletion([&] { ++numCalls; });
        EXPECT_TRUE(work.waitUntil(TimePoint::max(), nullptr));
        EXPECT_EQ(work.error()->kind(), ErrorKind::kTimeout);
      });
    }
    if (repetition % 2 == 0) std::this_thread::yield();
    work.complete(Error(ErrorKind::kTimeout, "late"));
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(numCalls, 4);
    work.onCompletion([&] { ++numCalls; });
    EXPECT_EQ(numCalls, 5);
  }
}

// Both look whether the other was first; a callback that falls in between would never be called,
// and a future never be done. One thread follows the other closely, so that they meet often enough.
TEST(Work, ACallbackAddedWhileItCompletesRunsOnce) {
  constexpr int kWorks = 100'000;
  std::vector<Work> works(kWorks);
  std::atomic<int> reached{-1};
  std::atomic<int> numCalls{0};
  std::thread completing([&] {
    for (int i = 0; i < kWorks; ++i) {
      while (reached.load() < i) std::this_thread::yield();
      works[static_cast<std::size_t>(i)].complete(std::nullopt);
    }
  });
  for (int i = 0; i < kWorks; ++i) {
    reached.store(i);
    works[static_cast<std::size_t>(i)].onCompletion([&] { ++numCalls; });
  }
  completing.join();
  EXPECT_EQ(numCalls, kWorks);
}

TEST(Work, WaitingEndsAtItsDeadlineAndWhenInterrupted) {
  Work work;
  const TimePoint end = Clock::now() + milliseconds(20);
  EXPECT_FALSE(work.waitUntil(end, nullptr));
  EXPECT_GE(Clock::now(), end);
  EXPECT_FALSE(work.waitUntil(TimePoint::max(), [] { return true; }));
}

// Counts down from what it is given; idle at zero.
class Countdown final : public Advancing {
 public:
  Result advance() override {
    ++numAdvances;
    if (isBlocked) return Result::kBlocked;
    int left = remaining.load();
    if (left == 0) return Result::kIdle;
    remaining.store(left - 1);
    remaining.notify_all();
    return Result::kMoved;
  }
  Doorbell& bell() override { return bell_; }
  void waitForZero() {
    for (int left = 0; (left = remaining.load()) != 0;) remaining.wait(left);
  }
  std::atomic<int> remaining{0};
  std::atomic<bool> isBlocked{false};
  std::atomic<int> numAdvances{0};

 private:
  Doorbell bell_;
};

TEST(ProgressThread, AdvancesWhatIsAddedUntilItIsIdle) {
  auto countdown = std::make_shared<Countdown>();
  for (int repetition = 0; repetition < 200; ++repetition) {
    countdown->remaining = 3;
    ProgressThread::process().add(countdown);
    countdown->waitForZero();
  }
  ProgressThread::process().shutdown();
  EXPECT_TRUE(ProgressThread::process().isStopped());
  EXPECT_EQ(countdown.use_count(), 1);
}

TEST(ProgressThread, ABellThatIsRungEndsItsSleep) {
  auto countdown = std::make_shared<Countdown>();
  for (int repetition = 0; repetition < 20; ++repetition) {
    countdown->isBlocked = true;
    countdown->remaining = 1;
    ProgressThread::process().add(countdown);
    // Until it sleeps for it, or soon will.
    while (countdown->bell().sleepers.load() == 0) std::this_thread::yield();
    countdown->isBlocked = false;
    fullFence();
    countdown->bell().ringIfAsleep();
    countdown->waitForZero();
  }
  ProgressThread::process().shutdown();
}

// What is left behind may be the last reference to something that is closed by its destructor.
class AsksWhenDestroyed final : public Advancing {
 public:
  ~AsksWhenDestroyed() override { EXPECT_TRUE(ProgressThread::process().isStopped()); }
  Result advance() override { return Result::kBlocked; }
  Doorbell& bell() override { return bell_; }

 private:
  Doorbell bell_;
};

TEST(ProgressThread, ShutdownLetsGoOfWhatIsUnfinished) {
  for (int repetition = 0; repetition < 50; ++repetition) {
    ProgressThread::process().add(std::make_shared<AsksWhenDestroyed>());
    ProgressThread::process().shutdown();
  }
}

TEST(ProgressThread, IsOneForAllThreads) {
  std::vector<std::thread> threads;
  std::vector<ProgressThread*> seen(4);
  for (auto& each : seen) threads.emplace_back([&each] { each = &ProgressThread::process(); });
  for (std::thread& thread : threads) thread.join();
  for (ProgressThread* each : seen) EXPECT_EQ(each, seen[0]);
}

}  // namespace
}  // namespace smd::engine
