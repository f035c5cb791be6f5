// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What can go wrong in a group, and what every rank is told: ranks that disagree, that do not come,
// that leave, that abort; closing, forking, interrupting.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <future>
#include <system_error>
#include <vector>

#include "support/engine_harness.h"
#include "support/engine_plans.h"

namespace smd::engine::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Failures : public ::testing::TestWithParam<TransportChoice> {
 protected:
  WorldOptions options(int size, nanoseconds timeout = std::chrono::seconds(60)) const {
    return {.size = size, .transport = GetParam(), .timeout = timeout};
  }
  bool isShared() const { return GetParam() == TransportChoice::kSharedMemory; }

  // Rank `odd` does `other`, the others `usual`: all must get the same mismatch error.
  std::string mismatch(const PlanOptions& usual, const PlanOptions& other, int size = 3,
                       int odd = 1) {
    World world(options(size));
    const Plan usualPlan(usual, size);
    const Plan otherPlan(other, size);
    std::vector<std::string> texts(static_cast<std::size_t>(size));
    world.run([&](int rank) {
      Buffers buffers(rank == odd ? otherPlan : usualPlan, rank);
      const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
      SMD_REQUIRE(work->error().has_value());
      EXPECT_EQ(work->error()->kind(), ErrorKind::kMismatch) << errorOf(*work);
      texts[static_cast<std::size_t>(rank)] = withoutPrefix(errorOf(*work));
      // The first error of the group stays.
      Buffers again(usualPlan, rank);
      const auto later = world.of(rank).collective(again.request(), Mode::kAsync, {});
      waitFor(*later);
      EXPECT_EQ(withoutPrefix(errorOf(*later)), texts[static_cast<std::size_t>(rank)]);
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
    return texts[0];
  }
};

TEST_P(Failures, RanksThatDisagreeAreToldInWhat) {
  for (std::uint64_t count : {std::uint64_t{10}, std::uint64_t{200000}}) {
    const PlanOptions usual{.count = count};
    PlanOptions other = usual;
    other.dtype = DType::kFloat64;
    EXPECT_TRUE(contains(mismatch(usual, other), "all ranks must pass one dtype"));
    other = usual;
    other.op = ReduceOp::kMax;
    EXPECT_TRUE(contains(mismatch(usual, other), "all ranks must pass the same reduce operation"));
    other = usual;
    other.count += 1;
    EXPECT_TRUE(contains(mismatch(usual, other), "all ranks must pass the same sizes"));
    other = usual;
    other.kind = OpKind::kBroadcast;
    other.root = 0;
    EXPECT_TRUE(
        contains(mismatch(usual, other), "all ranks must make the same calls in the same order"));
    other.kind = OpKind::kAllToAll;
    EXPECT_TRUE(
        contains(mismatch(usual, other), "all ranks must make the same calls in the same order"));
  }
}

TEST_P(Failures, RanksThatDisagreeAboutTheSizeAlsoIfTheAlgorithmsDiffer) {
  const std::string text = mismatch({.count = 10}, {.count = 500000});
  EXPECT_TRUE(contains(text, "all ranks must pass the same sizes")) << text;
  EXPECT_TRUE(contains(text, "SUM, float32 x 10")) << text;
  EXPECT_TRUE(contains(text, "SUM, float32 x 500000")) << text;
}

TEST_P(Failures, RanksThatDisagreeAboutTheRoot) {
  // Over messages some send their part and are through: they hear of it in their next operation.
  if (!isShared()) GTEST_SKIP() << "over messages: Record.TwoRootsFindOut";
  for (OpKind kind : {OpKind::kReduce, OpKind::kGather, OpKind::kScatter}) {
    for (std::uint64_t count : {std::uint64_t{10}, std::uint64_t{200000}}) {
      const std::string text = mismatch({.kind = kind, .root = 0, .count = count},
                                        {.kind = kind, .root = 2, .count = count});
      EXPECT_TRUE(contains(text, "Pass a constant root rank")) << text;
    }
  }
}

TEST_P(Failures, RanksThatDisagreeAboutTheListOfSizes) {
  for (OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter}) {
    for (std::uint64_t count : {std::uint64_t{16}, std::uint64_t{200000}}) {
      const std::string text = mismatch({.kind = kind, .count = count},
                                        {.kind = kind, .count = count, .isUneven = true});
      EXPECT_TRUE(contains(text, "all ranks must pass the same sizes")) << text;
    }
  }
}

TEST_P(Failures, SplitsThatDoNotFitNameThePair) {
  constexpr int kSize = 3;
  for (OpKind kind : {OpKind::kAllToAll, OpKind::kGather, OpKind::kScatter}) {
    World world(options(kSize));
    const Plan plan({.kind = kind, .root = 2, .count = 5}, kSize);
    world.run([&](int rank) {
      Buffers buffers(plan, rank);
      auto request = buffers.request();
      // Rank 1 offers less, or expects less, than rank 2 thinks.
      if (rank == 1 && kind == OpKind::kAllToAll) request.inputCounts[2] = 4;
      if (rank == 1 && kind != OpKind::kAllToAll) request.count = 4;
      const auto work = world.of(rank).collective(std::move(request), Mode::kBlocking, {});
      // Over messages only the receiver must find out; the others may be through by then.
      const int receiver = kind == OpKind::kScatter ? 1 : 2;
      if (!work->error() && !isShared() && rank != receiver) return;
      SMD_REQUIRE(work->error().has_value());
      EXPECT_EQ(work->error()->kind(), ErrorKind::kMismatch) << errorOf(*work);
      EXPECT_TRUE(
          contains(errorOf(*work), kind == OpKind::kScatter
                                       ? "rank 2 sends 5 elements to rank 1, which expects 4"
                                       : "rank 1 sends 4 elements to rank 2, which expects 5"))
          << errorOf(*work);
    });
  }
}

// The pair's own part does not fit: found on that rank alone, with messages of others under way.
TEST_P(Failures, AnOwnPartThatDoesNotFit) {
  World world(options(2));
  const Plan plan({.kind = OpKind::kAllToAll, .count = 300000}, 2);
  world.run([&](int rank) {
    auto buffers = std::make_unique<Buffers>(plan, rank);
    auto request = buffers->request();
    if (rank == 0) request.outputCounts[0] = 299999;
    const auto work = world.of(rank).collective(std::move(request), Mode::kBlocking, {});
    buffers.reset();
    SMD_REQUIRE(work->error().has_value());
    EXPECT_EQ(work->error()->kind(), ErrorKind::kMismatch);
    EXPECT_TRUE(contains(errorOf(*work), "rank 0 sends 300000 elements to rank 0"))
        << errorOf(*work);
  });
}

TEST_P(Failures, ATimeoutNamesTheMissingRankOnAllRanks) {
  constexpr int kSize = 3;
  for (std::uint64_t count : {std::uint64_t{10}, std::uint64_t{200000}}) {
    for (Mode mode : {Mode::kBlocking, Mode::kAsync}) {
      World world(options(kSize));
      const Plan plan({.count = count}, kSize);
      std::atomic<int> numReady{0};
      world.run([&](int rank) {
        if (rank == 2) return;
        Buffers buffers(plan, rank);
        ++numReady;
        while (numReady < 2) std::this_thread::yield();
        // Longer than the system may keep rank 0 or 1 from running: it would be missed as well.
        const auto work = world.of(rank).collective(buffers.request(), mode, milliseconds(1200));
        waitFor(*work);
        SMD_REQUIRE(work->error().has_value());
        EXPECT_EQ(work->error()->kind(), ErrorKind::kTimeout) << errorOf(*work);
        EXPECT_TRUE(contains(errorOf(*work), "for rank 2 (host ")) << errorOf(*work);
      });
      // The others' part of the first operation is there: in 2.0.0 before its release the late rank
      // got a result, and then read in the next operation that it had waited for itself.
      world.run([&](int rank) {
        if (rank != 2) return;
        while (!world.of(2).hasFailed()) std::this_thread::yield();
        for (int attempt = 0; attempt < 2; ++attempt) {
          Buffers buffers(plan, rank);
          const auto work = world.of(rank).collective(buffers.request(), mode, {});
          waitFor(*work);
          SMD_REQUIRE(work->error().has_value());
          const std::string text = withoutPrefix(errorOf(*work));
          EXPECT_EQ(work->error()->kind(), ErrorKind::kTimeout) << text;
          EXPECT_EQ(
              text.find("the others gave up on this rank, which had not come to all_reduce #1"), 0u)
              << text;
          EXPECT_TRUE(contains(text, ") has waited ")) << text;
          EXPECT_TRUE(contains(text, " for rank 2 (host ")) << text;
        }
      });
    }
  }
}

TEST_P(Failures, NoTimeoutBeforeItsTime) {
  World world(options(2));
  const Plan plan({.count = 100}, 2);
  world.run([&](int rank) {
    if (rank == 1) std::this_thread::sleep_for(milliseconds(150));
    Buffers buffers(plan, rank);
    const auto work =
        world.of(rank).collective(buffers.request(), Mode::kBlocking, std::chrono::seconds(60));
    requireNone(errorOf(*work) + buffers.problem());
  });
}

TEST_P(Failures, ClosingEndsWhatIsPending) {
  World world(options(2));
  const Plan plan({.count = 200000}, 2);
  world.run([&](int rank) {
    if (rank == 1) return;
    Buffers first(plan, rank);
    Buffers second(plan, rank);
    std::vector<std::byte> bytes(10);
    const auto collective = world.of(0).collective(first.request(), Mode::kAsync, {});
    const auto queued = world.of(0).collective(second.request(), Mode::kAsync, {});
    const auto receiving =
        world.of(0).receive(bytes.data(), 10, DType::kUInt8, 1, 0, Mode::kAsync, {});
    world.of(0).close();
    for (const auto& work : {collective, queued, receiving}) {
      SMD_REQUIRE(work->isCompleted());
      SMD_REQUIRE(work->error().has_value());
      EXPECT_EQ(work->error()->kind(), ErrorKind::kConfiguration);
      EXPECT_TRUE(contains(errorOf(*work), "while the operation was pending")) << errorOf(*work);
    }
    world.of(0).close();  // idempotent
    try {
      world.of(0).collective(first.request(), Mode::kBlocking, {});
      ADD_FAILURE() << "a closed group was used";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
      EXPECT_TRUE(contains(error.what(), "Make the group again")) << error.what();
    }
    EXPECT_THROW(world.of(0).receive(bytes.data(), 10, DType::kUInt8, 1, 0, Mode::kAsync, {}),
                 Error);
  });
  // The other one learns that rank 0 has left.
  world.run([&](int rank) {
    if (rank == 0) return;
    Buffers buffers(plan, rank);
    const auto work = world.of(1).collective(buffers.request(), Mode::kBlocking, {});
    SMD_REQUIRE(work->error().has_value());
    EXPECT_EQ(work->error()->kind(), ErrorKind::kPeerLost) << errorOf(*work);
    EXPECT_TRUE(contains(errorOf(*work), "rank 0 (host ")) << errorOf(*work);
  });
}

// Threads of one rank wait in all ways there are while another one closes the group.
TEST_P(Failures, ClosingMeetsBlockedThreads) {
  for (int repetition = 0; repetition < 10; ++repetition) {
    World world(options(2));
    const Plan plan({.count = 200000}, 2);
    world.run([&](int rank) {
      if (rank == 1) return;
      std::atomic<int> started{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&] {
          Buffers buffers(plan, rank);
          try {
            ++started;
            EXPECT_NE(errorOf(*world.of(0).collective(buffers.request(), Mode::kBlocking, {})), "");
          } catch (const Error&) {  // closed already
          }
        });
        threads.emplace_back([&] {
          std::vector<std::byte> bytes(10);
          try {
            ++started;
            EXPECT_NE(errorOf(*world.of(0).receive(bytes.data(), 10, DType::kUInt8, 1, 0,
                                                   Mode::kBlocking, {})),
                      "");
          } catch (const Error&) {
          }
        });
      }
      while (started < 4) std::this_thread::yield();
      if (repetition % 2 == 0) std::this_thread::sleep_for(milliseconds(5));
      world.of(0).close();
      for (std::thread& thread : threads) thread.join();
    });
  }
}

