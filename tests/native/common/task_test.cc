// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "common/task.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace smd {
namespace {

class Flag final : public Condition {
 public:
  bool isMet() override { return value_; }
  std::vector<int> missingRanks() override { return value_ ? std::vector<int>{} : std::vector{7}; }
  void set() { value_ = true; }

 private:
  bool value_ = false;
};

Task awaitAll(std::vector<Flag*> flags) {
  for (Flag* flag : flags) co_await *flag;
}

Task awaitNested(Task& task) {
  Nested nested(task);
  co_await nested;
}

Task awaitThenThrow(Flag& flag) {
  co_await flag;
  throw std::runtime_error("after the flag");
}

TEST(Task, GoesOnAsFarAsItsConditionsAreMet) {
  Flag first;
  Flag second;
  Task task = awaitAll({&first, &second});
  EXPECT_FALSE(task.advance());
  EXPECT_EQ(task.awaited(), &first);
  EXPECT_FALSE(task.advance());
  first.set();
  EXPECT_FALSE(task.advance());
  EXPECT_EQ(task.awaited(), &second);
  second.set();
  EXPECT_TRUE(task.advance());
}

TEST(Task, ThrowsWhatItsCodeThrew) {
  Flag flag;
  Task task = awaitThenThrow(flag);
  EXPECT_FALSE(task.advance());
  flag.set();
  EXPECT_THROW(task.advance(), std::runtime_error);
}

TEST(Nested, TellsWhatItsTaskWaitsFor) {
  Flag flag;
  Task inner = awaitAll({&flag});
  Task outer = awaitNested(inner);
  EXPECT_FALSE(outer.advance());
  EXPECT_EQ(outer.awaited()->missingRanks(), std::vector{7});
}

// The communicator polls what an operation waits for once more before it blames a lost peer, and
// then advances the operation: the task inside must not be resumed after its end.
TEST(Nested, MayBePolledAgainAfterItsTaskHasEnded) {
  Flag flag;
  Task inner = awaitAll({&flag});
  Task outer = awaitNested(inner);
  EXPECT_FALSE(outer.advance());
  flag.set();
  EXPECT_TRUE(outer.awaited()->isMet());
  EXPECT_TRUE(outer.awaited()->isMet());
  EXPECT_TRUE(outer.advance());
}

}  // namespace
}  // namespace smd
