// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The promises of native/transport/transport.h, as tests. A transport joins by instantiating the
// suite with a function that connects N of them in one process:
//
//   INSTANTIATE_TEST_SUITE_P(Mine, TransportConformance, conformanceCases("mine", makeMine));
//
// Each test runs twice: with the bytes moved by the background thread, and by threads that call
// poll() in turn with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/refusal.h"
#include "transport/transport.h"

namespace smd::transport::test {

using std::chrono::milliseconds;

// No test waits longer for something that should happen. Generous: it is a deadline for machines
// that are busy with other things, not a measurement.
inline constexpr std::chrono::seconds kPatience{60};

// Connects transports of sinks.size() ranks; sinks[r] receives for rank r.
using MakeGroup =
    std::function<std::vector<std::unique_ptr<Transport>>(const std::vector<FrameSink*>& sinks)>;

// Which element of which frame of whom: a misplaced byte tells where it came from.
inline std::byte element(int sender, int receiver, std::uint64_t tag, std::uint64_t index) {
  const std::uint64_t mixed =
      (static_cast<std::uint64_t>(sender) * 31 + static_cast<std::uint64_t>(receiver) * 17 + tag) *
          1000003 +
      index * 7 + (index >> 8);
  return static_cast<std::byte>(mixed & 0xFF);
}

inline std::vector<std::byte> payload(int sender, int receiver, std::uint64_t tag,
                                      std::size_t length) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) {
    bytes[i] = element(sender, receiver, tag, i);
  }
  return bytes;
}

inline FrameHeader frameHeader(std::uint64_t tag, std::uint64_t length,
                               Channel channel = Channel::kPointToPoint) {
  FrameHeader header;
  header.tag = tag;
  header.length = length;
  header.channel = channel;
  header.signature.sequence = tag + 1;
  header.signature.count = length;
  return header;
}

// Set while this thread is inside Transport::send(): the sink must not be called then.
inline thread_local bool isSending = false;

struct ReceivedFrame {
  FrameHeader header;
  std::vector<std::byte> bytes;
};

// Keeps what arrives, and notes every broken promise.
class RecordingSink : public FrameSink {
 public:
  std::byte* frameBegin(Stream from, const FrameHeader& header) override {
    const Call call(*this, from.peer);
    if (header.length >= noMemoryFrom) throw std::bad_alloc();
    if (refusal(from.peer).has_value()) note("frameBegin() after frameRefused()");
    ReceivedFrame& frame = open_[{from.peer, from.index}];
    frame.header = header;
    frame.bytes.assign(header.length, std::byte{0});
    return header.length >= noPlaceFrom ? nullptr : frame.bytes.data();
  }

  void frameEnd(Stream from, const FrameHeader& header) override {
    const int peer = from.peer;
    const Call call(*this, peer);
    ReceivedFrame& frame = open_[{from.peer, from.index}];
    if (std::memcmp(&frame.header, &header, sizeof(header)) != 0) {
      note("frameEnd() with another header than frameBegin()");
    }
    if (onFrame) {
      onFrame(peer, frame);
    }
    const std::lock_guard lock(mutex_);
    received_[peer].push_back(std::move(frame));
    open_.erase({from.peer, from.index});
    changed_.notify_all();
  }

  void frameCancelled(Stream from) noexcept override {
    const Call call(*this, from.peer);
    if (open_.erase({from.peer, from.index}) == 0) note("frameCancelled() without frameBegin()");
  }

  void frameRefused(int peer, const Refusal& refusal) noexcept override {
    const Call call(*this, peer);
    const std::lock_guard lock(mutex_);
    if (!refusals_.emplace(peer, refusal).second) {
      violations_.push_back("frameRefused() twice for one peer");
    }
    changed_.notify_all();
  }

  void sendCompleted(int peer) override {
    const Call call(*this, peer);
    changed_.notify_all();
  }

  void linkFailed(int peer, const Error& error) override {
    const Call call(*this, peer);
    if (error.kind() != ErrorKind::kPeerLost) {
      note("linkFailed() with an error of another kind than kPeerLost");
    }
    const std::lock_guard lock(mutex_);
    if (!failures_.emplace(peer, error.what()).second) {
      violations_.push_back("linkFailed() twice for one peer");
    }
    changed_.notify_all();
  }