TEST_P(Failures, ARankThatLeavesIsNamed) {
  constexpr int kSize = 3;
  for (std::uint64_t count : {std::uint64_t{10}, std::uint64_t{200000}}) {
    for (Mode mode : {Mode::kBlocking, Mode::kAsync}) {
      World world(options(kSize));
      const Plan plan({.count = count}, kSize);
      world.run([&](int rank) {
        Buffers first(plan, rank);
        requireNone(errorOf(*world.of(rank).collective(first.request(), Mode::kBlocking, {})));
        if (rank == 2) {
          world.of(2).close();
          return;
        }
        Buffers second(plan, rank);
        const auto work = world.of(rank).collective(second.request(), mode, {});
        waitFor(*work);
        SMD_REQUIRE(work->error().has_value());
        EXPECT_EQ(work->error()->kind(), ErrorKind::kPeerLost) << errorOf(*work);
        EXPECT_TRUE(contains(errorOf(*work), "rank 2 (host ")) << errorOf(*work);
      });
    }
  }
}

TEST_P(Failures, AbortEndsEveryRanksOperations) {
  constexpr int kSize = 3;
  World world(options(kSize));
  const Plan plan({.count = 200000}, kSize);
  world.run([&](int rank) {
    if (rank == 0) {
      world.of(0).abort("the disk is full");
      std::byte byte{};
      const auto work = world.of(0).send(&byte, 1, DType::kUInt8, 1, 0, Mode::kBlocking, {});
      EXPECT_TRUE(contains(errorOf(*work), "the disk is full")) << errorOf(*work);
      return;
    }
    for (Mode mode : {Mode::kAsync, Mode::kBlocking}) {
      Buffers buffers(plan, rank);
      const auto work = world.of(rank).collective(buffers.request(), mode, {});
      waitFor(*work);
      SMD_REQUIRE(work->error().has_value());
      EXPECT_EQ(work->error()->kind(), ErrorKind::kPeerLost);
      EXPECT_TRUE(contains(errorOf(*work), "rank 0 (host ")) << errorOf(*work);
      EXPECT_TRUE(contains(errorOf(*work), "aborted the group: the disk is full"))
          << errorOf(*work);
    }
  });
}

