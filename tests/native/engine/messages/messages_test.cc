// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// Messages of unknown size: what arrives, in which order, who owns the memory, what ends a wait.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "support/engine_harness.h"
#include "support/engine_plans.h"
#include "transport/shm/factory.h"

namespace smd::engine::test {
namespace {

using std::chrono::seconds;

constexpr TimePoint kNow = TimePoint::min();

// Each word tells whose it is, of which message, and where in it.
std::vector<std::byte> bytesOf(int from, std::uint64_t number, std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t at = 0; at < length; at += sizeof(std::uint64_t)) {
    const std::uint64_t word =
        (at + 1) * 0x9E3779B97F4A7C15 + number * 0xC2B2AE3D27D4EB4F + static_cast<unsigned>(from);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, length - at));
  }
  return bytes;
}

// What a test posts tells its sender, its number and its sizes: so whoever gets it can check it.
struct Posted {
  int from = 0;
  std::uint32_t number = 0;
  std::uint64_t headerBytes = 0;
  std::vector<std::uint64_t> sizes;

  std::vector<std::byte> header() const {
    std::vector<std::byte> bytes(sizeof from + sizeof number + headerBytes);
    std::memcpy(bytes.data(), &from, sizeof from);
    std::memcpy(bytes.data() + sizeof from, &number, sizeof number);
    const auto rest = bytesOf(from, number, headerBytes);
    std::copy(rest.begin(), rest.end(), bytes.begin() + sizeof from + sizeof number);
    return bytes;
  }
  std::vector<std::byte> segment(std::size_t index) const {
    return bytesOf(from + 7, number + index, sizes[index]);
  }
  void post(Communicator& on, int to) const {
    std::vector<std::vector<std::byte>> data;
    std::vector<Segment> segments;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      data.push_back(segment(i));
      segments.push_back({data.back().data(), data.back().size()});
    }
    on.postMessage(to, header(), segments);
    // They are the caller's again.
    for (auto& each : data) std::fill(each.begin(), each.end(), std::byte{0xEE});
  }
  void check(const Message& message) const {
    SMD_REQUIRE(message.source() == from);
    const auto expected = header();
    SMD_REQUIRE(std::ranges::equal(message.header(), expected));
    SMD_REQUIRE(reinterpret_cast<std::uintptr_t>(message.body().data()) % 64 == 0);
    std::size_t end = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::size_t begin = (end + 63) / 64 * 64;
      end = begin + sizes[i];
      SMD_REQUIRE(end <= message.body().size());
      SMD_REQUIRE(std::ranges::equal(message.body().subspan(begin, sizes[i]), segment(i)));
    }
    SMD_REQUIRE(end == message.body().size());
  }
};

Message next(Communicator& on) {
  std::optional<Message> message = on.nextMessage(Clock::now() + kPatience);
  SMD_REQUIRE(message.has_value());
  return std::move(*message);
}

std::string errorOfNext(Communicator& on, TimePoint end, ErrorKind kind) {
  try {
    const auto message = on.nextMessage(end);
    return message ? "a message came" : "nothing came";
  } catch (const Error& error) {
    return error.kind() == kind ? error.what() : "of another kind: " + std::string(error.what());
  }
}

std::string errorOfPost(Communicator& on, int to, ErrorKind kind) {
  try {
    on.postMessage(to, {}, {});
    return "it was posted";
  } catch (const Error& error) {
    return error.kind() == kind ? error.what() : "of another kind: " + std::string(error.what());
  }
}

void expectIn(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected \"" << part << "\" in: " << text;
}

void barrier(Communicator& on) {
  requireNone(errorOf(*on.collective(algorithms::Request{}, Mode::kBlocking, {})));
}

// All on one host, through shared memory or TCP; or the last rank on another host than the rest.
enum class Where { kSharedMemory, kTcp, kTwoHosts };

class Messages : public ::testing::TestWithParam<Where> {
 protected:
  World& world(int size, nanoseconds timeout = seconds(60)) {
    WorldOptions options{.size = size, .timeout = timeout};
    if (GetParam() == Where::kTcp) options.transport = TransportChoice::kTcp;
    if (GetParam() == Where::kTwoHosts) options.ranksPerHost = {size - 1, 1};
    world_ = std::make_unique<World>(options);
    return *world_;
  }

