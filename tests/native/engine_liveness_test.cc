// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// That the end of a process of this host is noticed, whenever it ends.
#include "engine/liveness.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>

namespace smd::engine {
namespace {

pid_t startSleeper() {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  return child;
}

void end(pid_t child) {
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(Liveness, WhoDiesWhileItIsWatchedIsLostAndWakesUs) {
  const pid_t child = startSleeper();
  std::promise<void> woken;
  Liveness liveness(2);
  liveness.watchProcess(1, child, [&] { woken.set_value(); });
  EXPECT_FALSE(liveness.anyLost());
  end(child);
  woken.get_future().wait();  // the deadline is the program's
  EXPECT_EQ(liveness.howLost(1), "died");
  EXPECT_FALSE(liveness.isLost(0));
}

TEST(Liveness, WhoIsDeadBeforeItIsWatchedIsLostAtOnce) {
  const pid_t child = startSleeper();
  end(child);
  Liveness liveness(2);
  liveness.watchProcess(1, child, [] {});
  EXPECT_TRUE(liveness.anyLost());
  EXPECT_EQ(liveness.howLost(1), "died");
}

}  // namespace
}  // namespace smd::engine