// While it is in the progress thread, nothing else is carried out there.
class Plug final : public Advancing {
 public:
  Plug() : isIn_(hasCome_.get_future()), isLetGo_(letGo_.get_future()) {}
  Result advance() override {
    hasCome_.set_value();
    isLetGo_.wait();
    return Result::kIdle;
  }
  Doorbell& bell() override { return bell_; }

  void await() { isIn_.wait(); }
  void letGo() { letGo_.set_value(); }

 private:
  std::promise<void> hasCome_, letGo_;
  std::future<void> isIn_, isLetGo_;
  Doorbell bell_;
};

// Rank 1 has done its part of a collective, and fails before it has got the others'. Rank 0 has
// begun, and when it looks again it has all that it takes, and the failure: it gives no result that
// rank 1 does not have.
TEST_P(Failures, ACollectiveThatTheFailingRankHasNotCompletedGivesNoResult) {
  constexpr int kSize = 3;
  World world(options(kSize));
  const Plan plan({.count = 4}, kSize);
  std::deque<Buffers> buffers;
  for (int rank = 0; rank < kSize; ++rank) buffers.emplace_back(plan, rank);
  const auto begin = [&](int rank) {
    return world.of(rank).collective(buffers[static_cast<std::size_t>(rank)].request(),
                                     Mode::kAsync, {});
  };
  world.run([&](int rank) { waitFor(*begin(rank)); });  // so that there are connections
  const auto plug = std::make_shared<Plug>();
  ProgressThread::process().add(plug);
  plug->await();
  const auto first = begin(0);
  const auto failing = begin(1);
  const auto last = begin(2);
  EXPECT_FALSE(first->isCompleted());
  EXPECT_FALSE(failing->isCompleted());
  if (!isShared()) std::this_thread::sleep_for(milliseconds(50));  // what was sent arrives
  world.of(1).abort("the disk is full");
  const TimePoint end = Clock::now() + kPatience;
  while (!world.of(0).hasFailed() && Clock::now() < end) std::this_thread::yield();
  plug->letGo();
  for (const auto& work : {first, failing}) {
    waitFor(*work);
    EXPECT_TRUE(contains(errorOf(*work), "aborted the group: the disk is full")) << errorOf(*work);
  }
  waitFor(*last);
}