  // Of a frame's bytes. Set it before the first frame.
  std::uint64_t noMemoryFrom = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t noPlaceFrom = std::numeric_limits<std::uint64_t>::max();
  // Called for each whole frame, before it is kept. Set it before the first frame.
  std::function<void(int peer, const ReceivedFrame&)> onFrame;

  void closed() { isClosed_.store(true); }

  // Frames that have begun and neither ended nor been cancelled. Not while one may begin.
  std::size_t numOpen() const { return open_.size(); }

  std::size_t count(int peer) {
    const std::lock_guard lock(mutex_);
    return received_[peer].size();
  }
  ReceivedFrame frame(int peer, std::size_t index) {
    const std::lock_guard lock(mutex_);
    return received_[peer].at(index);
  }
  std::optional<std::string> failure(int peer) {
    const std::lock_guard lock(mutex_);
    const auto found = failures_.find(peer);
    return found == failures_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<Refusal> refusal(int peer) {
    const std::lock_guard lock(mutex_);
    const auto found = refusals_.find(peer);
    return found == refusals_.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<std::string> violations() {
    const std::lock_guard lock(mutex_);
    return violations_;
  }

 private:
  static constexpr std::size_t kMaxPeers = 16;

  // One call of the sink; sees whether it comes at a moment when it must not.
  class Call {
   public:
    Call(RecordingSink& sink, int peer) : busy_(sink.busy_[static_cast<std::size_t>(peer)]) {
      if (isSending) {
        sink.note("a FrameSink function was called from inside send()");
      }
      if (busy_.exchange(true)) {
        sink.note("two threads called the FrameSink for one peer at the same time");
      }
      if (sink.isClosed_.load()) {
        sink.note("a FrameSink function was called after close() had returned");
      }
    }
    ~Call() { busy_.store(false); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    std::atomic<bool>& busy_;
  };

  void note(const std::string& violation) {
    const std::lock_guard lock(mutex_);
    violations_.push_back(violation);
  }

  std::atomic<bool> busy_[kMaxPeers]{};
  std::atomic<bool> isClosed_{false};
  std::map<std::pair<int, int>, ReceivedFrame> open_;  // by peer and index of its stream

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::deque<ReceivedFrame>> received_;
  std::map<int, std::string> failures_;
  std::map<int, Refusal> refusals_;
  std::vector<std::string> violations_;
};

// N ranks in this process.
class Group {
 public:
  Group(const MakeGroup& make, int size, bool isPolled) : isPolled_(isPolled) {
    std::vector<FrameSink*> raw;
    for (int rank = 0; rank < size; ++rank) {
      sinks_.push_back(std::make_unique<RecordingSink>());
      raw.push_back(sinks_.back().get());
    }
    transports_ = make(raw);
  }

  ~Group() {
    for (int rank = 0; rank < size(); ++rank) {
      close(rank, milliseconds(0));
    }
    transports_.clear();
    for (const auto& sink : sinks_) {
      EXPECT_EQ(sink->violations(), std::vector<std::string>{});
    }
  }

  int size() const { return static_cast<int>(sinks_.size()); }
  Transport& transport(int rank) { return *transports_[static_cast<std::size_t>(rank)]; }
  RecordingSink& sink(int rank) { return *sinks_[static_cast<std::size_t>(rank)]; }

  void send(int from, int to, const FrameHeader& header, const void* bytes, SendTicket* ticket) {
    isSending = true;
    transport(from).send(to, header, bytes, ticket);
    isSending = false;
  }

  void close(int rank, milliseconds grace) {
    transport(rank).close(grace);
    sink(rank).closed();
  }

  // Waits for `isTrue()`, moving bytes meanwhile if this is a polled group.
  template <typename Predicate>
  bool wait(Predicate&& isTrue) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!isTrue()) {
      if (std::chrono::steady_clock::now() > deadline) {
        return false;
      }
      bool hasMoved = false;
      if (isPolled_) {
        for (int rank = 0; rank < size(); ++rank) {
          hasMoved |= transport(rank).poll();
        }
      }
      if (!hasMoved) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return true;
  }

  bool waitForTicket(const SendTicket& ticket) {
    return wait([&] { return ticket.state() != SendTicket::State::kPending; });
  }

 private:
  const bool isPolled_;
  std::vector<std::unique_ptr<RecordingSink>> sinks_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

struct ConformanceCase {
  std::string name;
  MakeGroup make;
  bool isPolled = false;
  // Memory that ranks share stays when one of them leaves: there is no link that could fail.
  bool hasLinksThatFail = true;
};

inline std::ostream& operator<<(std::ostream& stream, const ConformanceCase& each) {
  return stream << each.name << (each.isPolled ? ", polled" : ", in the background");
}

inline auto conformanceCases(const std::string& name, const MakeGroup& make) {
  return ::testing::Values(ConformanceCase{name, make, false}, ConformanceCase{name, make, true});
}

class TransportConformance : public ::testing::TestWithParam<ConformanceCase> {
 protected:
  std::unique_ptr<Group> makeGroup(int size) {
    return std::make_unique<Group>(GetParam().make, size, GetParam().isPolled);
  }
};

inline void expectFrame(const ReceivedFrame& frame, int from, int to, std::uint64_t tag,
                        std::size_t length) {
  EXPECT_EQ(frame.header.tag, tag);
  EXPECT_EQ(frame.header.signature.sequence, tag + 1);
  ASSERT_EQ(frame.bytes.size(), length);
  EXPECT_TRUE(frame.bytes == payload(from, to, tag, length))
      << "frame " << tag << " from rank " << from << " to rank " << to << " was changed on its way";
}

// --- Promise 1: whole, unchanged, in order ---

TEST_P(TransportConformance, FramesOfAllSizesArriveUnchangedAndInOrder) {
  const std::vector<std::size_t> sizes = {
      0, 1, 7, 4093, 65536 - 56, 65536, 65537, (1 << 20) + 1, 0, 10000019, 3};
  for (const int worldSize : {2, 3, 5}) {
    const auto group = makeGroup(worldSize);
    const int from = worldSize - 1;
    const int to = 0;
    std::vector<std::vector<std::byte>> data;
    std::deque<SendTicket> tickets(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      data.push_back(payload(from, to, i, sizes[i]));
      group->send(from, to, frameHeader(i, sizes[i]), data.back().data(), &tickets[i]);
    }
    ASSERT_TRUE(group->wait([&] { return group->sink(to).count(from) == sizes.size(); }));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      expectFrame(group->sink(to).frame(from, i), from, to, i, sizes[i]);
      ASSERT_TRUE(group->waitForTicket(tickets[i]));
      EXPECT_EQ(tickets[i].state(), SendTicket::State::kSent);
    }
  }
}

// Nothing behind it is taken for a frame, nor its payload for another's; and the way back is open.
TEST_P(TransportConformance, AFrameThatThereIsNoMemoryForIsRefused) {
  constexpr std::uint64_t kMost = std::uint64_t{3} << 20;
  const auto group = makeGroup(2);
  group->sink(1).noMemoryFrom = kMost;
  std::vector<std::vector<std::byte>> payloads;
  std::deque<SendTicket> tickets;
  for (std::uint64_t tag = 0; tag < 4; ++tag) {
    payloads.push_back(payload(0, 1, tag, tag == 2 ? kMost : 1000));
    group->send(0, 1, frameHeader(tag, payloads.back().size()), payloads.back().data(),
                &tickets.emplace_back());
  }
  ASSERT_TRUE(group->wait([&] { return group->sink(1).refusal(0).has_value(); }));
  EXPECT_EQ(group->sink(1).refusal(0)->reason, Refusal::Reason::kNoMemory);
  EXPECT_EQ(group->sink(1).refusal(0)->header.length, kMost);
  const auto answer = payload(1, 0, 9, 5000);
  group->send(1, 0, frameHeader(9, answer.size()), answer.data(), nullptr);
  ASSERT_TRUE(group->wait([&] { return group->sink(0).count(1) == 1; }));
  expectFrame(group->sink(0).frame(1, 0), 1, 0, 9, 5000);
  EXPECT_EQ(group->sink(1).count(0), 2U);
  EXPECT_FALSE(group->sink(1).failure(0).has_value());
  group->close(0, milliseconds(0));  // ends the tickets
  for (const SendTicket& ticket : tickets) EXPECT_NE(ticket.state(), SendTicket::State::kPending);
}

TEST_P(TransportConformance, AHeaderThatNoFrameCanHaveIsRefused) {
  for (const FrameHeader& header :
       {frameHeader(1, 0, static_cast<Channel>(77)),
        frameHeader(kNumControlTags, 0, Channel::kControl), frameHeader(1, 0, Channel::kMessage),
        frameHeader(0, 0, static_cast<Channel>(0xFE))}) {
    const auto group = makeGroup(2);
    group->send(0, 1, header, nullptr, nullptr);
    group->send(0, 1, frameHeader(2, 0), nullptr, nullptr);
    ASSERT_TRUE(group->wait([&] { return group->sink(1).refusal(0).has_value(); }));
    EXPECT_EQ(group->sink(1).count(0), 0U);
  }
}

// A thread that waits may keep the background thread away, but only as long as it comes back.
TEST_P(TransportConformance, FramesArriveAfterTheLastOfManyShortWaits) {
  const auto group = makeGroup(2);
  Transport& receiver = group->transport(1);
  std::size_t numSent = 0;
  const auto arrives = [&] {
    group->send(0, 1, frameHeader(numSent++, 0), nullptr, nullptr);
    return group->wait([&] { return group->sink(1).count(0) == numSent; });
  };
  for (const int numWaits : {1, 30, 300}) {
    for (int i = 0; i < numWaits; ++i) {
      receiver.beginWait();
      std::this_thread::sleep_for(std::chrono::microseconds(i % 2 * 200));
      receiver.endWait(true);
    }
    ASSERT_TRUE(arrives()) << "after " << numWaits << " waits";
  }
  for (const bool isBackSoon : {true, false}) {  // the last of two waits decides
    receiver.beginWait();
    receiver.beginWait();
    receiver.endWait(!isBackSoon);
    receiver.endWait(isBackSoon);
    ASSERT_TRUE(arrives());
  }
  receiver.beginWait();
  receiver.endWait(true);
  receiver.letReturn();
  ASSERT_TRUE(arrives());
}

TEST_P(TransportConformance, ManySmallFramesKeepTheirOrder) {
  constexpr std::size_t kFrames = 20000;
  const auto group = makeGroup(2);
  for (std::size_t i = 0; i < kFrames; ++i) {
    const auto bytes = payload(0, 1, i, i % 13);
    group->send(0, 1, frameHeader(i, bytes.size(), Channel::kCollective), bytes.data(), nullptr);
  }
  ASSERT_TRUE(group->wait([&] { return group->sink(1).count(0) == kFrames; }));
  for (std::size_t i = 0; i < kFrames; ++i) {
    const ReceivedFrame frame = group->sink(1).frame(0, i);
    ASSERT_EQ(frame.header.tag, i);
    ASSERT_EQ(frame.header.channel, Channel::kCollective);
    ASSERT_EQ(frame.bytes, payload(0, 1, i, i % 13));
  }
}

TEST_P(TransportConformance, StormsBetweenAllRanksArriveUnchanged) {
  constexpr std::size_t kFramesPerPair = 40;
  for (const int worldSize : {2, 3, 5}) {
    const auto group = makeGroup(worldSize);
    const auto length = [](int from, int to, std::size_t i) {
      std::minstd_rand random(static_cast<unsigned>(from * 1000 + to * 100) +
                              static_cast<unsigned>(i) + 1);
      random.discard(3);
      return i % 4 == 0 ? random() % 300000 : random() % 3000;
    };
    std::vector<std::thread> ranks;
    std::atomic<int> failedSends{0};
    for (int from = 0; from < worldSize; ++from) {
      ranks.emplace_back([&, from] {
        std::deque<SendTicket> tickets;
        std::deque<std::vector<std::byte>> data;
        for (std::size_t i = 0; i < kFramesPerPair; ++i) {
          for (int step = 1; step < worldSize; ++step) {
            const int to = (from + step) % worldSize;
            data.push_back(payload(from, to, i, length(from, to, i)));
            tickets.emplace_back();
            group->send(from, to, frameHeader(i, data.back().size()), data.back().data(),
                        &tickets.back());
          }
        }
        for (const SendTicket& ticket : tickets) {
          if (!group->waitForTicket(ticket) || ticket.state() != SendTicket::State::kSent) {
            ++failedSends;
          }
        }
      });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
    EXPECT_EQ(failedSends, 0);
    for (int to = 0; to < worldSize; ++to) {
      for (int from = 0; from < worldSize; ++from) {
        if (from != to) {
          ASSERT_TRUE(group->wait([&] { return group->sink(to).count(from) == kFramesPerPair; }));
          for (std::size_t i = 0; i < kFramesPerPair; ++i) {
            expectFrame(group->sink(to).frame(from, i), from, to, i, length(from, to, i));
          }
        }
      }
    }
  }
}

TEST_P(TransportConformance, ThreadsMaySendToOnePeerAtTheSameTime) {
  constexpr std::uint64_t kThreads = 4;
  constexpr std::uint64_t kFramesPerThread = 300;
  const auto group = makeGroup(3);
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < kFramesPerThread; ++i) {
        const std::uint64_t tag = thread * kFramesPerThread + i;
        const auto bytes = payload(2, 0, tag, tag % 2000);
        group->send(2, 0, frameHeader(tag, bytes.size()), bytes.data(), nullptr);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  ASSERT_TRUE(group->wait([&] { return group->sink(0).count(2) == kThreads * kFramesPerThread; }));
  std::map<std::uint64_t, std::uint64_t> nextOfThread;
  for (std::size_t i = 0; i < kThreads * kFramesPerThread; ++i) {
    const ReceivedFrame frame = group->sink(0).frame(2, i);
    const std::uint64_t thread = frame.header.tag / kFramesPerThread;
    ASSERT_EQ(frame.header.tag % kFramesPerThread, nextOfThread[thread]++);
    expectFrame(frame, 2, 0, frame.header.tag, frame.header.tag % 2000);
  }
}

// --- Promise 2: tickets ---

TEST_P(TransportConformance, PayloadWithoutTicketIsCopied) {
  constexpr std::size_t kLength = 3000000;  // more than a socket takes at once
  const auto group = makeGroup(2);
  {
    auto bytes = payload(0, 1, 5, kLength);
    group->send(0, 1, frameHeader(5, kLength), bytes.data(), nullptr);
    std::fill(bytes.begin(), bytes.end(), std::byte{0xEE});
  }
  ASSERT_TRUE(group->wait([&] { return group->sink(1).count(0) == 1; }));
  expectFrame(group->sink(1).frame(0, 0), 0, 1, 5, kLength);
}

TEST_P(TransportConformance, PayloadMayBeOverwrittenOnceItsTicketCompletes) {
  constexpr std::uint64_t kRounds = 50;
  constexpr std::size_t kLength = 200003;
  const auto group = makeGroup(2);
  std::vector<std::byte> buffer(kLength);
  SendTicket ticket;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    buffer = payload(1, 0, round, kLength);
    ticket.reset();
    group->send(1, 0, frameHeader(round, kLength), buffer.data(), &ticket);
    ASSERT_TRUE(group->waitForTicket(ticket));
    ASSERT_EQ(ticket.state(), SendTicket::State::kSent);
  }
  ASSERT_TRUE(group->wait([&] { return group->sink(0).count(1) == kRounds; }));
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    expectFrame(group->sink(0).frame(1, round), 1, 0, round, kLength);
  }
}

TEST_P(TransportConformance, CloseCompletesEveryTicket) {
  constexpr std::size_t kLength = std::size_t{8} << 20;
  const auto group = makeGroup(2);
  const auto bytes = payload(0, 1, 0, kLength);
  std::deque<SendTicket> tickets(16);
  for (SendTicket& ticket : tickets) {
    group->send(0, 1, frameHeader(0, kLength), bytes.data(), &ticket);
  }
  group->close(0, milliseconds(0));
  std::size_t sent = 0;
  for (const SendTicket& ticket : tickets) {
    EXPECT_NE(ticket.state(), SendTicket::State::kPending);
    sent += ticket.state() == SendTicket::State::kSent ? 1 : 0;
  }
  // What is reported as sent is a beginning of the row, and what arrives is within it.
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    EXPECT_EQ(tickets[i].state() == SendTicket::State::kSent, i < sent);
  }
  EXPECT_LE(group->sink(1).count(0), tickets.size());
}

