// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The flight record: the ring itself, what ranks tell each other of where they are, and the words.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/diagnostics/flight_record.h"
#include "engine/diagnostics/positions.h"
#include "engine/diagnostics/stall.h"
#include "engine/group/registry.h"
#include "support/engine_harness.h"
#include "support/engine_plans.h"

namespace smd::engine::test {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

Signature reduceOf(std::uint64_t sequence, std::uint64_t count = 4) {
  Signature signature;
  signature.kind = OpKind::kAllReduce;
  signature.dtype = DType::kFloat32;
  signature.sequence = sequence;
  signature.count = count;
  return signature;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(FlightRing, KeepsTheLastOnes) {
  FlightRing ring;
  EXPECT_TRUE(ring.read().empty());
  for (std::uint64_t i = 1; i <= 100; ++i) {
    ring.finish(ring.begin(reduceOf(i), 5, 5), FlightState::kDone, 0);
  }
  const auto entries = ring.read();
  ASSERT_EQ(entries.size(), FlightRing::kEntries);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].signature, reduceOf(100 - FlightRing::kEntries + 1 + i));
    EXPECT_EQ(entries[i].state, FlightState::kDone);
  }
}

TEST(FlightRing, AnOperationThatIsUnderWayIsNotOverwritten) {
  FlightRing ring;
  const std::uint64_t stuck = ring.begin(reduceOf(1), 0, 0);
  for (std::uint64_t i = 2; i <= 200; ++i) {
    ring.finish(ring.begin(reduceOf(i), 0, 0), FlightState::kDone, 0);
  }
  ring.noteMissing(stuck, {3, 5});
  const auto entries = ring.read();
  EXPECT_EQ(entries.size(), FlightRing::kEntries);
  EXPECT_EQ(entries.front().signature.sequence, 1u);
  EXPECT_EQ(entries.front().state, FlightState::kUnderWay);
  EXPECT_EQ(entries.front().waitsFor, 3);
  EXPECT_EQ(entries.front().numMissing, 2u);
}

TEST(FlightRing, WhatHasBeenOverwrittenIsLeftAlone) {
  FlightRing ring;
  std::vector<std::uint64_t> numbers;  // all under way, so one has to go
  for (std::uint64_t i = 0; i <= FlightRing::kEntries; ++i) {
    numbers.push_back(ring.begin(reduceOf(i), 0, 0));
  }
  numbers.pop_back();
  for (const std::uint64_t number : numbers) ring.finish(number, FlightState::kFailed, 0);
  const auto entries = ring.read();
  ASSERT_EQ(entries.size(), FlightRing::kEntries);
  EXPECT_EQ(entries.back().signature.sequence, FlightRing::kEntries);
  EXPECT_EQ(entries.back().state, FlightState::kUnderWay) << "it was another's to end";
}

TEST(FlightRing, TimesAreMillisecondsAfterTheCall) {
  FlightRing ring;
  const std::int64_t called = 7 * kSecond + 123;
  const std::uint64_t number = ring.begin(reduceOf(1), called, called + kSecond);
  EXPECT_EQ(ring.read().front().finishedNs, 0);
  ring.finish(number, FlightState::kDone, called + 3 * kSecond);
  const FlightEntry entry = ring.read().front();
  EXPECT_EQ(entry.queuedNs, called);
  EXPECT_EQ(entry.startedNs, called + kSecond);
  EXPECT_EQ(entry.finishedNs, called + 3 * kSecond);
}

// One writer, as in a group; whatever a reader sees is one operation and not parts of two.
TEST(FlightRing, IsReadWholeWhileItIsWritten) {
  FlightRing ring;
  PublishedWords<3> words;
  std::atomic<bool> isOver{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= (kIsSlow ? 20'000u : 200'000u); ++i) {
      const auto ns = static_cast<std::int64_t>(i);
      ring.finish(ring.begin(reduceOf(i, 3 * i), ns, ns), FlightState::kDone, 0);
      words.publish({i, 2 * i, 3 * i});
    }
    isOver = true;
  });
  std::size_t seen = 0;
  while (!isOver) {
    for (const FlightEntry& entry : ring.read()) {
      ++seen;
      ASSERT_EQ(entry.signature.count, 3 * entry.signature.sequence);
      ASSERT_EQ(entry.queuedNs, static_cast<std::int64_t>(entry.signature.sequence));
    }
    if (const auto read = words.read()) {
      ASSERT_EQ((*read)[2], 3 * (*read)[0]);
    }
  }
  writer.join();
  EXPECT_GT(seen + ring.read().size(), 0u);
}