 private:
  std::unique_ptr<World> world_;
};

TEST_P(Messages, OfAllSizesArriveAsTheyWerePosted) {
  const std::vector<std::vector<std::uint64_t>> bodies = {{},
                                                          {0},
                                                          {1},
                                                          {13},
                                                          {8191},
                                                          {8192},
                                                          {65535},
                                                          {65536},
                                                          {65537},
                                                          {131072 - 56},
                                                          {1000003},
                                                          {9 << 20},
                                                          {0, 5, 0, 64},
                                                          {1, 1, 1},
                                                          {63, 64, 65, 0},
                                                          {30, 70001},
                                                          {4096, 131073},
                                                          {0, 0}};
  World& all = world(3);
  all.run([&](int rank) {
    std::uint32_t number = 0;
    for (const auto& sizes : bodies) {
      for (std::uint64_t headerBytes : {0, 1, 100, 70000}) {
        ++number;
        all.at(rank, "message " + std::to_string(number));
        Posted{rank, number, headerBytes, sizes}.post(all.of(rank), (rank + 1) % 3);
        Posted{(rank + 2) % 3, number, headerBytes, sizes}.check(next(all.of(rank)));
      }
    }
    SMD_REQUIRE(!all.of(rank).nextMessage(kNow));
    barrier(all.of(rank));
  });
}

TEST_P(Messages, HeadersMayBeEmpty) {
  World& all = world(2);
  all.run([&](int rank) {
    const std::vector<std::byte> body = bytesOf(1, 1, 100);
    const Segment segment{body.data(), body.size()};
    if (rank == 0) {
      all.of(0).postMessage(1, {}, {});
      all.of(0).postMessage(1, {}, std::span(&segment, 1));
    } else {
      const Message empty = next(all.of(1));
      SMD_REQUIRE(empty.header().empty() && empty.body().empty() && empty.source() == 0);
      const Message message = next(all.of(1));
      SMD_REQUIRE(message.header().empty() && std::ranges::equal(message.body(), body));
    }
    barrier(all.of(rank));
  });
}

// More than a ring holds, and then some: nobody looks until all have been posted.
TEST_P(Messages, NobodyHasToLookForThemToBePosted) {
  constexpr std::uint32_t kMessages = 300;
  World& all = world(2);
  all.run([&](int rank) {
    const auto message = [](int from, std::uint32_t number) {
      return Posted{from, number, number % 50, {number * 40, number % 7 == 0 ? 200000U : 3U}};
    };
    for (std::uint32_t i = 0; i < kMessages; ++i) message(rank, i).post(all.of(rank), 1 - rank);
    barrier(all.of(rank));
    // In the order of their posting, although large ones go another way than small ones.
    for (std::uint32_t i = 0; i < kMessages; ++i) message(1 - rank, i).check(next(all.of(rank)));
    barrier(all.of(rank));
  });
}

// The progress thread brings out what its poster has left behind.
TEST_P(Messages, ArriveAlthoughTheirSenderComputes) {
  World& all = world(2);
  const Posted large{0, 1, 300000, {9000, 5000}};  // its header does not fit into a ring
  std::atomic<bool> hasArrived{false};
  all.run([&](int rank) {
    if (rank == 0) {
      large.post(all.of(0), 1);
      const TimePoint end = Clock::now() + kPatience;
      while (!hasArrived && Clock::now() < end) std::this_thread::yield();
      SMD_REQUIRE(hasArrived);
    } else {
      large.check(next(all.of(1)));
      hasArrived = true;
    }
  });
}

TEST_P(Messages, ThousandsInBothDirectionsAtOnce) {
  constexpr std::uint32_t kMessages = kIsSlow ? 1000 : 5000;
  World& all = world(2);
  all.run([&](int rank) {
    const auto message = [](int from, std::uint32_t number) {
      const std::uint64_t bytes = number % 50 == 0 ? 40000 : number % 11;
      return Posted{from, number, number % 5, {bytes, number % 3}};
    };
    std::uint32_t taken = 0;
    const auto take = [&](std::optional<Message> one) {
      if (one) message(1 - rank, taken++).check(*one);
    };
    for (std::uint32_t i = 0; i < kMessages; ++i) {
      message(rank, i).post(all.of(rank), 1 - rank);
      if (i % 3 == 0) take(all.of(rank).nextMessage(kNow));
    }
    while (taken < kMessages) {
      all.at(rank, "has taken " + std::to_string(taken));
      take(next(all.of(rank)));
    }
    SMD_REQUIRE(!all.of(rank).nextMessage(kNow));
    barrier(all.of(rank));
  });
}

