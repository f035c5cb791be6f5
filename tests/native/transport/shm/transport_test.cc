// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The ring transport: the conformance suite. Its bytes are moved by poll() alone, so there is no
// run "in the background".
#include "common/clock.h"
#include "support/transport_conformance.h"
#include "transport/shm/factory.h"

namespace smd::transport::test {
namespace {

std::vector<std::unique_ptr<Transport>> makeRings(const std::vector<FrameSink*>& sinks) {
  const auto region = shm::Region::create(static_cast<int>(sinks.size()));
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < sinks.size(); ++rank) ranks.push_back(static_cast<int>(rank));
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::size_t rank = 0; rank < sinks.size(); ++rank) {
    transports.push_back(shm::createTransport(region, static_cast<int>(rank), ranks, *sinks[rank]));
  }
  return transports;
}

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         ::testing::Values(ConformanceCase{"shm", makeRings, true, false}));

// Positions in the region are not ranks: the host of this communicator has its ranks 2, 5 and 7.
TEST(RingTransport, PeersAreNamedByTheirRank) {
  const auto region = shm::Region::create(3);
  const std::vector<int> ranks = {2, 5, 7};
  std::vector<std::unique_ptr<RecordingSink>> sinks;
  std::vector<std::unique_ptr<Transport>> transports;
  for (int position = 0; position < 3; ++position) {
    sinks.push_back(std::make_unique<RecordingSink>());
    transports.push_back(shm::createTransport(region, position, ranks, *sinks.back()));
  }
  for (std::size_t from = 0; from < 3; ++from) {
    for (std::size_t to = 0; to < 3; ++to) {
      if (from == to) continue;
      const auto bytes = payload(ranks[from], ranks[to], 3, 1000);
      transports[from]->send(ranks[to], frameHeader(3, bytes.size()), bytes.data(), nullptr);
    }
  }
  for (std::size_t to = 0; to < 3; ++to) {
    transports[to]->poll();
    for (std::size_t from = 0; from < 3; ++from) {
      if (from == to) continue;
      ASSERT_EQ(sinks[to]->count(ranks[from]), 1u);
      expectFrame(sinks[to]->frame(ranks[from], 0), ranks[from], ranks[to], 3, 1000);
    }
  }
  for (auto& transport : transports) transport->close(milliseconds(0));
}

// A message that does not fit wakes its sender when there is room, and its receiver when there is
// something: both sleep on their doorbells in between, as the engine's threads do.
TEST(RingTransport, SleepersAreWokenByTheOtherSide) {
  constexpr std::uint64_t kLength = 40 * shm::kRingBytes + 17;
  const auto region = shm::Region::create(2);
  RecordingSink sinks[2];
  std::unique_ptr<Transport> transports[2];
  for (int rank = 0; rank < 2; ++rank) {
    transports[rank] = shm::createTransport(region, rank, {0, 1}, sinks[rank]);
  }
  const auto bytes = payload(0, 1, 1, kLength);
  SendTicket ticket;
  const auto sleepUntil = [&](int rank, auto&& isTrue) {
    Doorbell& bell = region->view(rank).mine().bell;
    const auto deadline = Clock::now() + kPatience;
    for (;;) {
      bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
      const std::uint32_t seen = bell.rings.load(std::memory_order_seq_cst);
      const bool hasMoved = transports[rank]->poll();
      const bool isDone = isTrue();
      // No timeout of its own: a wake-up that is lost ends the test at the deadline.
      if (!isDone && !hasMoved) futexWait(bell.rings, seen, deadline - Clock::now());
      bell.sleepers.fetch_sub(1);
      if (isDone) return true;
      if (Clock::now() > deadline) return false;
    }
  };
  std::thread receiver([&] { EXPECT_TRUE(sleepUntil(1, [&] { return sinks[1].count(0) == 1; })); });
  transports[0]->send(1, frameHeader(1, kLength), bytes.data(), &ticket);
  EXPECT_TRUE(sleepUntil(0, [&] { return ticket.state() == SendTicket::State::kSent; }));
  receiver.join();
  expectFrame(sinks[1].frame(0, 0), 0, 1, 1, kLength);
  for (auto& transport : transports) transport->close(milliseconds(0));
}

// A stray write into the counters of a ring neither reads nor writes beside it.
TEST(RingTransport, CountersThatCannotBeTrueAreRefused) {
  enum class Spoilt { kWritten, kRead };
  for (const Spoilt spoilt : {Spoilt::kWritten, Spoilt::kRead}) {
    const auto region = shm::Region::create(2);
    RecordingSink sinks[2];
    std::unique_ptr<Transport> transports[2];
    for (int rank = 0; rank < 2; ++rank) {
      transports[rank] = shm::createTransport(region, rank, {0, 1}, sinks[rank]);
    }
    const auto bytes = payload(0, 1, 1, 1000);
    transports[0]->send(1, frameHeader(1, bytes.size()), bytes.data(), nullptr);
    shm::RingControl& control = region->ringControl(0, 1);
    (spoilt == Spoilt::kWritten ? control.written : control.read) += shm::kRingBytes + 1;
    SendTicket ticket;
    transports[0]->send(1, frameHeader(2, bytes.size()), bytes.data(), &ticket);
    EXPECT_EQ(ticket.state(), SendTicket::State::kPending);
    transports[1]->poll();
    ASSERT_TRUE(sinks[1].refusal(0).has_value());
    EXPECT_EQ(sinks[1].refusal(0)->reason, Refusal::Reason::kOverrun);
    transports[1]->poll();
    transports[1]->catchUp();
    EXPECT_EQ(sinks[1].count(0), 0U);
    for (auto& transport : transports) transport->close(milliseconds(0));
    EXPECT_EQ(ticket.state(), SendTicket::State::kFailed);
    EXPECT_EQ(sinks[1].violations(), std::vector<std::string>{});
  }
}

// The receiver has a part of a frame when it closes: nobody is told that it has come.
TEST(RingTransport, AFrameThatHasNotComeWholeIsCancelled) {
  const auto region = shm::Region::create(2);
  RecordingSink sinks[2];
  std::unique_ptr<Transport> transports[2];
  for (int rank = 0; rank < 2; ++rank) {
    transports[rank] = shm::createTransport(region, rank, {0, 1}, sinks[rank]);
  }
  const auto bytes = payload(0, 1, 1, 2 * shm::kRingBytes);
  SendTicket ticket;
  transports[0]->send(1, frameHeader(1, bytes.size()), bytes.data(), &ticket);
  transports[1]->poll();
  EXPECT_EQ(sinks[1].numOpen(), 1U);
  for (auto& transport : transports) transport->close(milliseconds(0));
  EXPECT_EQ(sinks[1].numOpen(), 0U);
  EXPECT_EQ(sinks[1].count(0), 0U);
}

}  // namespace
}  // namespace smd::transport::test
