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

void Mailbox::setTransport(int peer, Transport* transport) {
  transports_[static_cast<std::size_t>(peer)] = transport;
  if (transport != nullptr && std::ranges::find(distinct_, transport) == distinct_.end()) {
    distinct_.push_back(transport);
    if (transport->canWait()) waitable_ = transport;
  }
}

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

void Mailbox::expect(int peer) {
  Transport* transport = transports_[static_cast<std::size_t>(peer)];
  if (transport != nullptr) transport->expect(peer);
}

void Mailbox::catchUp() {
  for (Transport* transport : distinct_) transport->catchUp();
}

std::optional<MessageFrame> Mailbox::takeMessage() {
  if (numMessages_.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::lock_guard lock(mutex_);
  if (messages_.empty()) return std::nullopt;
  MessageFrame frame = std::move(messages_.front());
  messages_.pop_front();
  numMessages_.store(messages_.size(), std::memory_order_relaxed);
  return frame;
}

void Mailbox::post(Receive& receive) {
  if (receive.peer == kAnyPeer) {
    for (int peer = 0; peer < static_cast<int>(transports_.size()); ++peer) expect(peer);
  } else {
    expect(receive.peer);
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
    std::memcpy(receive.data, arrival->data.get(), receive.bytes);
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
  for (Transport* transport : distinct_) moved = transport->poll() || moved;
  return moved;
}

Mailbox::InFlight& Mailbox::inFlight(Stream from) {
  std::vector<InFlight>& ofPeer = inFlight_[static_cast<std::size_t>(from.peer)];
  const auto index = static_cast<std::size_t>(from.index);
  if (index >= ofPeer.size()) ofPeer.resize(index + 1);
  return ofPeer[index];
}

std::byte* Mailbox::frameBegin(Stream from, const FrameHeader& header) {
  const int peer = from.peer;
  std::lock_guard lock(mutex_);
  InFlight& flight = inFlight(from);
  flight.receive = nullptr;
  flight.isArrival = false;
  if (header.channel == Channel::kMessage) {
    std::list<MessageFrame> message;
    message.push_back({peer, header, frameMemory(header.length)});
    flight.message = std::move(message);
    return flight.message.front().data.get();
  }
  if (header.channel != Channel::kControl) {
    const auto posted = std::find_if(posted_.begin(), posted_.end(),
                                     [&](const Receive* r) { return matches(*r, peer, header); });
    if (posted != posted_.end()) {
      const bool fits = (*posted)->bytes == header.length;
      // Reported by the receiver, who knows what it expected.
      if (!fits) flight.discard = std::make_unique_for_overwrite<std::byte[]>(header.length);
      flight.receive = *posted;
      posted_.erase(posted);
      flight.receive->state.store(Receive::State::kStreaming, std::memory_order_relaxed);
      return fits ? flight.receive->data : flight.discard.get();
    }
  }
  auto data = std::make_unique_for_overwrite<std::byte[]>(header.length);
  arrivals_.push_back({peer, header, std::move(data), false, nullptr});
  flight.arrival = std::prev(arrivals_.end());
  flight.isArrival = true;
  return flight.arrival->data.get();
}

void Mailbox::frameEnd(Stream from, const FrameHeader& header) {
  const int peer = from.peer;
  std::unique_ptr<std::byte[]> control;
  {
    std::lock_guard lock(mutex_);
    InFlight& flight = inFlight(from);
    if (header.channel == Channel::kMessage) {
      messages_.splice(messages_.end(), flight.message);
      numMessages_.store(messages_.size(), std::memory_order_release);
    } else if (flight.receive != nullptr) {
      finish(*flight.receive, peer, header);
      flight.receive = nullptr;
      flight.discard.reset();
    } else if (flight.isArrival) {
      flight.isArrival = false;
      flight.arrival->isWhole = true;
      if (header.channel == Channel::kControl) {
        control = std::move(flight.arrival->data);
        arrivals_.erase(flight.arrival);
      } else if (Receive* receive = flight.arrival->claimedBy; receive != nullptr) {
        if (receive->bytes == header.length && header.length != 0) {
          std::memcpy(receive->data, flight.arrival->data.get(), header.length);
        }
        arrivals_.erase(flight.arrival);
        finish(*receive, peer, header);
      }
    }
  }
  if (control != nullptr) {
    events_.control(peer, header, {reinterpret_cast<const char*>(control.get()), header.length});
  }
  events_.wake();
}

// The receive that it was for stays as it is, for good: it was streaming, and its group fails.
void Mailbox::frameCancelled(Stream from) noexcept {
  std::lock_guard lock(mutex_);
  InFlight& flight = inFlight(from);
  if (flight.isArrival) arrivals_.erase(flight.arrival);
  flight.isArrival = false;
  flight.receive = nullptr;
  flight.discard.reset();
  flight.message.clear();
}

void Mailbox::frameRefused(int peer, const Refusal& refusal) noexcept {
  events_.refused(peer, refusal);
  events_.wake();
}

void Mailbox::sendCompleted(int) { events_.wake(); }

void Mailbox::linkFailed(int peer, const Error& error) {
  events_.linkFailed(peer, error);
  events_.wake();
}

}  // namespace smd::transport