TEST_P(Messages, OfSeveralSendersKeepTheOrderOfEach) {
  constexpr int kSize = 5;
  constexpr std::uint32_t kMessages = 100;
  World& all = world(kSize);
  all.run([&](int rank) {
    const auto message = [](int from, std::uint32_t number) {
      return Posted{from, number, 3, {number % 10 == 0 ? 100000U : number * 20}};
    };
    if (rank == 0) {
      std::vector<std::uint32_t> numFrom(kSize, 0);
      for (std::uint32_t i = 0; i < (kSize - 1) * kMessages; ++i) {
        const Message one = next(all.of(0));
        message(one.source(), numFrom[static_cast<std::size_t>(one.source())]++).check(one);
      }
    } else {
      for (std::uint32_t i = 0; i < kMessages; ++i) message(rank, i).post(all.of(rank), 0);
    }
    barrier(all.of(rank));
  });
}

TEST_P(Messages, ATimeoutHarmsNothing) {
  World& all = world(2);
  all.run([&](int rank) {
    if (rank == 0) {
      SMD_REQUIRE(!all.of(0).nextMessage(kNow));
      const TimePoint end = Clock::now() + milliseconds(30);
      SMD_REQUIRE(!all.of(0).nextMessage(end));
      SMD_REQUIRE(Clock::now() >= end);  // not before its time
      barrier(all.of(0));
      Posted{1, 1, 4, {100}}.check(next(all.of(0)));
    } else {
      barrier(all.of(1));
      Posted{1, 1, 4, {100}}.post(all.of(1), 0);
    }
    barrier(all.of(rank));
  });
}

// What bounds an operation of the group does not bound an idle server.
TEST_P(Messages, MayBeWaitedForLongerThanAnOperation) {
  World& all = world(2, milliseconds(300));
  all.run([&](int rank) {
    if (rank == 0) SMD_REQUIRE(!all.of(0).nextMessage(Clock::now() + milliseconds(900)));
  });
  SMD_REQUIRE(all.of(0).flightRecord().state == "open");
}

TEST_P(Messages, MayBePostedWhileAnotherThreadWaits) {
  constexpr std::uint32_t kMessages = 200;
  World& all = world(2);
  all.run([&](int rank) {
    const auto message = [](int from, std::uint32_t number) {
      return Posted{from, number, 2, {number * 500}};
    };
    std::thread poster([&] {
      for (std::uint32_t i = 0; i < kMessages; ++i) message(rank, i).post(all.of(rank), 1 - rank);
    });
    for (std::uint32_t i = 0; i < kMessages; ++i) message(1 - rank, i).check(next(all.of(rank)));
    poster.join();
    barrier(all.of(rank));
  });
}

TEST_P(Messages, BesideCollectivesSendsAndReceives) {
  constexpr int kSize = 3;
  constexpr std::uint32_t kRounds = 60;
  World& all = world(kSize);
  const Plan plan({.count = 30000}, kSize);
  all.run([&](int rank) {
    const int to = (rank + 1) % kSize;
    const int from = (rank + 2) % kSize;
    const auto message = [](int sender, std::uint32_t number) {
      return Posted{sender, number, 9, {number % 4 == 0 ? 150001U : 200U}};
    };
    std::thread server([&] {  // a server beside what the rank computes
      for (std::uint32_t i = 0; i < kRounds; ++i) message(from, i).check(next(all.of(rank)));
    });
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      message(rank, round).post(all.of(rank), to);
      const auto mine = bytesOf(rank, round, round * 3001);
      std::vector<std::byte> theirs(mine.size());
      const auto receiving = all.of(rank).receive(theirs.data(), theirs.size(), DType::kUInt8, from,
                                                  round, Mode::kAsync, {});
      const auto sending =
          all.of(rank).send(mine.data(), mine.size(), DType::kUInt8, to, round, Mode::kAsync, {});
      Buffers buffers(plan, rank);
      const auto reducing = all.of(rank).collective(
          buffers.request(), round % 2 == 0 ? Mode::kBlocking : Mode::kAsync, {});
      for (const auto& work : {receiving, sending, reducing}) {
        waitFor(*work);
        requireNone(errorOf(*work));
      }
      requireNone(buffers.problem());
      SMD_REQUIRE(theirs == bytesOf(from, round, mine.size()));
    }
    server.join();
    barrier(all.of(rank));
  });
}