TEST_P(TransportConformance, SendAfterCloseFailsTheTicket) {
  const auto group = makeGroup(2);
  group->close(0, milliseconds(0));
  SendTicket ticket;
  group->send(0, 1, frameHeader(0, 0), nullptr, &ticket);
  EXPECT_EQ(ticket.state(), SendTicket::State::kFailed);
}

// --- Promise 3: the sink ---

TEST_P(TransportConformance, SinkMaySendFromInsideItsFunctions) {
  constexpr std::uint64_t kBounces = 500;
  const auto group = makeGroup(2);
  for (const int rank : {0, 1}) {
    group->sink(rank).onFrame = [&group, rank](int peer, const ReceivedFrame& frame) {
      if (frame.header.tag < kBounces) {
        const auto bytes = payload(rank, peer, frame.header.tag + 1, 100);
        group->send(rank, peer, frameHeader(frame.header.tag + 1, 100), bytes.data(), nullptr);
      }
    };
  }
  const auto first = payload(0, 1, 0, 100);
  group->send(0, 1, frameHeader(0, 100), first.data(), nullptr);
  ASSERT_TRUE(group->wait(
      [&] { return group->sink(0).count(1) + group->sink(1).count(0) == kBounces + 1; }));
  expectFrame(group->sink(0).frame(1, kBounces / 2 - 1), 1, 0, kBounces - 1, 100);
}