// It is told by a collective in which the receiver waits for it, and names itself.
TEST_P(Failures, ASendThatNobodyReceivesNamesItsReceiver) {
  World world(options(2));
  world.run([&](int rank) {
    if (rank == 1) {
      while (world.of(0).flightRecord().position.underWay() == nullptr) std::this_thread::yield();
      const auto work =
          world.of(1).collective(algorithms::Request{}, Mode::kBlocking, milliseconds(1000));
      EXPECT_EQ(withoutPrefix(errorOf(*work)).find("rank 1 (host "), 0u) << errorOf(*work);
      EXPECT_TRUE(contains(errorOf(*work), "for rank 0 (host ")) << errorOf(*work);
      return;
    }
    std::vector<std::byte> bytes(300000);  // more than goes unasked
    const auto work =
        world.of(0).send(bytes.data(), bytes.size(), DType::kUInt8, 1, 0, Mode::kBlocking, {});
    SMD_REQUIRE(work->error().has_value());
    const std::string text = withoutPrefix(errorOf(*work));
    EXPECT_EQ(work->error()->kind(), ErrorKind::kTimeout) << text;
    EXPECT_EQ(text.find("has waited "), 0u) << text;
    EXPECT_TRUE(contains(text, "s for rank 1 (host ")) << text;
    EXPECT_TRUE(contains(text, ") to receive; meanwhile the others gave up on this rank")) << text;
    EXPECT_TRUE(contains(text, "had not come to barrier #1 yet: rank 1 (host ")) << text;
  });
}

