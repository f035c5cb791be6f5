// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/mailbox.h"

#include <algorithm>
#include <cstring>

namespace smd::transport {

Mailbox::Mailbox(int worldSize, Events events)
    : events_(std::move(events)),
      transports_(static_cast<std::size_t>(worldSize), nullptr),
      inFlight_(static_cast<std::size_t>(worldSize)) {}

bool Mailbox::matches(const Receive& receive, int peer, const FrameHeader& header) {
  return receive.channel == header.channel && receive.tag == header.tag &&
         (receive.peer == kAnyPeer || receive.peer == peer);
}

void Mailbox::finish(Receive& receive, int peer, const FrameHeader& header) {
  receive.source = peer;
  receive.header = header;
  receive.state.store(Receive::State::kDone, std::memory_order_release);
}

void Mailbox::send(int peer, const FrameHeader& header, const void* payload, SendTicket* ticket) {
  transports_[static_cast<std::size_t>(peer)]->send(peer, header, payload, ticket);
}

void Mailbox::post(Receive& receive) {
  const auto expectFrom = [this](int peer) {
    Transport* transport = transports_[static_cast<std::size_t>(peer)];
    if (transport != nullptr) transport->expect(peer);
  };
  if (receive.peer == kAnyPeer) {
    for (int peer = 0; peer < static_cast<int>(transports_.size()); ++peer) expectFrom(peer);
  } else {
    expectFrom(receive.peer);
  }
  std::lock_guard lock(mutex_);
  const auto arrival = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& a) {
    return a.claimedBy == nullptr && matches(receive, a.peer, a.header);
  });
  if (arrival == arrivals_.end()) {
    posted_.push_back(&receive);
    return;
  }
  if (!arrival->isWhole) {
    receive.state.store(Receive::State::kStreaming, std::memory_order_relaxed);
    arrival->claimedBy = &receive;
    return;
  }
  if (arrival->header.length == receive.bytes && receive.bytes != 0) {
    std::memcpy(receive.data, arrival->data.data(), receive.bytes);
  }
  finish(receive, arrival->peer, arrival->header);
  arrivals_.erase(arrival);
}

bool Mailbox::cancel(Receive& receive) {
  std::lock_guard lock(mutex_);
  const auto posted = std::find(posted_.begin(), posted_.end(), &receive);
  if (posted == posted_.end()) return false;
  posted_.erase(posted);
  return true;
}

std::optional<std::pair<int, Signature>> Mailbox::findStray(std::uint64_t sequence) {
  std::lock_guard lock(mutex_);
  for (const Arrival& arrival : arrivals_) {
    const Signature& signature = arrival.header.signature;
    if (arrival.header.channel == Channel::kCollective && arrival.claimedBy == nullptr &&
        signature.sequence <= sequence) {
      return std::pair(arrival.peer, signature);
    }
  }
  return std::nullopt;
}

bool Mailbox::poll() {
  bool moved = false;
  Transport* previous = nullptr;
  for (Transport* transport : transports_) {
    if (transport == nullptr || transport == previous) continue;
    moved = transport->poll() || moved;
    previous = transport;
  }
  return moved;
}

std::byte* Mailbox::frameBegin(int peer, const FrameHeader& header) {
  std::lock_guard lock(mutex_);
  InFlight& flight = inFlight_[static_cast<std::size_t>(peer)];
  flight.receive = nullptr;
  flight.isArrival = false;
  if (header.channel != Channel::kControl) {
    const auto posted = std::find_if(posted_.begin(), posted_.end(),
                                     [&](const Receive* r) { return matches(*r, peer, header); });
    if (posted != posted_.end()) {
      flight.receive = *posted;
      posted_.erase(posted);
      flight.receive->state.store(Receive::State::kStreaming, std::memory_order_relaxed);
      if (flight.receive->bytes == header.length) return flight.receive->data;
      flight.discard.resize(header.length);  // reported by the receiver, who knows what it expected
      return flight.discard.data();
    }
  }
  arrivals_.push_back({peer, header, std::vector<std::byte>(header.length), false, nullptr});
  flight.arrival = std::prev(arrivals_.end());
  flight.isArrival = true;
  return flight.arrival->data.data();
}

void Mailbox::frameEnd(int peer, const FrameHeader& header) {
  std::vector<std::byte> control;
  {
    std::lock_guard lock(mutex_);
    InFlight& flight = inFlight_[static_cast<std::size_t>(peer)];
    if (flight.receive != nullptr) {
      finish(*flight.receive, peer, header);
      flight.receive = nullptr;
      flight.discard = {};
    } else if (flight.isArrival) {
      flight.isArrival = false;
      flight.arrival->isWhole = true;
      if (header.channel == Channel::kControl) {
        control = std::move(flight.arrival->data);
        arrivals_.erase(flight.arrival);
      } else if (Receive* receive = flight.arrival->claimedBy; receive != nullptr) {
        if (receive->bytes == header.length && header.length != 0) {
          std::memcpy(receive->data, flight.arrival->data.data(), header.length);
        }
        arrivals_.erase(flight.arrival);
        finish(*receive, peer, header);
      }
    }
  }
  if (header.channel == Channel::kControl) events_.control(peer, header, std::move(control));
  events_.wake();
}

void Mailbox::sendCompleted(int) { events_.wake(); }

void Mailbox::linkFailed(int peer, const Error& error) {
  {
    std::lock_guard lock(mutex_);
    InFlight& flight = inFlight_[static_cast<std::size_t>(peer)];
    if (flight.isArrival) arrivals_.erase(flight.arrival);
    flight.isArrival = false;
  }
  events_.linkFailed(peer, error);
  events_.wake();
}

}  // namespace smd::transport