// --- Promise 4: failed links ---

TEST_P(TransportConformance, LinkToARankThatLeavesFailsOnceAndStaysFailed) {
  if (!GetParam().hasLinksThatFail) GTEST_SKIP() << "nothing of this transport can fail";
  for (const int worldSize : {2, 3, 5}) {
    const auto group = makeGroup(worldSize);
    const int leaver = 0;
    for (int rank = 1; rank < worldSize; ++rank) {
      group->transport(rank).expect(leaver);
      group->send(rank, leaver, frameHeader(1, 0), nullptr, nullptr);
    }
    for (int rank = 1; rank < worldSize; ++rank) {
      ASSERT_TRUE(group->wait([&] { return group->sink(leaver).count(rank) == 1; }));
    }
    group->close(leaver, milliseconds(1000));
    for (int rank = 1; rank < worldSize; ++rank) {
      ASSERT_TRUE(group->wait([&] { return group->sink(rank).failure(leaver).has_value(); }));
      SendTicket ticket;
      group->send(rank, leaver, frameHeader(2, 0), nullptr, &ticket);
      EXPECT_EQ(ticket.state(), SendTicket::State::kFailed);
    }
    // The others are not disturbed. (A second report of the failure would be a violation.)
    for (int rank = 2; rank < worldSize; ++rank) {
      group->send(rank, 1, frameHeader(3, 0), nullptr, nullptr);
      ASSERT_TRUE(group->wait([&] { return group->sink(1).count(rank) == 1; }));
    }
  }
}

