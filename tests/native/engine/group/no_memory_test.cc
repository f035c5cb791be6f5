// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Operations in which one allocation fails, each in turn, or that one and all behind it, in the
// call or on the engine's own threads: every rank has either its result or an error that says what
// there was no memory for, nobody hangs, and nothing ends the process or writes where it must not.
// AddressSanitizer sees whether messages under way use what the error has freed.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "engine/choose/link_measure.h"
#include "engine/group/liveness.h"
#include "engine/group/process_watch.h"
#include "engine/group/token_agreement.h"
#include "hosts/identity.h"
#include "support/engine_harness.h"
#include "support/engine_plans.h"
#include "transport/tcp/factory.h"

namespace {

// Whether this thread is in a call of the engine, and not in the test itself.
thread_local bool isInCall = false;
// The allocation of this thread there that fails, counted from 1; 0: none.
thread_local int failsAt = 0;
// All behind it fail as well, until this is false again.
thread_local bool failsForGood = false;
thread_local bool isFailing = false;
// Others go on for so long before it fails.
thread_local std::chrono::milliseconds pauseBefore{0};
// The same on the threads that are not a rank's; how many of theirs have failed.
std::atomic<int> failsAtElsewhere{0};
std::atomic<int> numFailedElsewhere{0};
thread_local bool isRank = false;
// What is larger fails on every thread.
std::atomic<std::size_t> largestAllocation{std::numeric_limits<std::size_t>::max()};

void failIfDue(std::size_t size) {
  if (size > largestAllocation.load(std::memory_order_relaxed)) throw std::bad_alloc();
  if (isInCall && isFailing) throw std::bad_alloc();
  if (isInCall && failsAt > 0 && --failsAt == 0) {
    isFailing = failsForGood;
    std::this_thread::sleep_for(pauseBefore);
    throw std::bad_alloc();
  }
  if (!isRank && failsAtElsewhere.load(std::memory_order_relaxed) > 0 &&
      failsAtElsewhere.fetch_sub(1) == 1) {
    ++numFailedElsewhere;
    throw std::bad_alloc();
  }
}

// Whoever uses it afterwards finds nothing there.
void release(void* memory) noexcept {
  if (memory != nullptr) explicit_bzero(memory, malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  failIfDue(size);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  failIfDue(size);
  const auto unit = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(unit, (size + unit) / unit * unit)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

namespace smd::engine::test {
namespace {

// `make test-all` tries more of them: an error that nobody can tell the peers takes a second.
bool isEveryOne() { return std::getenv("SMD_TEST_ALL") != nullptr; }

// `isHeard`: no network could keep the reason of the rank without memory from this one.
void expectReason(const std::string& text, bool isHeard) {
  EXPECT_EQ(text.find("bad_alloc"), std::string::npos) << text;
  if (!isHeard && text.find("no memory") == std::string::npos) {
    EXPECT_NE(text.find("rank 0 (host "), std::string::npos) << text;  // it is lost
    return;
  }
  EXPECT_NE(text.find("rank 0 (host "), std::string::npos) << text;
  EXPECT_EQ(text.find(" 0 bytes"), std::string::npos) << text;
  EXPECT_TRUE(text.find("has no memory left") != std::string::npos ||
              text.find("has no memory for the ") != std::string::npos ||
              text.find("has no memory to ") != std::string::npos ||
              text.find("this process has no memory left") != std::string::npos)
      << text;
}

template <class Function>
auto inCall(const Function& function) {
  struct Call {
    Call() { isInCall = true; }
    ~Call() { isInCall = false; }
  } const call;
  return function();
}

struct Case {
  const char* name;
  std::string algorithm;
  std::vector<int> ranksPerHost;
  OpKind kind = OpKind::kAllReduce;
  std::uint64_t count = 10;
  bool isForGood = false;  // all behind the one fail as well, until the call has returned
};

class NoMemory : public ::testing::TestWithParam<Case> {
 protected:
  // One operation in which allocation `number` of rank 0 fails. Returns whether there was one.
  static bool failOne(const Case& each, int number) {
    int size = 0;
    for (const int ranks : each.ranksPerHost) size += ranks;
    World world({.size = size,
                 .transport = TransportChoice::kAuto,
                 .algorithm = each.algorithm,
                 .ranksPerHost = each.ranksPerHost});
    const Plan plan({.kind = each.kind, .dtype = DType::kInt64, .count = each.count}, size);
    std::atomic<bool> hasFailed{false};
    std::atomic<int> numErrors{0};
    world.run([&](int rank) {
      Buffers buffers(plan, rank);
      auto request = buffers.request();
      try {
        if (rank == 0) failsAt = number;
        failsForGood = each.isForGood;
        const auto work = inCall(
            [&] { return world.of(rank).collective(std::move(request), Mode::kBlocking, {}); });
        hasFailed = hasFailed || (rank == 0 && failsAt == 0);
        failsAt = 0;
        isFailing = false;
        if (work->error()) {
          ++numErrors;
          expectReason(errorOf(*work), size == 2 && each.ranksPerHost.size() == 1);
        } else {
          requireNone(buffers.problem());
        }
      } catch (const Error& error) {  // before the operation was under way: its caller is told
        failsAt = 0;
        isFailing = false;
        hasFailed = true;
        ++numErrors;
        expectReason(error.what(), true);
      }
    });
    if (hasFailed && numErrors == 0) SUCCEED() << "it could do without";
    return hasFailed;
  }
};

TEST_P(NoMemory, IsAnErrorOfTheOperation) {
  // Each of the first ones, then some of the many that repeat themselves. A peer that nobody can
  // tell of the error hears of it after a second.
  const int all = GetParam().isForGood ? 5 : isEveryOne() ? 30 : 12;
  const int step = isEveryOne() ? 13 : 37;
  constexpr int kMost = 300;
  int number = 1;
  while (number < kMost && failOne(GetParam(), number)) number += number < all ? 1 : step;
  EXPECT_GT(number, 3) << "the operation allocates something";
}

INSTANTIATE_TEST_SUITE_P(
    Operations, NoMemory,
    ::testing::Values(
        Case{"SmallOverHosts", "", {1, 2}},
        Case{"LargeOverHosts", "", {1, 1}, OpKind::kAllReduce, 300000},
        Case{"LargeOverHostsByLanes", "", {2, 2}, OpKind::kAllReduce, 300000},
        Case{
            "RingOverHosts", "all_reduce=hierarchical/ring", {1, 1, 1}, OpKind::kAllReduce, 300000},
        Case{"AllGatherOverHosts", "", {1, 1}, OpKind::kAllGather, 30000},
        Case{"AllToAllOverHosts", "", {1, 2}, OpKind::kAllToAll, 30000},
        Case{"LargeOnAHost", "", {2}, OpKind::kAllReduce, 300000},
        Case{"LargeOnAHostForGood", "", {2}, OpKind::kAllReduce, 300000, true},
        Case{"LargeOverHostsForGood", "", {1, 1}, OpKind::kAllReduce, 300000, true}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

// --- messages ------------------------------------------------------------------------------------

enum class Failing {
  kOnce,
  kForGood,    // until the call has returned
  kElsewhere,  // on the engine's own threads
};

struct MessageCase {
  const char* name;
  std::vector<int> ranksPerHost;
  std::uint64_t count;  // int64; the small one is tried on the caller's thread
  Mode mode = Mode::kBlocking;
  Failing failing = Failing::kOnce;
};

class NoMemoryForMessages : public ::testing::TestWithParam<MessageCase> {
 protected:
  static constexpr std::uint64_t kGuard = 512;  // elements before and behind a buffer

  struct Buffer {
    explicit Buffer(std::uint64_t count) : all(count + 2 * kGuard, -1) {}
    std::byte* data() { return reinterpret_cast<std::byte*>(all.data() + kGuard); }
    void fill(std::int64_t seed) {
      for (std::size_t i = kGuard; i < all.size() - kGuard; ++i) {
        all[i] = seed + static_cast<std::int64_t>(i);
      }
    }
    // Whether nothing was written beside it.
    bool isWithinBounds() const {
      const auto isUntouched = [](std::int64_t value) { return value == -1; };
      const auto guard = static_cast<std::ptrdiff_t>(kGuard);
      return std::all_of(all.begin(), all.begin() + guard, isUntouched) &&
             std::all_of(all.end() - guard, all.end(), isUntouched);
    }
    std::vector<std::int64_t> all;
  };

  static void startFailing(int number) {
    if (GetParam().failing == Failing::kElsewhere) {
      numFailedElsewhere = 0;
      failsAtElsewhere = number;
    } else {
      failsForGood = GetParam().failing == Failing::kForGood;
      failsAt = number;
    }
  }
  // Whether there was such an allocation.
  static bool stopFailing() {
    const bool hasFailed =
        GetParam().failing == Failing::kElsewhere ? numFailedElsewhere.load() != 0 : failsAt == 0;
    failsAt = failsAtElsewhere = 0;
    failsForGood = isFailing = false;
    return hasFailed;
  }

  // The error of an operation that was begun by `begin`; empty if it went well.
  template <class Function>
  static std::string errorAfter(const Function& begin) {
    std::shared_ptr<Work> work;
    try {
      work = inCall(begin);
    } catch (const Error& error) {
      return error.what();
    }
    waitFor(*work);
    return errorOf(*work);
  }

  // Rank 1 sends two messages, which rank 0 receives the other way round, then one comes back.
  // Allocation `number` fails on rank 0. Returns whether there was one.
  static bool failOne(int number) {
    const MessageCase& each = GetParam();
    World world({.size = 2, .ranksPerHost = each.ranksPerHost});
    std::atomic<bool> hasFailed{false};
    std::array<std::string, 2> errors;
    world.run([&](int rank) {
      isRank = true;
      Communicator& own = world.of(rank);
      Buffer first(each.count), second(each.count), third(each.count), expected(each.count);
      std::string& error = errors[static_cast<std::size_t>(rank)];
      const auto run = [&](bool isSend, Buffer& buffer, std::uint64_t tag) {
        if (!error.empty()) return;
        error = errorAfter([&] {
          return isSend ? own.send(buffer.data(), each.count, DType::kInt64, 1 - rank, tag,
                                   each.mode, {})
                        : own.receive(buffer.data(), each.count, DType::kInt64, 1 - rank, tag,
                                      each.mode, {});
        });
        if (isSend || !error.empty()) return;
        expected.fill(static_cast<std::int64_t>(tag));
        SMD_REQUIRE(buffer.all == expected.all);
      };
      if (rank == 0) {
        startFailing(number);
        run(false, second, 2);
        run(false, first, 1);
        third.fill(3);
        run(true, third, 3);
        hasFailed = stopFailing();
      } else {
        first.fill(1);
        second.fill(2);
        const auto sent = own.send(first.data(), each.count, DType::kInt64, 0, 1, Mode::kAsync, {});
        run(true, second, 2);
        waitFor(*sent);
        if (error.empty()) error = errorOf(*sent);
        run(false, third, 3);
      }
      for (const Buffer* buffer : {&first, &second, &third}) SMD_REQUIRE(buffer->isWithinBounds());
    });
    isRank = false;
    for (const std::string& error : errors) {
      if (!error.empty()) expectReason(error, each.ranksPerHost.size() == 1);
    }
    return hasFailed;
  }
};

TEST_P(NoMemoryForMessages, IsAnErrorOfTheOperation) {
  constexpr int kMost = 2000;
  // Each of the first ones. The engine's own threads make many that are alike.
  const int all = isEveryOne() ? 15 : 5;
  const int step = isEveryOne() ? 11 : 29;
  const bool isElsewhere = GetParam().failing == Failing::kElsewhere;
  int number = 1;
  while (number < kMost && failOne(number)) {
    number += isElsewhere && number >= all ? step : 1;
  }
  EXPECT_GT(number, isElsewhere ? 0 : 3) << "the operations allocate something";
}

INSTANTIATE_TEST_SUITE_P(
    Operations, NoMemoryForMessages,
    ::testing::Values(
        MessageCase{"SmallOnAHost", {2}, 10}, MessageCase{"LargeOnAHost", {2}, 100000},
        MessageCase{"SmallOverHosts", {1, 1}, 10}, MessageCase{"LargeOverHosts", {1, 1}, 100000},
        MessageCase{"AsyncOnAHost", {2}, 100000, Mode::kAsync},
        MessageCase{"AsyncOverHosts", {1, 1}, 100000, Mode::kAsync},
        MessageCase{"NothingLeftOnAHost", {2}, 100000, Mode::kBlocking, Failing::kForGood},
        MessageCase{"NothingLeftOverHosts", {1, 1}, 100000, Mode::kBlocking, Failing::kForGood},
        MessageCase{"ThreadsOnAHost", {2}, 100000, Mode::kAsync, Failing::kElsewhere},
        MessageCase{"ThreadsOverHosts", {1, 1}, 100000, Mode::kAsync, Failing::kElsewhere}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

// A frame that nobody has asked for, and that there is no memory for: both ranks read the size.
// It is short enough to come without being announced.
class NoMemoryForAFrame : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(NoMemoryForAFrame, BothRanksReadTheSize) {
  constexpr std::uint64_t kCount = std::uint64_t{1} << 14;
  World world({.size = 2, .ranksPerHost = GetParam()});
  std::array<std::string, 2> errors;
  std::array<std::vector<float>, 2> buffers = {std::vector<float>(kCount), std::vector<float>(16)};
  world.run([&](int rank) {
    std::vector<float>& data = buffers[static_cast<std::size_t>(rank)];
    auto* bytes = reinterpret_cast<std::byte*>(data.data());
    Communicator& own = world.of(rank);
    largestAllocation = 3 * kCount;  // bytes: three quarters of what comes
    if (rank == 0) own.send(bytes, kCount, DType::kFloat32, 1, 7, Mode::kBlocking, {});
    const auto work = own.receive(bytes, 16, DType::kFloat32, 1 - rank, 9, Mode::kBlocking, {});
    errors[static_cast<std::size_t>(rank)] = errorOf(*work);
    SMD_REQUIRE(rank == 0 || std::all_of(data.begin(), data.end(), [](float f) { return f == 0; }));
  });
  largestAllocation = std::numeric_limits<std::size_t>::max();
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 1 (host "), std::string::npos) << error;
    EXPECT_NE(error.find("has no memory for the 65536 bytes that rank 0 (host "), std::string::npos)
        << error;
    EXPECT_NE(error.find("sent in send to rank 1 (float32 x 16384, tag 7)"), std::string::npos)
        << error;
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, NoMemoryForAFrame,
                         ::testing::Values(std::vector<int>{2}, std::vector<int>{1, 1}),
                         [](const auto& hosts) {
                           return hosts.param.size() == 1 ? "OnAHost" : "OverHosts";
                         });

// --- joining -------------------------------------------------------------------------------------

class NoMemoryToJoin : public ::testing::Test {
 protected:
  class Deaf final : public transport::FrameSink {
   public:
    std::byte* frameBegin(transport::Stream, const transport::FrameHeader&) override {
      return nullptr;
    }
    void frameEnd(transport::Stream, const transport::FrameHeader&) override {}
    void frameCancelled(transport::Stream) noexcept override {}
    void frameRefused(int, const transport::Refusal&) noexcept override {}
    void sendCompleted(int) override {}
    void linkFailed(int, const Error&) override {}
  };

  // Rank 1, which has joined and sends to rank 0 as long as it can.
  class Sender {
   public:
    Sender() {
      self_.machine += "/elsewhere";
      self_.link = serializeLink(knownLink());
      self_.endpoint = transport_->endpoint();
    }
    ~Sender() {
      isOver_ = true;
      if (thread_.joinable()) thread_.join();
      transport_->close(milliseconds(0));
    }

    std::vector<std::string> answer(const std::string& key, const std::string& value) {
      if (key == "identity") {
        peer_ = hosts::parse(value);
        return {value, hosts::serialize(self_)};
      }
      auth::SessionId session{};
      std::memcpy(session.data(), peer_.secret.data(), session.size());
      const auth::SessionKey secret = auth::deriveSessionKey("", session);
      transport_->start({peer_.endpoint, self_.endpoint}, secret, sink_);
      thread_ = std::thread([this] { send(); });
      return {value, "A" + tokenMark(secret, false)};
    }

   private:
    static transport::tcp::Options options() {
      transport::tcp::Options options;
      options.rank = 1;
      options.worldSize = 2;
      options.interfaces = "127.";
      return options;
    }
    void send() {
      using State = transport::SendTicket::State;
      const std::array<std::byte, 100> bytes{};
      transport::FrameHeader header;
      header.length = bytes.size();
      for (State state = State::kSent; state == State::kSent && !isOver_;) {
        transport::SendTicket ticket;
        transport_->send(0, header, bytes.data(), &ticket);
        while (ticket.state() == State::kPending && !isOver_) std::this_thread::yield();
        if (isOver_) transport_->close(milliseconds(0));
        state = ticket.state();
      }
    }

    Deaf sink_;
    std::unique_ptr<transport::tcp::TcpTransport> transport_ = transport::tcp::create(options());
    hosts::Identity self_ = hosts::describeThisProcess();
    hosts::Identity peer_;
    std::atomic<bool> isOver_{false};
    std::thread thread_;
  };

  // Whether there was allocation `number`.
  static bool failOne(int number) {
    Sender sender;
    const ExchangeFn exchange = [&](const std::string& key, const std::string& value) {
      isInCall = false;
      std::vector<std::string> values = sender.answer(key, value);
      isInCall = true;
      return values;
    };
    EngineOptions options;
    options.transport = TransportChoice::kTcp;
    options.interfaces = "127.";
    failsAt = number;
    pauseBefore = milliseconds(10);
    try {
      inCall([&] { return Communicator::create(0, 2, exchange, options); });
    } catch (const std::exception&) {
      EXPECT_EQ(failsAt, 0);
    }
    pauseBefore = milliseconds(0);
    return std::exchange(failsAt, 0) == 0;
  }
};

// What comes meanwhile once came to what was gone already.
TEST_F(NoMemoryToJoin, NobodyIsThereForWhatComesThen) {
  rememberLink(Link{.latencySeconds = 1e-5, .bytesPerSecond = 1e9});
  int number = 1;
  while (failOne(number)) ++number;
  EXPECT_GT(number, 3) << "joining allocates something";
}

class NoMemoryForAWatch : public ::testing::Test {
 protected:
  NoMemoryForAWatch() : sleeper_(fork()) {
    if (sleeper_ == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (sleeper_ == 0) pause();
  }
  ~NoMemoryForAWatch() override {
    kill(sleeper_, SIGKILL);
    waitpid(sleeper_, nullptr, 0);
  }

  const pid_t sleeper_;
};

// The descriptor once stayed; one allocation, of the first watch, ended the process.
TEST_F(NoMemoryForAWatch, NothingIsLeftOfIt) {
  for (int number = 1, isDone = false; !isDone; ++number) {
    Liveness liveness(2);
    failsAt = number;
    try {
      inCall([&] { liveness.watchProcess(1, sleeper_, [] {}); });
      isDone = failsAt > 0;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(ProcessWatch::process().numDescriptors(), 0U) << "allocation " << number;
    }
    failsAt = 0;
  }
}

// Without a descriptor, by a thread that looks. It once ended the process.
TEST_F(NoMemoryForAWatch, WhoDiesIsLostAllTheSame) {
  std::promise<void> woken;
  Liveness liveness(2);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  liveness.watchProcess(1, sleeper_, [&] { woken.set_value(); });
  failsAtElsewhere = 1;
  kill(sleeper_, SIGKILL);
  woken.get_future().wait();
  failsAtElsewhere = 0;
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(liveness.howLost(1), "died");
}

}  // namespace
}  // namespace smd::engine::test