// At any moment of whatever is under way. Buffers are freed at once: nobody may touch them any
// more.
// Both calls are there and match.
TEST_P(Failures, RanksThatBothSendFirstReadWhyThatIsNoGood) {
  World world(options(2));
  world.run([&](int rank) {
    const std::vector<std::byte> bytes(300000);  // more than goes unasked
    const auto work = world.of(rank).send(bytes.data(), bytes.size(), DType::kUInt8, 1 - rank, 0,
                                          Mode::kBlocking, milliseconds(1000));
    EXPECT_TRUE(contains(errorOf(*work), "both send first and receive later")) << errorOf(*work);
  });
}

TEST_P(Failures, AbortMeetsOperationsUnderWay) {
  constexpr int kSize = 3;
  const Plan plan({.kind = OpKind::kAllReduce, .count = 300000}, kSize);
  const Plan other({.kind = OpKind::kAllToAll, .count = 70000}, kSize);
  for (int repetition = 0; repetition < (kIsSlow ? 4 : 15); ++repetition) {
    World world(options(kSize));
    world.run([&](int rank) {
      for (int i = 0; i < 1000; ++i) {
        auto first = std::make_unique<Buffers>(plan, rank);
        auto second = std::make_unique<Buffers>(other, rank);
        std::vector<std::byte> mine(100000);
        std::vector<std::byte> theirs(100000);
        const auto receiving =
            world.of(rank).receive(theirs.data(), theirs.size(), DType::kUInt8,
                                   (rank + kSize - 1) % kSize, 1, Mode::kAsync, {});
        const auto sending = world.of(rank).send(mine.data(), mine.size(), DType::kUInt8,
                                                 (rank + 1) % kSize, 1, Mode::kAsync, {});
        const auto one = world.of(rank).collective(first->request(), Mode::kAsync, {});
        const auto two = world.of(rank).collective(second->request(), Mode::kBlocking, {});
        if (rank == repetition % kSize && i == repetition % 4) world.of(rank).abort("now");
        bool hasFailed = false;
        for (const auto& work : {receiving, sending, one, two}) {
          waitFor(*work);
          hasFailed = hasFailed || work->error().has_value();
        }
        if (hasFailed) {
          EXPECT_TRUE(contains(errorOf(*two) + errorOf(*receiving) + errorOf(*sending),
                               "aborted the group: now"))
              << errorOf(*two);
          return;
        }
      }
      ADD_FAILURE() << "rank " << rank << " never noticed the abort";
    });
  }
}

