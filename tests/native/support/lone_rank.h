// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank of a group, put together by hand: the test plays its peers and its wires. For the parts
// of a communicator that know of Peers and not of the communicator.
#pragma once

#include <unistd.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/exposed_buffer.h"
#include "engine/diagnostics/group_positions.h"
#include "engine/group/group_failure.h"
#include "engine/group/peers.h"
#include "engine/group/work.h"
#include "transport/shm/region.h"

namespace smd::engine::test {

// Keeps what is asked of it, and moves nothing.
class RecordingTransport final : public transport::Transport {
 public:
  struct Frame {
    int peer = -1;  // -1: spread to all
    transport::FrameHeader header;
    std::string payload;
  };
  struct Closing {
    milliseconds grace;
    Ending ending;
    bool operator==(const Closing&) const = default;
  };

  void send(int peer, const transport::FrameHeader& header, const void* payload,
            transport::SendTicket* ticket) override {
    sent.push_back({peer, header, {static_cast<const char*>(payload), header.length}});
    if (ticket == nullptr) return;
    if (sendsAtOnce) {
      ticket->complete(transport::SendTicket::State::kSent);
    } else {
      pending.push_back(ticket);
    }
  }
  void spread(const transport::FrameHeader& header, const void* payload) override {
    told.push_back({-1, header, {static_cast<const char*>(payload), header.length}});
  }
  void expect(int peer) override { expected.push_back(peer); }
  bool poll() override {
    if (onPoll) onPoll();
    return false;
  }
  void catchUp() override {
    if (onCatchUp) std::exchange(onCatchUp, nullptr)();
  }
  void close(milliseconds grace, Ending ending) override { closings.push_back({grace, ending}); }

  bool sendsAtOnce = true;
  std::function<void()> onPoll;
  std::function<void()> onCatchUp;  // once
  std::vector<Frame> sent, told;
  std::vector<transport::SendTicket*> pending;
  std::vector<int> expected;
  std::vector<Closing> closings;
};

// Rank `rank` of `size`. With a region all are on one host, of which it is the one at position
// `rank`; without one each has a host of its own.
class LoneRank {
 public:
  LoneRank(int rank, int size, std::shared_ptr<transport::shm::Region> region = nullptr)
      : peers(rank, size, "test") {
    for (int each = 0; each < size; ++each) {
      hosts::Identity& identity = peers.membership.identities.emplace_back();
      identity.host = region != nullptr ? "host" : "host-" + std::to_string(each);
      identity.pid = getpid();
    }
    std::vector<int> leaders(static_cast<std::size_t>(size), 0);
    if (region == nullptr) std::iota(leaders.begin(), leaders.end(), 0);
    peers.membership.hosts =
        hosts::makeHosts(rank, leaders, std::vector<bool>(static_cast<std::size_t>(size), true));
    peers.membership.localRanks = {rank};
    if (region != nullptr) {
      peers.membership.localRanks.resize(static_cast<std::size_t>(size));
      std::iota(peers.membership.localRanks.begin(), peers.membership.localRanks.end(), 0);
      peers.memory = region->view(rank);
      peers.membership.region = std::move(region);
    }
    peers.areAllLocal = peers.memory.has_value();
    peers.liveness = std::make_unique<Liveness>(size);
    peers.mailbox = std::make_unique<transport::Mailbox>(
        size,
        transport::Mailbox::Events{[this] { ++numWakes; }, [](int, const Error&) {},
                                   [](int, const transport::FrameHeader&, std::string_view) {},
                                   [](int, const transport::Refusal&) {}});
    auto made = std::make_unique<RecordingTransport>();
    wires = made.get();
    peers.transports.push_back(std::move(made));
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) peers.mailbox->setTransport(peer, wires);
    }
    positions.join(peers.membership, peers.memory ? &*peers.memory : nullptr, peers.mailbox.get(),
                   peers.liveness.get());
    failure.prepare();
  }

  // A frame of `peer` arrives whole.
  void arrive(int peer, const transport::FrameHeader& header, std::string_view payload) const {
    std::byte* to = peers.mailbox->frameBegin(peer, header);
    if (to != nullptr) payload.copy(reinterpret_cast<char*>(to), payload.size());
    peers.mailbox->frameEnd(peer, header);
  }

  Peers peers;
  RecordingTransport* wires = nullptr;
  int numWakes = 0;
  algorithms::ExposedBuffer exposed;
  GroupPositions positions{peers.rank, peers.size};
  GroupFailure failure{peers, positions, exposed, [this] { ++numWakes; }};
};

// What an operation waits for, as the test says.
class Awaited final : public Condition {
 public:
  bool isMet() override { return met; }
  std::vector<int> missingRanks() override { return missing; }
  bool abandon() override { return isAbandoned = mayAbandon; }

  bool met = false;
  std::vector<int> missing;
  bool mayAbandon = false;
  bool isAbandoned = false;
};

inline Task waitFor(Condition& condition) { co_await condition; }

// An operation that has begun `before` ago, and waits for `awaited` with a limit of a minute.
inline std::unique_ptr<Work> workThatAwaits(Awaited& awaited, OpKind kind, std::uint64_t sequence,
                                            nanoseconds before = {}) {
  auto work = std::make_unique<Work>();
  work->context.request.kind = kind;
  work->context.signature.kind = kind;
  work->context.signature.sequence = sequence;
  work->limit = std::chrono::minutes(1);
  work->started = Clock::now() - before;
  work->startClock(work->started);
  work->body = waitFor(awaited);
  work->body.advance();
  return work;
}

}  // namespace smd::engine::test