TEST_P(Messages, BodiesOutliveTheCommunicatorsAndAreLetGoOfAnywhere) {
  const Posted large{0, 1, 10, {3000001, 77}};
  const Posted small{0, 2, 10, {77}};
  std::vector<Message> kept;
  {
    World& all = world(2);
    all.run([&](int rank) {
      if (rank == 0) {
        large.post(all.of(0), 1);
        small.post(all.of(0), 1);
      } else {
        kept.push_back(next(all.of(1)));
        kept.push_back(next(all.of(1)));
      }
      barrier(all.of(rank));
    });
    all.closeAll();
    large.check(kept[0]);
    all.release(0);  // the sender first
    large.check(kept[0]);
    all.release(1);
  }
  large.check(kept[0]);
  small.check(kept[1]);
  std::memset(kept[0].body().data(), 3, kept[0].body().size());  // it is the receiver's
  std::thread([released = std::move(kept)] {}).join();
}

TEST_P(Messages, WhatNobodyHasTakenIsLetGoOf) {
  World& all = world(2);
  all.run([&](int rank) {
    for (std::uint32_t i = 0; i < 20; ++i) {
      Posted{rank, i, 5, {100000}}.post(all.of(rank), 1 - rank);
    }
    barrier(all.of(rank));
  });
}

TEST_P(Messages, PostedBeforeTheirSenderLeavesAreDeliveredFirst) {
  World& all = world(2);
  std::atomic<bool> isClosed{false};
  all.run([&](int rank) {
    const auto message = [](std::uint32_t number) {
      return Posted{0, number, 5, {number * 3000, number}};
    };
    if (rank == 0) {
      for (std::uint32_t i = 0; i < 20; ++i) message(i).post(all.of(0), 1);
      all.of(0).close();
      isClosed = true;
      EXPECT_THROW(all.of(0).postMessage(1, {}, {}), Error);
      EXPECT_THROW(all.of(0).nextMessage(kNow), Error);
      expectIn(errorOfNext(all.of(0), TimePoint::max(), ErrorKind::kConfiguration), "is closed");
      return;
    }
    // Most of them are taken when it is known that there will be no more.
    for (std::uint32_t i = 0; i < 20; ++i) {
      message(i).check(next(all.of(1)));
      const TimePoint end = Clock::now() + kPatience;
      while (i == 0 && !isClosed && Clock::now() < end) std::this_thread::yield();
    }
    const std::string text = errorOfNext(all.of(1), TimePoint::max(), ErrorKind::kPeerLost);
    expectIn(text, "next_message on rank 1 of 2");
    expectIn(text, "rank 0 (host ");
    expectIn(text, "left");
    expectIn(errorOfPost(all.of(1), 0, ErrorKind::kPeerLost), "rank 0 (host ");
  });
}

// Far more than a ring or a socket takes at once.
TEST_P(Messages, AreHandedOverWhenTheirSenderCloses) {
  World& all = world(2);
  all.run([&](int rank) {
    const auto message = [](std::uint32_t number) { return Posted{0, number, 100000, {number}}; };
    if (rank == 0) {
      for (std::uint32_t i = 0; i < 40; ++i) message(i).post(all.of(0), 1);
      all.of(0).close();
      return;
    }
    for (std::uint32_t i = 0; i < 40; ++i) message(i).check(next(all.of(1)));
    expectIn(errorOfNext(all.of(1), TimePoint::max(), ErrorKind::kPeerLost), "rank 0 (host ");
  });
}

TEST_P(Messages, APeerThatLeavesEndsAWait) {
  World& all = world(3);
  all.run([&](int rank) {
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(20));  // most often they are asleep by then
      all.of(2).close();
      return;
    }
    expectIn(errorOfNext(all.of(rank), TimePoint::max(), ErrorKind::kPeerLost), "rank 2 (host ");
  });
}