TEST_P(TransportConformance, FramesSentBeforeCloseArriveBeforeTheLinkFails) {
  if (!GetParam().hasLinksThatFail) GTEST_SKIP() << "nothing of this transport can fail";
  constexpr std::size_t kLength = (1 << 20) + 1;
  constexpr std::size_t kFrames = 8;
  const auto group = makeGroup(3);
  // A connection in the other direction, over which the end could be noticed too early.
  group->transport(1).expect(0);
  const auto bytes = payload(0, 1, 0, kLength);
  std::atomic<bool> hasClosed{false};
  std::thread leaver([&] {
    for (std::size_t i = 0; i < kFrames; ++i) {
      group->send(0, 1, frameHeader(0, kLength), bytes.data(), nullptr);
    }
    group->close(0, std::chrono::duration_cast<milliseconds>(kPatience));
    hasClosed = true;
  });
  EXPECT_TRUE(group->wait([&] { return group->sink(1).failure(0).has_value(); }));
  EXPECT_EQ(group->sink(1).count(0), kFrames);
  EXPECT_TRUE(group->wait([&] { return hasClosed.load(); }));
  leaver.join();
  for (std::size_t i = 0; i < group->sink(1).count(0); ++i) {
    expectFrame(group->sink(1).frame(0, i), 0, 1, 0, kLength);
  }
}

