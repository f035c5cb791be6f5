// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What there is one of in each process, for threads that ask at the same time and after a fork.
#include "common/per_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <mutex>
#include <thread>
#include <vector>

namespace smd {
namespace {

struct Counted {
  std::mutex mutex;
  int count = 0;
};

TEST(PerProcess, IsOneForAllThreads) {
  constexpr int kThreads = 8;
  static PerProcess<Counted> instance;
  std::barrier together(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      together.arrive_and_wait();
      Counted& counted = instance.get();
      const std::lock_guard lock(counted.mutex);
      ++counted.count;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(instance.get().count, kThreads);
}

TEST(PerProcess, IsAnotherInAForkedChildAndItsOwnThere) {
  static PerProcess<Counted> instance;
  Counted& own = instance.get();
  own.count = 7;
  own.mutex.lock();  // as another thread may hold it for ever, in the child
  const pid_t child = ::fork();
  if (child == 0) {
    Counted& counted = instance.get();
    const bool isFresh = &counted != &own && counted.count == 0 && counted.mutex.try_lock();
    _exit(isFresh && &instance.get() == &counted ? 0 : 1);
  }
  own.mutex.unlock();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(&instance.get(), &own);
}

}  // namespace
}  // namespace smd