TEST_P(Messages, AnAbortEndsAWaitAndPosting) {
  World& all = world(3);
  all.run([&](int rank) {
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(20));
      all.of(2).abort("its test said so");
    } else {
      expectIn(errorOfNext(all.of(rank), TimePoint::max(), ErrorKind::kPeerLost),
               "aborted the group: its test said so");
    }
    expectIn(errorOfPost(all.of(rank), (rank + 1) % 3, ErrorKind::kPeerLost),
             "aborted the group: its test said so");
  });
}

// What lay in the ring when the group failed.
TEST(MessagesInARing, AreDeliveredBeforeTheError) {
  World all(2);
  all.run([&](int rank) {
    if (rank == 0) Posted{0, 1, 5, {300}}.post(all.of(0), 1);
    barrier(all.of(rank));  // not a look at the ring
    if (rank == 1) {
      all.of(1).abort("its test said so");
      Posted{0, 1, 5, {300}}.check(next(all.of(1)));
      expectIn(errorOfNext(all.of(1), kNow, ErrorKind::kPeerLost), "its test said so");
    }
  });
}

TEST_P(Messages, ClosingEndsAWaitOfAnotherThread) {
  World& all = world(2);
  // One of two that wait is refused: so this thread learns when the other one does.
  std::thread waiter([&] {
    std::string text;
    do {
      text = errorOfNext(all.of(0), TimePoint::max(), ErrorKind::kConfiguration);
    } while (text.find("two threads of rank 0") != std::string::npos);
    expectIn(text, "closed the group");
  });
  while (errorOfNext(all.of(0), kNow, ErrorKind::kConfiguration) == "nothing came") {
    std::this_thread::sleep_for(milliseconds(1));
  }
  all.of(0).close();
  waiter.join();
}

TEST_P(Messages, AreRefusedToAndFromNobody) {
  World& all = world(2);
  for (int peer : {0, 2, -1, -2}) {
    expectIn(errorOfPost(all.of(0), peer, ErrorKind::kConfiguration), "Check the rank arithmetic");
  }
  const Segment absurd{nullptr, ~std::uint64_t{0}};
  EXPECT_THROW(all.of(0).postMessage(1, {}, std::span(&absurd, 1)), Error);
  World one(1);
  expectIn(errorOfPost(one.of(0), 0, ErrorKind::kConfiguration), "Check the rank arithmetic");
  expectIn(errorOfNext(one.of(0), kNow, ErrorKind::kConfiguration), "Check the rank arithmetic");
}

TEST_P(Messages, OneThreadAtATimeTakesThem) {
  World& all = world(2);
  std::atomic<bool> isRefused{false};
  const auto takes = [&] {  // until it has a message, or one of the two has been refused
    while (!isRefused) {
      const std::string text =
          errorOfNext(all.of(0), Clock::now() + milliseconds(1), ErrorKind::kConfiguration);
      if (text == "nothing came") continue;
      expectIn(text, "two threads of rank 0");
      isRefused = true;
    }
  };
  std::thread other(takes);
  takes();
  other.join();
  Posted{1, 1, 0, {}}.post(all.of(1), 0);
  Posted{1, 1, 0, {}}.check(next(all.of(0)));
}

INSTANTIATE_TEST_SUITE_P(Engine, Messages,
                         ::testing::Values(Where::kSharedMemory, Where::kTcp, Where::kTwoHosts),
                         [](const auto& each) {
                           return each.param == Where::kTcp        ? "tcp"
                                  : each.param == Where::kTwoHosts ? "hosts"
                                                                   : "shm";
                         });

// --- blocks --------------------------------------------------------------------------------------

// The same sizes, one after the other: the same memory each time. Also if others are elsewhere.
void useAgain(World& all) {
  const Posted message{0, 1, 0, {200000}};
  const auto takeOne = [&] {
    message.post(all.of(0), 1);
    Message taken = next(all.of(1));
    message.check(taken);
    return taken;
  };
  Message kept = takeOne();
  const std::byte* first = takeOne().body().data();
  EXPECT_NE(first, kept.body().data());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(takeOne().body().data(), first);
  message.check(kept);  // nobody has written there meanwhile
  // A little less fits as well, much less does not take it.
  Posted{0, 2, 0, {190000}}.post(all.of(0), 1);
  EXPECT_EQ(next(all.of(1)).body().data(), first);
  Posted{0, 3, 0, {20000}}.post(all.of(0), 1);
  EXPECT_NE(next(all.of(1)).body().data(), first);
}