// They may overtake one another, where there are several streams.
TEST_P(TransportConformance, LongFramesOfCollectivesAllArriveBeforeTheLinkFails) {
  constexpr std::uint64_t kFrames = 60;
  const auto lengthOf = [](std::uint64_t tag) { return (std::size_t{50} << 10) + 4999 * tag; };
  const auto group = makeGroup(2);
  std::vector<std::vector<std::byte>> payloads;
  std::deque<SendTicket> tickets;
  for (std::uint64_t tag = 0; tag < kFrames; ++tag) {
    payloads.push_back(payload(0, 1, tag, lengthOf(tag)));
    FrameHeader header = frameHeader(tag, lengthOf(tag));
    header.channel = Channel::kCollective;
    group->send(0, 1, header, payloads.back().data(), &tickets.emplace_back());
    // Connections are made on the way: some frames have all of them to choose from.
    if (tag == kFrames / 2) {
      EXPECT_TRUE(group->waitForTicket(tickets.back()));
    }
  }
  std::thread leaver([&] { group->close(0, std::chrono::duration_cast<milliseconds>(kPatience)); });
  EXPECT_TRUE(group->wait([&] { return group->sink(1).count(0) == kFrames; }));
  leaver.join();
  std::map<std::uint64_t, std::size_t> byTag;
  for (std::size_t i = 0; i < group->sink(1).count(0); ++i) {
    byTag.emplace(group->sink(1).frame(0, i).header.tag, i);
  }
  ASSERT_EQ(byTag.size(), kFrames);
  for (const auto& [tag, i] : byTag) {
    expectFrame(group->sink(1).frame(0, i), 0, 1, tag, lengthOf(tag));
  }
  if (GetParam().hasLinksThatFail) {
    EXPECT_TRUE(group->wait([&] { return group->sink(1).failure(0).has_value(); }));
    EXPECT_NE(group->sink(1).failure(0)->find("in good order"), std::string::npos);
  }
}

