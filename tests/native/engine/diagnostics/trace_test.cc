// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// What is recorded of operations, and what is not.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "engine/diagnostics/trace.h"
#include "support/engine_harness.h"
#include "support/engine_plans.h"

namespace smd::engine::test {
namespace {

std::int64_t nowNs() { return nanoseconds(Clock::now().time_since_epoch()).count(); }

// Runs `plan` on every rank of `world`; the buffers are private unless `isShared`.
void run(World& world, const Plan& plan, Mode mode = Mode::kBlocking) {
  world.run([&](int rank) {
    Buffers buffers(plan, rank);
    const auto work = world.of(rank).collective(buffers.request(), mode, {});
    waitFor(*work);
    requireNone(errorOf(*work));
  });
}

std::vector<std::string> algorithmsOf(const trace::Recording& recording) {
  std::vector<std::string> names;
  for (const trace::Event& event : recording.events) names.emplace_back(event.algorithm);
  return names;
}

class Trace : public ::testing::Test {
 protected:
  void TearDown() override { trace::stop(); }
};

TEST_F(Trace, NothingIsRecordedBeforeStartAndAfterStop) {
  World world(2);
  const Plan plan({.count = 10}, 2);
  run(world, plan);
  trace::start(100);
  EXPECT_TRUE(trace::isOn());
  EXPECT_EQ(trace::stop().events.size(), 0u);
  EXPECT_FALSE(trace::isOn());
  run(world, plan);
  EXPECT_EQ(trace::stop().events.size(), 0u);
}

TEST_F(Trace, AnEventTellsWhatWasDoneAndWhen) {
  World world(3);
  const Plan plan({.dtype = DType::kFloat16, .op = ReduceOp::kMax, .count = 100000}, 3);
  run(world, plan);
  const std::int64_t before = nowNs();
  trace::start(100);
  run(world, plan);
  const trace::Recording recording = trace::stop();
  const std::int64_t after = nowNs();
  ASSERT_EQ(recording.events.size(), 3u);
  EXPECT_EQ(recording.numDropped, 0u);
  for (const trace::Event& event : recording.events) {
    EXPECT_EQ(event.group, "test");
    EXPECT_EQ(event.signature.sequence, 2u);
    EXPECT_EQ(event.signature.kind, OpKind::kAllReduce);
    EXPECT_EQ(event.signature.dtype, DType::kFloat16);
    EXPECT_EQ(event.signature.op, ReduceOp::kMax);
    EXPECT_EQ(event.bytes, 200000u);
    EXPECT_STREQ(event.algorithm, "staged");
    EXPECT_LE(before, event.queuedNs);
    EXPECT_LE(event.queuedNs, event.startedNs);
    EXPECT_LE(event.startedNs, event.arrivedNs);
    EXPECT_LE(event.arrivedNs, event.finishedNs);
    EXPECT_LE(event.finishedNs, after);
    EXPECT_FALSE(event.isDrivenByProgress);
    EXPECT_EQ(event.error, "");
  }
  // Nobody can know that all have arrived before the last one has started.
  std::int64_t lastStart = 0;
  for (const trace::Event& event : recording.events) {
    lastStart = std::max(lastStart, event.startedNs);
  }
  for (const trace::Event& event : recording.events) EXPECT_LE(lastStart, event.arrivedNs);
}

TEST_F(Trace, TheProgressThreadIsNamed) {
  World world(2);
  const Plan plan({.count = 500000}, 2);  // too large to be tried on the caller's thread
  trace::start(100);
  run(world, plan, Mode::kAsync);
  for (const trace::Event& event : trace::stop().events) EXPECT_TRUE(event.isDrivenByProgress);
}

TEST_F(Trace, AlgorithmsAreNamedAsTheyCameOut) {
  const Plan small({.count = 10}, 2);
  const Plan large({.count = 100000}, 2);
  {
    World world(2);
    trace::start(100);
    run(world, small);
    EXPECT_EQ(algorithmsOf(trace::stop()), (std::vector<std::string>{"one_shot", "one_shot"}));
    std::vector<std::shared_ptr<transport::shm::SharedBuffer>> buffers;
    for (int rank = 0; rank < 2; ++rank) buffers.push_back(world.of(rank).allocateShared(400000));
    std::vector<std::byte> ordinary(400000);
    const auto reduce = [&](bool isMixed) {
      trace::start(100);
      world.run([&](int rank) {
        Request request;
        request.kind = OpKind::kAllReduce;
        request.dtype = DType::kFloat32;
        request.count = 100000;
        request.output = isMixed && rank == 1 ? ordinary.data()
                                              : buffers[static_cast<std::size_t>(rank)]->data();
        request.input = request.output;
        requireNone(errorOf(*world.of(rank).collective(Request(request), Mode::kBlocking, {})));
      });
      return algorithmsOf(trace::stop());
    };
    EXPECT_EQ(reduce(false), (std::vector<std::string>{"shared", "shared"}));
    EXPECT_EQ(reduce(true), (std::vector<std::string>{"staged", "staged"}));
  }
  {
    World world({.size = 2, .transport = TransportChoice::kTcp});
    trace::start(100);
    run(world, large);
    const trace::Recording recording = trace::stop();
    EXPECT_EQ(algorithmsOf(recording), (std::vector<std::string>{"hierarchical", "hierarchical"}));
    for (const trace::Event& event : recording.events) EXPECT_EQ(event.arrivedNs, 0);
  }
  {
    World world(1);
    trace::start(100);
    run(world, Plan({.count = 100000}, 1));
    EXPECT_EQ(algorithmsOf(trace::stop()), std::vector<std::string>{"alone"});
  }
}

TEST_F(Trace, SendAndReceive) {
  World world(2);
  trace::start(100);
  world.run([&](int rank) {
    std::vector<std::byte> data(300000);
    const auto work =
        rank == 0
            ? world.of(0).send(data.data(), 150000, DType::kFloat16, 1, 7, Mode::kBlocking, {})
            : world.of(1).receive(data.data(), 150000, DType::kFloat16, 0, 7, Mode::kAsync, {});
    waitFor(*work);
    requireNone(errorOf(*work));
  });
  trace::Recording recording = trace::stop();
  ASSERT_EQ(recording.events.size(), 2u);
  if (recording.events[0].signature.kind == OpKind::kRecv) {
    std::swap(recording.events[0], recording.events[1]);
  }
  EXPECT_EQ(recording.events[0].signature.kind, OpKind::kSend);
  EXPECT_EQ(recording.events[1].signature.kind, OpKind::kRecv);
  for (const trace::Event& event : recording.events) {
    EXPECT_EQ(event.signature.sequence, 0u);
    EXPECT_STREQ(event.algorithm, "message");
    EXPECT_EQ(event.bytes, 300000u);
    EXPECT_LE(event.queuedNs, event.startedNs);
    EXPECT_LE(event.startedNs, event.finishedNs);
    EXPECT_EQ(event.arrivedNs, 0);
  }
}

TEST_F(Trace, BytesOfOperationsWithParts) {
  const auto bytesOf = [](OpKind kind) {
    World world(2);
    const Plan plan({.kind = kind, .root = 1, .count = 100}, 2);  // float32, 2 ranks
    trace::start(100);
    run(world, plan);
    std::vector<std::uint64_t> bytes;
    for (const trace::Event& event : trace::stop().events) bytes.push_back(event.bytes);
    std::sort(bytes.begin(), bytes.end());
    return bytes;
  };
  using Bytes = std::vector<std::uint64_t>;
  EXPECT_EQ(bytesOf(OpKind::kAllGather), (Bytes{800, 800}));
  EXPECT_EQ(bytesOf(OpKind::kReduceScatter), (Bytes{800, 800}));
  EXPECT_EQ(bytesOf(OpKind::kAllToAll), (Bytes{800, 800}));
  EXPECT_EQ(bytesOf(OpKind::kGather), (Bytes{400, 800}));
  EXPECT_EQ(bytesOf(OpKind::kScatter), (Bytes{400, 800}));
  EXPECT_EQ(bytesOf(OpKind::kBroadcast), (Bytes{400, 400}));
}

TEST_F(Trace, ErrorsAreRecorded) {
  World world(2);
  const Plan plan({.count = 100000}, 2);
  trace::start(100);
  world.run([&](int rank) {
    if (rank == 1) return;
    Buffers buffers(plan, rank);
    const auto work = world.of(0).collective(buffers.request(), Mode::kBlocking, milliseconds(100));
    EXPECT_TRUE(work->error().has_value());
  });
  const trace::Recording recording = trace::stop();
  ASSERT_EQ(recording.events.size(), 1u);
  EXPECT_NE(recording.events[0].error.find("has waited"), std::string::npos);
  EXPECT_EQ(recording.events[0].arrivedNs, 0);
}

TEST_F(Trace, TheFirstEventsAreKeptAndTheOthersCounted) {
  World world(2);
  trace::start(5);
  for (std::uint64_t count = 1; count <= 4; ++count) run(world, Plan({.count = count}, 2));
  const trace::Recording recording = trace::stop();
  ASSERT_EQ(recording.events.size(), 5u);
  EXPECT_EQ(recording.numDropped, 3u);
  EXPECT_EQ(recording.events.front().signature.sequence, 1u);
  EXPECT_EQ(recording.events.back().signature.sequence, 3u);
}

TEST_F(Trace, StartingAgainDiscards) {
  World world(2);
  trace::start(1);
  run(world, Plan({.count = 1}, 2));
  trace::start(10);
  run(world, Plan({.count = 2}, 2));
  const trace::Recording recording = trace::stop();
  ASSERT_EQ(recording.events.size(), 2u);
  EXPECT_EQ(recording.numDropped, 0u);
  EXPECT_EQ(recording.events[0].signature.sequence, 2u);
}

TEST_F(Trace, OperationsUnderWayWhileItIsTurnedOnAndOff) {
  World world(2);
  const Plan plan({.count = 5000}, 2);
  std::atomic<bool> isDone{false};
  std::thread switching([&] {
    while (!isDone) {
      trace::start(100);
      for (const trace::Event& event : trace::stop().events) {
        EXPECT_LE(event.queuedNs, event.finishedNs);
      }
    }
  });
  for (int i = 0; i < 20; ++i) {
    run(world, plan, i % 2 == 0 ? Mode::kBlocking : Mode::kAsync);
  }
  isDone = true;
  switching.join();
}

TEST_F(Trace, AForkedChildHasATraceOfItsOwn) {
  trace::start(10);
  trace::record({});
  const pid_t child = fork();
  if (child == 0) {
    trace::record({});  // belongs to nothing: not recorded
    const bool isEmpty = trace::stop().events.empty();
    trace::start(10);
    trace::record({});
    _exit(isEmpty && trace::stop().events.size() == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(trace::stop().events.size(), 1u);
}

}  // namespace
}  // namespace smd::engine::test