TEST(MessageBlocks, AreUsedAgainOnceReleased) {
  World all(2);
  useAgain(all);
}

TEST(MessageBlocks, AreUsedOnEachOfSeveralHosts) {
  World all({.size = 3, .ranksPerHost = {2, 1}});
  useAgain(all);
  EXPECT_EQ(all.of(0).allocateShared(4096), nullptr);
}

// Two ranks without communicators, on arenas of a few MiB.
class Pair {
 public:
  static constexpr std::size_t kArena = std::size_t{4} << 20;

  Pair() {
    for (int rank = 0; rank < 2; ++rank) {
      Side& side = sides_[static_cast<std::size_t>(rank)];
      side.mailbox = std::make_unique<transport::Mailbox>(
          2, transport::Mailbox::Events{[] {}, [](int, const Error&) {},
                                        [](int, const transport::FrameHeader&, std::string_view) {},
                                        [&side](int, const transport::Refusal& refusal) {
                                          side.refusal = refusal.reason;
                                        }});
      side.transport = transport::shm::createTransport(region_, rank, {0, 1}, *side.mailbox);
      side.mailbox->setTransport(1 - rank, side.transport.get());
      side.arena = transport::shm::Arena::create(region_, rank);
      Membership membership;
      membership.region = region_;
      membership.localRanks = {0, 1};
      side.messages =
          std::make_unique<engine::Messages>(*side.mailbox, membership, rank, side.arena);
    }
  }

  transport::shm::Arena& arena(int rank) { return *sides_[static_cast<std::size_t>(rank)].arena; }
  transport::Mailbox& mailbox(int rank) { return *sides_[static_cast<std::size_t>(rank)].mailbox; }
  engine::Messages& messages(int rank) { return *sides_[static_cast<std::size_t>(rank)].messages; }
  std::optional<transport::Refusal::Reason> refusal(int rank) const {
    return sides_[static_cast<std::size_t>(rank)].refusal;
  }
  // As at the end of a communicator.
  void end(int rank) {
    sides_[static_cast<std::size_t>(rank)].transport->close(milliseconds(0));
    sides_[static_cast<std::size_t>(rank)].messages.reset();
  }
  bool isInArena(const Message& message) {
    const auto* begin = region_->view(0).arena(0);
    return message.body().data() >= begin && message.body().data() < begin + 2 * kArena;
  }
  // From rank 0 to rank 1.
  Message pass(const std::vector<std::byte>& body) {
    const Segment segment{body.data(), body.size()};
    messages(0).post(1, {}, std::span(&segment, 1));
    return arrive();
  }
  Message arrive() {
    const TimePoint end = Clock::now() + kPatience;
    for (;;) {
      if (auto message = messages(1).take()) return std::move(*message);
      SMD_REQUIRE(Clock::now() < end);
      mailbox(1).poll();
      mailbox(0).poll();
      messages(0).sweep();
    }
  }

 private:
  struct Side {
    std::optional<transport::Refusal::Reason> refusal;
    std::unique_ptr<transport::Mailbox> mailbox;
    std::unique_ptr<transport::Transport> transport;
    std::shared_ptr<transport::shm::Arena> arena;
    std::unique_ptr<engine::Messages> messages;
  };
  std::shared_ptr<transport::shm::Region> region_ = transport::shm::Region::create(2, kArena);
  std::array<Side, 2> sides_;
};