TEST(FlightPosition, CrossesTheNetworkWithWhatMatters) {
  FlightBoard board;
  const std::uint64_t stuck = board.messages.begin(reduceOf(0), 1, 1);
  board.messages.noteMissing(stuck, {1});
  for (std::uint64_t i = 1; i <= 20; ++i) {
    board.collectives.finish(board.collectives.begin(reduceOf(i), 1, 1), FlightState::kDone, 0);
  }
  board.numCalled = 21;
  const auto bytes = encodePosition(positionOn(board, kSecond), 3);
  const auto position = decodePosition(bytes);
  ASSERT_TRUE(position.has_value());
  EXPECT_EQ(position->numCalled, 21u);
  EXPECT_EQ(position->signatureOf(3), reduceOf(3)) << "what was asked for";
  EXPECT_EQ(position->signatureOf(20), reduceOf(20)) << "the last one";
  ASSERT_NE(position->underWay(), nullptr);
  EXPECT_EQ(position->underWay()->waitsFor, 1);
  EXPECT_FALSE(decodePosition(std::span(bytes).first(bytes.size() - 1)).has_value());
  EXPECT_FALSE(decodePosition({}).has_value());
}

TEST(FlightPosition, WhatACallIsForCrossesTheNetworkInWholeCharacters) {
  FlightBoard board;
  const auto isTold = [&board](const std::string& purpose) {
    board.purpose.publish(
        std::bit_cast<PublishedWords<sizeof(FlightPurpose) / 8>::Words>(FlightPurpose(5, purpose)));
    const auto position = decodePosition(encodePosition(positionOn(board, kSecond), 0));
    EXPECT_EQ(position->purposeOf(4), "") << "it is of another operation";
    return position->purposeOf(5);
  };
  EXPECT_EQ(decodePosition(encodePosition(positionOn(board, kSecond), 0))->purposeOf(5), "");
  EXPECT_EQ(isTold("gradients 1 of 3"), "gradients 1 of 3");
  EXPECT_EQ(isTold(std::string(200, 'x')), std::string(119, 'x'));
  EXPECT_EQ(isTold(std::string(118, 'x') + "\u00e9"), std::string(118, 'x'));
}

TEST(FlightPosition, CountsBeyondWhatFitsAreRefused) {
  auto bytes = encodePosition(positionOn(FlightBoard{}, kSecond), 0);
  bytes[16] = std::byte{0xFF};  // numCollectives
  EXPECT_FALSE(decodePosition(bytes).has_value());
}

class Cause : public ::testing::Test {
 protected:
  static RankView view(int rank, Position position, bool isStopped = false) {
    return {rank, "rank " + std::to_string(rank), std::move(position), isStopped};
  }
  static Position idleAfter(std::uint64_t sequence) {
    FlightBoard board;
    board.collectives.finish(board.collectives.begin(reduceOf(sequence), 0, 0), FlightState::kDone,
                             0);
    board.numCalled = sequence;
    return positionOn(board, 12 * kSecond);
  }
  static Position inside(std::uint64_t sequence) {
    FlightBoard board;
    board.collectives.noteMissing(board.collectives.begin(reduceOf(sequence), 0, 0), {0});
    board.numCalled = sequence;
    return positionOn(board, 12 * kSecond);
  }
};

TEST_F(Cause, IsToldWithWhatToDo) {
  const Signature waiting = reduceOf(7);
  EXPECT_TRUE(contains(likelyCause(waiting, {view(1, idleAfter(6))}), "uneven numbers"));
  EXPECT_TRUE(contains(likelyCause(waiting, {view(1, idleAfter(6))}), "all ranks equally many."));
  EXPECT_TRUE(contains(likelyCause(waiting, {view(1, inside(5))}), "branch that depends on"));
  EXPECT_TRUE(contains(likelyCause(waiting, {view(1, inside(7))}), "in the same operation"));
  EXPECT_TRUE(contains(likelyCause(waiting, {view(1, idleAfter(6)), view(2, idleAfter(6), true)}),
                       "rank 2 is stopped"));
  EXPECT_TRUE(contains(likelyCause(waiting, {{3, "rank 3", std::nullopt, false}}), "dead host"));
}

// A rank that is asked again and does not answer: where it was is not where it is.
TEST_F(Cause, AnOldAnswerIsShownAsOne) {
  const TimePoint start = Clock::now();
  Positions positions;
  positions.noteAsked(1, start);
  positions.noteAnswer(1, idleAfter(6), start + milliseconds(5));
  EXPECT_FALSE(positions.of(1)->isOld(start + std::chrono::hours(1))) << "nobody has asked again";
  positions.noteAsked(1, start + std::chrono::seconds(10));
  positions.noteAsked(1, start + std::chrono::seconds(11));  // the first one counts
  EXPECT_FALSE(positions.of(1)->isOld(start + std::chrono::seconds(10) + kAnswerTime / 2));
  ASSERT_TRUE(positions.of(1)->isOld(start + std::chrono::seconds(10) + kAnswerTime));
  ASSERT_TRUE(positions.of(1)->position.has_value()) << "it is the last that is known";

  RankView old = view(1, idleAfter(6));
  old.oldNs = 10 * kSecond;
  EXPECT_TRUE(contains(describePosition(old), "does not answer"));
  EXPECT_TRUE(contains(describePosition(old), "10.0 s ago it said: in no operation"));
  EXPECT_TRUE(contains(likelyCause(reduceOf(7), {old}), "dead host"));

  positions.noteAnswer(1, inside(7), start + std::chrono::seconds(12));
  EXPECT_FALSE(positions.of(1)->isOld(start + std::chrono::hours(1)));
}

