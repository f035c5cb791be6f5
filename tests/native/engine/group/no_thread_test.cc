// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations in a process that gets no thread any more, so that nobody can carry out what their
// callers do not wait for: all of them end with that, on every rank, and nothing refers to the
// callers' memory then.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "support/engine_harness.h"
#include "support/engine_plans.h"

namespace {

// Of the calling thread, which stands for its process.
thread_local bool isOutOfThreads = false;

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  if (isOutOfThreads) return EAGAIN;
  static const auto real =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}

namespace smd::engine::test {
namespace {

const char* const kReason =
    "cannot start the thread that carries out what nobody waits for (Resource temporarily "
    "unavailable); expected room for one more thread. Raise the limit of processes and threads "
    "(ulimit -u, or that of the container), or start fewer";

std::vector<int> blockedSignals() {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, nullptr, &set);
  std::vector<int> blocked;
  for (int signal = 1; signal < SIGRTMAX; ++signal) {
    if (sigismember(&set, signal) == 1) blocked.push_back(signal);
  }
  return blocked;
}

// While one exists there are no threads for the calling one.
class OutOfThreads {
 public:
  OutOfThreads() : blocked_(blockedSignals()) {
    ProgressThread::process().shutdown();
    isOutOfThreads = true;
  }
  ~OutOfThreads() {
    isOutOfThreads = false;
    EXPECT_EQ(blockedSignals(), blocked_);
  }
  OutOfThreads(const OutOfThreads&) = delete;
  OutOfThreads& operator=(const OutOfThreads&) = delete;

 private:
  const std::vector<int> blocked_;
};

void expectReason(const std::string& text, const std::string& operation) {
  EXPECT_TRUE(text.starts_with(operation)) << text;
  EXPECT_NE(text.find("rank 0 (host "), std::string::npos) << text;
  EXPECT_NE(text.find(kReason), std::string::npos) << text;
}

// What ends the wait of a rank that calls nothing that the others have to call.
std::string errorOfOnlooker(Communicator& on) {
  try {
    while (on.nextMessage(Clock::now() + kPatience)) {
    }
    return "nothing came";
  } catch (const Error& error) {
    return error.what();
  }
}

constexpr std::uint64_t kLarge = 300000;
const PlanOptions kLargeSum{.kind = OpKind::kAllReduce, .count = kLarge};

class NoThread : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  NoThread() : world({.size = 2, .ranksPerHost = GetParam()}) {}
  // What rank 0 begins without waiting for it ends with the reason, and rank 1 is told.
  void expectFailure(const std::string& operation,
                     const std::function<std::shared_ptr<Work>(Communicator&, Buffers&)>& begin) {
    const Plan plan(kLargeSum, 2);
    world.run([&](int rank) {
      Communicator& own = world.of(rank);
      if (rank == 1) return expectReason(errorOfOnlooker(own), "next_message");
      {
        Buffers buffers(plan, rank);
        const Request request = buffers.request();
        std::shared_ptr<Work> work;
        {
          const OutOfThreads meanwhile;
          work = begin(own, buffers);
        }
        SMD_REQUIRE(work->isCompleted());
        expectReason(errorOf(*work), operation);
        EXPECT_FALSE(own.isInUse(request.input, 4 * kLarge));
        EXPECT_FALSE(own.isInUse(request.output, 4 * kLarge));
      }
      // There are threads again, but the group is not used any more.
      const Plan later(kLargeSum, 2);
      Buffers buffers(later, rank);
      const auto work = own.collective(buffers.request(), Mode::kAsync, {});
      waitFor(*work);
      expectReason(errorOf(*work), "all_reduce");
    });
  }

  World world;
};

TEST_P(NoThread, EndsACollective) {
  expectFailure("all_reduce", [](Communicator& own, Buffers& buffers) {
    return own.collective(buffers.request(), Mode::kAsync, {});
  });
}

TEST_P(NoThread, EndsACollectiveThatWasTriedFirst) {
  expectFailure("all_reduce", [](Communicator& own, Buffers& buffers) {
    return own.collective(buffers.request(), Mode::kBrief, {});
  });
}

TEST_P(NoThread, EndsAReceive) {
  expectFailure("recv", [](Communicator& own, Buffers& buffers) {
    return own.receive(buffers.request().output, kLarge, DType::kFloat32, 1, 7, Mode::kAsync, {});
  });
}

// Who waits takes the queue over, and has nobody to give it back to.
TEST_P(NoThread, EndsWhatHasBeenWaitedForInVain) {
  expectFailure("all_reduce", [](Communicator& own, Buffers& buffers) {
    isOutOfThreads = false;
    const auto first = own.collective(buffers.request(), Mode::kAsync, {});
    const auto second = own.collective(buffers.request(), Mode::kAsync, {});
    ProgressThread::process().shutdown();
    isOutOfThreads = true;
    own.wait(*first, Clock::now() + milliseconds(1));
    EXPECT_TRUE(second->isCompleted());
    return first;
  });
}

TEST_P(NoThread, EndsTheGroupOfAMessageThatCannotGoOut) {
  const std::vector<std::byte> header(kLarge);  // more than there is room for on the way
  std::atomic<bool> hasPosted{false};
  world.run([&](int rank) {
    Communicator& own = world.of(rank);
    if (rank == 1) {  // takes nothing before that, or there might be room for all
      while (!hasPosted) std::this_thread::sleep_for(milliseconds(1));
      return expectReason(errorOfOnlooker(own), "next_message");
    }
    std::string text = "all were posted";
    {
      const OutOfThreads meanwhile;
      try {
        for (int i = 0; i < 1000; ++i) own.postMessage(1, header, {});
      } catch (const Error& error) {
        text = error.what();
      }
    }
    hasPosted = true;
    expectReason(text, "post_message");
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, NoThread,
                         ::testing::Values(std::vector<int>{2}, std::vector<int>{1, 1}),
                         [](const auto& hosts) {
                           return hosts.param.size() == 1 ? "OnAHost" : "OverHosts";
                         });

}  // namespace
}  // namespace smd::engine::test