TEST_P(Failures, AForkedChildMayNotUseTheGroupAndHarmsNobody) {
  World world(options(2));
  const Plan plan({.count = 100}, 2);
  const auto reduceOnce = [&] {
    world.run([&](int rank) {
      Buffers buffers(plan, rank);
      const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
      requireNone(errorOf(*work) + buffers.problem());
    });
  };
  reduceOnce();
  const pid_t child = fork();
  if (child == 0) {
    int status = 1;
    try {
      std::byte byte{};
      world.of(0).send(&byte, 1, DType::kUInt8, 1, 0, Mode::kBlocking, {});
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kConfiguration) status = 0;
    }
    world.of(0).abort("in the child");
    world.release(0);  // destroys it
    world.release(1);
    _exit(status);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  reduceOnce();
}

std::atomic<bool> isInterrupted{false};

TEST_P(Failures, AnInterruptedCallReturnsAndTheOthersAreTold) {
  for (bool hasEarlierWork : {false, true}) {
    World world(options(2));
    const Plan plan({.count = 200000}, 2);
    std::atomic<std::thread::id> user{};
    std::atomic<bool> hasGivenUp{false};
    setInterruptCheck([&] { return std::this_thread::get_id() == user.load() && isInterrupted; });
    isInterrupted = true;
    world.run([&](int rank) {
      auto first = std::make_unique<Buffers>(plan, rank);
      auto second = std::make_unique<Buffers>(plan, rank);
      if (rank == 0) {
        user = std::this_thread::get_id();
        std::shared_ptr<Work> earlier;
        if (hasEarlierWork) earlier = world.of(0).collective(first->request(), Mode::kAsync, {});
        EXPECT_THROW(world.of(0).collective(second->request(), Mode::kBlocking, {}), Interrupted);
        hasGivenUp = true;
        second.reset();
        if (earlier) waitFor(*earlier);
        return;
      }
      while (!hasGivenUp) std::this_thread::yield();
      const auto work = world.of(1).collective(first->request(), Mode::kBlocking, {});
      SMD_REQUIRE(work->error().has_value());
      EXPECT_TRUE(contains(errorOf(*work), "interrupted by its user")) << errorOf(*work);
    });
    setInterruptCheck({});
  }
}