TEST_F(Cause, PositionsAreDescribed) {
  EXPECT_EQ(
      describePosition(view(1, idleAfter(6))),
      "in no operation of this group since all_reduce #6 (SUM, float32 x 4) ended 12.0 s ago");
  EXPECT_EQ(describePosition(view(1, inside(6))),
            "in all_reduce #6 (SUM, float32 x 4) for 12.0 s, waits for rank 0");
  EXPECT_EQ(describePosition(view(1, Position{})),
            "has not been in any collective of this group yet");
  Position elsewhere = idleAfter(6);
  elsewhere.elsewhere = FlightNote{"pipeline", reduceOf(2), 2 * kSecond};
  EXPECT_TRUE(contains(describePosition(view(1, elsewhere)),
                       "waits in all_reduce #2 (SUM, float32 x 4) of group 'pipeline' for 10.0 s"));
}

TEST(StallWatch, ReportsAtDoublingIntervalsAndAsksAheadOfThem) {
  using std::chrono::seconds;
  const TimePoint start = Clock::now();
  StallWatch watch;
  watch.begin(start, start + seconds(100), seconds(10));
  std::vector<double> reports, questions;
  for (int tick = 1; tick < 1000; ++tick) {
    const TimePoint now = start + milliseconds(100) * tick;
    if (!watch.isDue(now)) continue;
    const StallWatch::Todo todo = watch.look(now);
    if (todo.report) reports.push_back(tick / 10.0);
    if (todo.ask) questions.push_back(tick / 10.0);
  }
  EXPECT_EQ(reports, (std::vector<double>{10, 20, 40, 80}));
  EXPECT_EQ(questions, (std::vector<double>{1, 9.5, 19.5, 39.5, 79.5, 99.5}));
}

TEST(StallWatch, CanBeSilentAndStillAsks) {
  const TimePoint start = Clock::now();
  StallWatch watch;
  watch.begin(start, start + milliseconds(400), nanoseconds(0));
  EXPECT_FALSE(watch.isDue(start + milliseconds(199)));
  const StallWatch::Todo todo = watch.look(start + milliseconds(200));
  EXPECT_TRUE(todo.ask);
  EXPECT_FALSE(todo.report);
}

class Record : public ::testing::TestWithParam<TransportChoice> {};

TEST_P(Record, OfAGroupSaysWhatIsDoneUnderWayAndQueued) {
  constexpr int kSize = 3;
  World world({.size = kSize, .transport = GetParam()});
  const Plan plan({.count = 10}, kSize);
  std::atomic<int> numReady{0};
  world.run([&](int rank) {
    Buffers done(plan, rank), first(plan, rank), second(plan, rank);
    ASSERT_FALSE(world.of(rank).collective(done.request(), Mode::kBlocking, {})->error());
    if (rank != 2) {
      const auto a = world.of(rank).collective(first.request(), Mode::kAsync, {});
      const auto b = world.of(rank).collective(second.request(), Mode::kAsync, {});
      GroupRecord record = world.of(rank).flightRecord();
      EXPECT_EQ(record.position.numCalled, 3u);
      ++numReady;
      waitFor(*a);
      waitFor(*b);
      EXPECT_EQ(record.state, "open");
    } else {
      while (numReady < 2) std::this_thread::yield();
      for (Buffers* buffers : {&first, &second}) {
        ASSERT_FALSE(world.of(rank).collective(buffers->request(), Mode::kBlocking, {})->error());
      }
    }
    const GroupRecord after = world.of(rank).flightRecord();
    ASSERT_EQ(after.position.collectives.size(), 3u);
    for (const FlightEntry& entry : after.position.collectives) {
      EXPECT_EQ(entry.state, FlightState::kDone);
    }
    EXPECT_TRUE(contains(recordText(after), "all_reduce #3 (SUM, float32 x 10)"));
  });
}