TEST_P(TransportConformance, RanksThatCloseAtOnceStillHandOverToEachOther) {
  constexpr std::size_t kLength = std::size_t{4} << 20;
  const auto group = makeGroup(2);
  std::vector<std::thread> ranks;
  SendTicket tickets[2];
  const auto bytes = payload(0, 1, 0, kLength);
  for (const int rank : {0, 1}) {
    group->transport(rank).expect(1 - rank);
    group->send(rank, 1 - rank, frameHeader(9, 1), bytes.data(), nullptr);
  }
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(group->wait([&] { return group->sink(rank).count(1 - rank) == 1; }));
  }
  for (const int rank : {0, 1}) {
    group->send(rank, 1 - rank, frameHeader(0, kLength), bytes.data(), &tickets[rank]);
  }
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&, rank] { group->close(rank, milliseconds(20000)); });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  // At least one of them left with everything said; neither is left with a pending ticket.
  EXPECT_NE(tickets[0].state(), SendTicket::State::kPending);
  EXPECT_NE(tickets[1].state(), SendTicket::State::kPending);
  EXPECT_TRUE(tickets[0].state() == SendTicket::State::kSent ||
              tickets[1].state() == SendTicket::State::kSent);
}

// --- Promise 5: any thread, any function ---

TEST_P(TransportConformance, CloseMayMeetSendAndPollOfOtherThreads) {
  for (int round = 0; round < 10; ++round) {
    const auto group = makeGroup(3);
    std::atomic<bool> hasEnded{false};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        const auto bytes = payload(rank, 0, 0, 5000);
        while (!hasEnded) {
          SendTicket ticket;
          group->send(rank, (rank + 1) % 3, frameHeader(0, bytes.size()), bytes.data(), &ticket);
          group->transport(rank).expect((rank + 2) % 3);
          while (ticket.state() == SendTicket::State::kPending) {
            if (!group->transport(rank).poll()) {
              std::this_thread::yield();
            }
          }
        }
      });
    }
    ASSERT_TRUE(group->wait([&] { return group->sink(1).count(0) > 5; }));
    for (int rank = 0; rank < 3; ++rank) {
      group->close(rank, milliseconds(round % 2));
      group->close(rank, milliseconds(0));  // idempotent
    }
    hasEnded = true;
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

}  // namespace smd::transport::test