TEST(MessageBlocks, AreNotNeededWhereTheArenaHasNoRoom) {
  Pair pair;
  std::vector<Message> kept;
  std::size_t numInArena = 0;
  for (std::uint64_t i = 0; i < 10; ++i) {  // twice what fits
    kept.push_back(pair.pass(bytesOf(0, i, 800000)));
    if (pair.isInArena(kept.back())) ++numInArena;
  }
  EXPECT_EQ(numInArena, 4u);
  EXPECT_FALSE(pair.isInArena(pair.pass(bytesOf(0, 20, Pair::kArena + 1))));
  for (std::uint64_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(std::ranges::equal(kept[i].body(), bytesOf(0, i, 800000))) << i;
  }
  kept.clear();
  EXPECT_TRUE(pair.isInArena(pair.pass(bytesOf(0, 30, 800000))));
  // What lies idle makes room for another size.
  EXPECT_TRUE(pair.isInArena(pair.pass(bytesOf(0, 31, 3500000))));
  EXPECT_FALSE(pair.messages(0).hasUnsent());
}

// As they lie in its memory: what SMDDP_MESSAGE_LIMIT_MB counts.
TEST(MessageBlocks, AreHeldByTheirSenderUntilReleased) {
  Pair pair;
  {
    const Message kept = pair.pass(bytesOf(0, 1, 800000));
    EXPECT_GE(pair.messages(0).heldBytes(), 800000u);
  }
  EXPECT_EQ(pair.messages(0).heldBytes(), 0u);
}

TEST(MessageBlocks, StayTakenAfterTheirSenderHasGone) {
  Pair pair;
  const auto expected = bytesOf(0, 1, 1500000);
  Message kept = pair.pass(expected);
  Message released = pair.pass(expected);
  ASSERT_TRUE(pair.isInArena(kept) && pair.isInArena(released));
  {
    const Message gone = std::move(released);
  }
  pair.end(0);
  // Whoever allocates there now gets what was released, and nothing else.
  const auto other = pair.arena(0).allocate(2000000);
  ASSERT_NE(other, nullptr);
  std::memset(other->data(), 7, other->size());
  EXPECT_EQ(pair.arena(0).allocate(1500000), nullptr);
  EXPECT_TRUE(std::ranges::equal(kept.body(), expected));
}

TEST(MessageBlocks, OfMessagesThatNobodyTakesAreReleased) {
  Pair pair;
  const auto body = bytesOf(0, 1, 1500000);
  const Segment segment{body.data(), body.size()};
  pair.messages(0).post(1, {}, std::span(&segment, 1));
  pair.mailbox(1).poll();
  pair.end(1);
  pair.end(0);
  EXPECT_NE(pair.arena(0).allocate(Pair::kArena), nullptr);
}

// What a peer says is not believed.
TEST(MessageBlocks, ThatCannotBeAreRefused) {
  struct Case {
    const char* what;
    std::uint64_t form, tag, offset, bytes;
    std::size_t length;
  };
  for (const Case& each : {
           Case{"behind the end", 1, 0, Pair::kArena - 64, 1, 16},
           Case{"before it is begun", 1, 0, ~std::uint64_t{63}, 128, 16},
           Case{"too long", 1, 0, 0, Pair::kArena - 63, 16},
           Case{"absurdly long", 1, 0, 64, ~std::uint64_t{0} - 10, 16},
           Case{"crooked", 1, 0, 8, 8, 16},
           Case{"without a place", 1, 0, 0, 8, 8},
           Case{"with a header too long", 1, 8, 0, 8, 16},
           Case{"with a header longer than all", 0, 17, 0, 8, 16},
           Case{"with an absurd header", 0, ~std::uint64_t{0}, 0, 8, 16},
           Case{"of another form", 2, 0, 0, 8, 16},
       }) {
    Pair pair;
    const std::array<std::uint64_t, 2> place = {each.offset, each.bytes};
    transport::FrameHeader header;
    header.channel = transport::Channel::kMessage;
    header.signature.detail = each.form;
    header.tag = each.tag;
    header.length = each.length;
    pair.mailbox(0).send(1, header, place.data(), nullptr);
    pair.mailbox(1).poll();
    if (each.tag > each.length) {  // it does not come so far
      EXPECT_EQ(pair.refusal(1), transport::Refusal::Reason::kBadTag) << each.what;
      EXPECT_FALSE(pair.messages(1).take()) << each.what;
      continue;
    }
    try {
      static_cast<void>(pair.messages(1).take());
      ADD_FAILURE() << each.what << " was taken";
    } catch (const Error& error) {
      expectIn(error.what(), "rank 0 sent a message of " + std::to_string(each.length));
    }
  }
}

}  // namespace
}  // namespace smd::engine::test