// Waiting is not the operation: who is interrupted in it, or waits long enough, leaves it under
// way.
TEST_P(Failures, AnInterruptedOrEndedWaitLeavesTheOperationUnderWay) {
  using Drive = Communicator::Drive;
  World world(options(2));
  const Plan plan({.count = 200000}, 2);
  std::atomic<std::thread::id> user{};
  std::atomic<bool> hasWaited{false};
  setInterruptCheck([&] { return std::this_thread::get_id() == user.load(); });
  world.run([&](int rank) {
    Buffers buffers(plan, rank);
    if (rank == 1) {
      while (!hasWaited.load()) std::this_thread::yield();
    }
    const auto work = world.of(rank).collective(buffers.request(), Mode::kAsync, {});
    if (rank == 0) {
      EXPECT_EQ(world.of(0).wait(*work, Clock::now() + milliseconds(20)), Drive::kNotYet);
      user = std::this_thread::get_id();
      EXPECT_EQ(world.of(0).wait(*work, TimePoint::max()), Drive::kInterrupted);
      user = std::thread::id();
      hasWaited = true;
      EXPECT_EQ(world.of(0).wait(*work, Clock::now() + kPatience), Drive::kDone);
    }
    waitFor(*work);
    requireNone(errorOf(*work) + buffers.problem());
  });
  setInterruptCheck({});
}

INSTANTIATE_TEST_SUITE_P(Engine, Failures,
                         ::testing::Values(TransportChoice::kSharedMemory, TransportChoice::kTcp),
                         [](const auto& each) {
                           return each.param == TransportChoice::kTcp ? "tcp" : "shm";
                         });

// --- the ways along which a failure is told ---

// `failing` aborts before anybody has sent anything, `waiting` waits for `awaited`, which computes,
// as do all others. In 2.0.0 before its release `failing` opened a connection to each of them.
void expectAbortIsHeard(const WorldOptions& options, int failing, int waiting, int awaited) {
  World world(options);
  std::atomic<bool> isHeard{false};
  world.run([&](int rank) {
    if (rank == failing) {
      while (world.of(waiting).flightRecord().position.underWay() == nullptr) {
        std::this_thread::yield();
      }
      world.of(rank).abort("the disk is full");
    } else if (rank == waiting) {
      std::byte byte{};
      const auto work =
          world.of(rank).receive(&byte, 1, DType::kUInt8, awaited, 0, Mode::kBlocking, {});
      EXPECT_TRUE(contains(errorOf(*work), "aborted the group: the disk is full"))
          << errorOf(*work);
      isHeard = true;
    } else {
      while (!isHeard) std::this_thread::yield();
      while (!world.of(rank).hasFailed()) std::this_thread::yield();
    }
  });
}

TEST(FailureSpreads, ToARankThatTheFailingOneNeverTalkedTo) {
  expectAbortIsHeard({.size = 5, .transport = TransportChoice::kTcp}, 0, 2, 3);
}

TEST(FailureSpreads, ThroughTheRegionsOfOtherHosts) {
  // From the second rank of the first host; ranks of one host wait for each other.
  expectAbortIsHeard({.size = 6, .ranksPerHost = {2, 2, 2}}, 1, 4, 5);
  expectAbortIsHeard({.size = 6, .ranksPerHost = {3, 1, 2}}, 2, 5, 4);
}

int numSockets() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code isGone;
    const std::string target = std::filesystem::read_symlink(entry.path(), isGone).string();
    if (!isGone && target.starts_with("socket:")) ++count;
  }
  return count;
}

TEST(FailureSpreads, AlongConnectionsThatAreThere) {
  constexpr int kSize = 16;
  const int others = numSockets();
  World world({.size = kSize, .transport = TransportChoice::kTcp});
  world.run([&](int rank) {
    requireNone(errorOf(*world.of(rank).collective(algorithms::Request{}, Mode::kBlocking, {})));
  });
  // Messages of a barrier go 1, 2, 4 and 8 ranks on, and each rank connects to those that it sends
  // to and to those that it hears of: to 7 others, as 8 on and 8 back are the same.
  const int before = others + kSize + 2 * kSize * 7;
  const TimePoint end = Clock::now() + kPatience;
  while (numSockets() != before && Clock::now() < end) std::this_thread::yield();
  ASSERT_EQ(numSockets(), before);
  std::atomic<int> numWaiting{kSize - 1};
  int most = 0;
  std::thread watcher([&] {
    while (numWaiting > 0) most = std::max(most, numSockets());
  });
  world.run([&](int rank) {
    if (rank == kSize - 1) {
      world.of(rank).abort("now");
      return;
    }
    const auto work = world.of(rank).collective(algorithms::Request{}, Mode::kBlocking, {});
    EXPECT_TRUE(contains(errorOf(*work), "aborted the group: now")) << errorOf(*work);
    --numWaiting;
  });
  numWaiting = 0;
  watcher.join();
  EXPECT_LE(most, before);
}