// (In 2.0.0 before its release whichever wait ended first took the notes of all with it.)
TEST_P(Record, OtherGroupsShowTheFirstWaitAsLongAsItLasts) {
  World world({.size = 2, .transport = GetParam()});
  const auto shown = [&] {
    const auto note = world.of(0).flightRecord().position.elsewhere;
    return note ? std::string(note->group) : "";
  };
  const std::uint64_t first = beginElsewhere({"first", reduceOf(2), kSecond});
  const std::uint64_t second = beginElsewhere({"second", reduceOf(3), 2 * kSecond});
  const std::uint64_t own = beginElsewhere({"test", reduceOf(4), 3 * kSecond});
  EXPECT_EQ(shown(), "first");
  endElsewhere(second);
  EXPECT_EQ(shown(), "first");
  endElsewhere(first);
  EXPECT_EQ(shown(), "") << "one's own group is not elsewhere";
  endElsewhere(own);
  EXPECT_EQ(shown(), "");
}

// Two that both believe to be the root never hear of each other by messages.
TEST_P(Record, TwoRootsFindOut) {
  constexpr int kSize = 3;
  World world({.size = kSize, .transport = GetParam()});
  std::vector<std::string> texts(kSize);
  world.run([&](int rank) {
    const Plan plan({.kind = OpKind::kGather, .root = rank == 1 ? 1 : 0, .count = 10}, kSize);
    Buffers buffers(plan, rank);
    auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
    if (!work->error()) {  // it has sent its part, and that is all a gather asks of it
      const Plan barrier({.kind = OpKind::kBarrier}, kSize);
      Buffers later(barrier, rank);
      work = world.of(rank).collective(later.request(), Mode::kBlocking, {});
    }
    EXPECT_TRUE(contains(errorOf(*work), "Pass a constant root rank")) << errorOf(*work);
    texts[static_cast<std::size_t>(rank)] = withoutPrefix(errorOf(*work));
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST_P(Record, EveryRankRaisesTheSameTextOfAMismatch) {
  constexpr int kSize = 5;
  for (std::uint64_t count : {std::uint64_t{10}, std::uint64_t{200000}}) {
    World world({.size = kSize, .transport = GetParam()});
    std::vector<std::string> texts(kSize);
    world.run([&](int rank) {
      PlanOptions options{.count = count};
      if (rank == 1) options.dtype = DType::kFloat64;
      if (rank == 3) options.op = ReduceOp::kMax;
      const Plan plan(options, kSize);
      Buffers buffers(plan, rank);
      const auto work = world.of(rank).collective(buffers.request(), Mode::kBlocking, {});
      texts[static_cast<std::size_t>(rank)] = withoutPrefix(errorOf(*work));
    });
    EXPECT_TRUE(contains(texts[0], "ranks 0, 2, 4 called")) << texts[0];
    EXPECT_TRUE(contains(texts[0], "rank 1 called")) << texts[0];
    EXPECT_TRUE(contains(texts[0], "rank 3 called")) << texts[0];
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  }
}

// What has been written to stderr since it was captured, which goes to a file.
std::string capturedSoFar() {
  std::ostringstream text;
  text << std::ifstream("/proc/self/fd/2").rdbuf();
  return text.str();
}

TEST_P(Record, AStallIsReportedOnce) {
  // Rank 2 comes late, on purpose: rank 0 reports after 0.2 s, by way of stderr.
  constexpr int kSize = 3;
  ::testing::internal::CaptureStderr();
  {
    World world({.size = kSize, .transport = GetParam(), .reportStallAfter = milliseconds(200)});
    const Plan plan({.count = 10}, kSize);
    world.run([&](int rank) {
      Buffers buffers(plan, rank);
      if (rank == 1) {  // who waits first reports for its host
        while (world.of(0).flightRecord().position.underWay() == nullptr) std::this_thread::yield();
      } else if (rank == 2) {  // the lateness under test: until the last words of the report
        const TimePoint end = Clock::now() + kPatience;
        while (!contains(capturedSoFar(), "of this group yet") && Clock::now() < end) {
          std::this_thread::sleep_for(milliseconds(10));
        }
      }
      ASSERT_FALSE(world.of(rank).collective(buffers.request(), Mode::kBlocking, {})->error());
    });
  }
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(contains(text, "has waited ")) << text;
  EXPECT_TRUE(contains(text, "for rank 2 (host")) << text;
  EXPECT_TRUE(contains(text, "Likely cause: rank 2 is inside no operation")) << text;
  EXPECT_TRUE(contains(text, "has not been in any collective of this group yet")) << text;
  if (GetParam() == TransportChoice::kSharedMemory) {
    EXPECT_FALSE(contains(text, "WARNING: rank 1")) << "one per host is enough\n" << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Record,
                         ::testing::Values(TransportChoice::kSharedMemory, TransportChoice::kTcp),
                         [](const auto& parameter) {
                           return parameter.param == TransportChoice::kTcp ? "Tcp" : "SharedMemory";
                         });

}  // namespace
}  // namespace smd::engine::test
