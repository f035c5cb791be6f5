// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// That the end of a process of this host is noticed, whenever it ends.
#include "engine/group/liveness.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <new>
#include <string>

#include "common/error.h"
#include "engine/group/process_watch.h"
#include "transport/tcp/link_end.h"

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

// A link that failed for want of memory was taken for a rank that had left: its text ends with "no
// memory left". Whoever waited for anyone to send waited for the deadline then.
TEST(Liveness, OnlyWhoSaysGoodbyeHasLeftInOrder) {
  using namespace transport::tcp;
  const std::string endpoint = "127.0.0.1:1";
  EXPECT_TRUE(hasLeftInOrder(leftInGoodOrder(endpoint).text));
  EXPECT_TRUE(hasLeftInOrder("left the group (it closed it, or its program ended)"));
  for (const LinkEnd& end : {unserved(endpoint, reasonOf(std::bad_alloc())), gaveUp(endpoint),
                             unanswered(endpoint), closedUnexpectedly(endpoint, "")}) {
    EXPECT_FALSE(hasLeftInOrder(end.text)) << end.text;
  }
  EXPECT_FALSE(hasLeftInOrder("died"));
}

TEST(Liveness, AllGroupsShareOneDescriptorForEachProcess) {
  const pid_t child = startSleeper();
  {
    Liveness one(2), another(2);
    one.watchProcess(1, child, [] {});
    another.watchProcess(1, child, [] {});
    EXPECT_EQ(ProcessWatch::process().numDescriptors(), 1U);
    one.stop();
    EXPECT_EQ(ProcessWatch::process().numDescriptors(), 1U);
  }
  EXPECT_EQ(ProcessWatch::process().numDescriptors(), 0U);
  end(child);
}

// While one exists this process can open nothing.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(Liveness, WhoDiesIsLostAlsoWhereThereIsNoDescriptorForIt) {
  const pid_t child = startSleeper();
  std::promise<void> woken;
  Liveness liveness(2);
  {
    const NoDescriptors meanwhile;  // nor for /proc: it is a zombie that has to be recognised
    liveness.watchProcess(1, child, [&] { woken.set_value(); });
    EXPECT_EQ(ProcessWatch::process().numDescriptors(), 0U);
    EXPECT_FALSE(liveness.anyLost());
    ASSERT_EQ(kill(child, SIGKILL), 0);
    woken.get_future().wait();
  }
  EXPECT_EQ(liveness.howLost(1), "died");
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace smd::engine