// A long frame that nobody has asked for, and that was not announced.
TEST(FailureSpreads, ARankThatSendsWhatItMayNotIsNamedToAll) {
  World world({.size = 2,
               .transport = TransportChoice::kSharedMemory,
               .timeout = std::chrono::seconds(20)});
  transport::FrameHeader header;
  header.tag = 7;
  header.length = 1 << 20;
  transport::shm::Region& region = *world.of(0).membership().region;
  std::atomic<std::uint64_t>& written = region.ringControl(1, 0).written;
  std::memcpy(region.ringData(1, 0) + written, &header, sizeof header);
  written += sizeof header;
  world.run([&](int rank) {
    std::byte byte{};
    const auto work =
        world.of(rank).receive(&byte, 1, DType::kUInt8, 1 - rank, 0, Mode::kBlocking, {});
    EXPECT_TRUE(contains(errorOf(*work), "rank 1 (host ")) << errorOf(*work);
    EXPECT_TRUE(contains(errorOf(*work), "it sent 1048576 bytes as if they had been announced"))
        << errorOf(*work);
  });
}

// --- joining ---

TEST(Joining, RanksWithDifferentTransportsAreToldTheVariable) {
  MemoryExchange exchange(2);
  Whereabouts whereabouts(2);
  std::vector<std::string> texts(2);
  runThreads(
      2, whereabouts,
      [&](int rank) {
        EngineOptions options;
        options.transport = rank == 0 ? TransportChoice::kTcp : TransportChoice::kSharedMemory;
        options.interfaces = "127.";
        try {
          Communicator::create(rank, 2, exchange.ofRank(rank), options);
          ADD_FAILURE() << rank;
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
          texts[static_cast<std::size_t>(rank)] = error.what();
        }
      },
      [&](int) { exchange.giveUp(); });
  EXPECT_TRUE(contains(texts[0], "rank 1 (host ")) << texts[0];
  EXPECT_TRUE(contains(texts[0], "has SMDDP_TRANSPORT=shm, and rank 0 has SMDDP_TRANSPORT=tcp"))
      << texts[0];
  EXPECT_TRUE(contains(texts[1], "SMDDP_TRANSPORT=shm")) << texts[1];
}

TEST(Joining, ARankOutsideTheWorldIsRefused) {
  for (const auto& [rank, size] : {std::pair(-1, 2), std::pair(2, 2), std::pair(0, 0)}) {
    try {
      Communicator::create(rank, size, MemoryExchange(1).ofRank(0), {});
      ADD_FAILURE() << rank << " of " << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
      EXPECT_TRUE(contains(error.what(), "Check RANK and WORLD_SIZE"));
    }
  }
}

TEST(Joining, AnExchangeThatFailsIsReported) {
  const auto tooFew = [](const std::string&, const std::string& value) {
    return std::vector<std::string>{value};
  };
  try {
    Communicator::create(0, 2, tooFew, {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfiguration);
    EXPECT_TRUE(contains(error.what(), "Return every rank's bytes in rank order"));
  }
  const auto throwing = [](const std::string&, const std::string&) -> std::vector<std::string> {
    throw std::runtime_error("the store is gone");
  };
  EXPECT_THROW(Communicator::create(0, 2, throwing, {}), std::runtime_error);
  const auto garbage = [](const std::string&, const std::string&) {
    return std::vector<std::string>{"a", "b"};
  };
  EXPECT_THROW(Communicator::create(0, 2, garbage, {}), Error);
}

}  // namespace
}  // namespace smd::engine::test
