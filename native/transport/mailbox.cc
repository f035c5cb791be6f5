// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/mailbox.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace smd::transport {
namespace {

FrameHeader clearanceOf(const MatchKey& key) {
  FrameHeader header;
  header.kind = FrameKind::kClearance;
  header.channel = key.channel;
  header.tag = key.tag;
  return header;
}

}  // namespace

Mailbox::Mailbox(int worldSize, Events events)
    : events_(std::move(events)),
      windows_(worldSize),
      transports_(static_cast<std::size_t>(worldSize), nullptr),
      numOffers_(static_cast<std::size_t>(worldSize)),
      taken_(static_cast<std::size_t>(worldSize)),
      used_(static_cast<std::size_t>(worldSize)),
      inFlight_(static_cast<std::size_t>(worldSize)) {
  for (int peer = 0; peer < worldSize; ++peer) outflows_.emplace_back(windows_);
  posted_.reserve();
  postedForAny_.reserve();
  awaited_.reserve();
  arrivalsOfPeer_.reserve();
  arrivalsOfAny_.reserve();
}

void Mailbox::setTransport(int peer, Transport* transport) {
  transports_[static_cast<std::size_t>(peer)] = transport;
  if (transport != nullptr && std::ranges::find(distinct_, transport) == distinct_.end()) {
    distinct_.push_back(transport);
    if (transport->canWait()) waitable_ = transport;
  }
}

void Mailbox::finish(Receive& receive, int peer, const FrameHeader& header) {
  receive.source = peer;
  receive.header = header;
  receive.state.store(Receive::State::kDone, std::memory_order_release);
}

void Mailbox::beginStreaming(Receive& receive, int peer) {
  receive.source = peer;
  receive.state.store(Receive::State::kStreaming, std::memory_order_release);
}

void Mailbox::send(int peer, const FrameHeader& header, const void* payload, SendTicket* ticket) {
  outflows_[index(peer)].send(*transports_[index(peer)], peer, header, payload, ticket);
}

void Mailbox::noteClosed() {
  for (Outflow& outflow : outflows_) outflow.fail();
  const std::lock_guard lock(mutex_);
  isClosed_.store(true, std::memory_order_release);
}

void Mailbox::expect(int peer) {
  Transport* transport = transports_[static_cast<std::size_t>(peer)];
  if (transport != nullptr) transport->expect(peer);
}

void Mailbox::spread(const FrameHeader& header, const void* payload) {
  for (Transport* transport : distinct_) transport->spread(header, payload);
}

void Mailbox::catchUp() {
  for (Transport* transport : distinct_) transport->catchUp();
}

std::optional<MessageFrame> Mailbox::takeMessage() {
  if (numMessages_.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::optional<MessageFrame> frame;
  Reply reply;
  {
    std::lock_guard lock(mutex_);
    if (messages_.empty()) return std::nullopt;
    frame = std::move(messages_.front());
    messages_.pop_front();
    numMessages_.store(messages_.size(), std::memory_order_relaxed);
    unexpectedBytes_.fetch_sub(frame->header.length, std::memory_order_relaxed);
    if (frame->wasCleared) {
      clearedMessageBytes_ -= Windows::costOf(frame->header.length);
    } else {
      noteTaken(frame->source, frame->header, reply);
    }
  }
  say(reply);
  if (frame->wasCleared) clearMessages();
  return frame;
}

// --- receives, and what has come before them -----------------------------------------------------

void Mailbox::post(Receive& receive) {
  if (receive.peer == kAnyPeer) {
    for (int peer = 0; peer < static_cast<int>(transports_.size()); ++peer) expect(peer);
  } else {
    expect(receive.peer);
  }
  const MatchKey key{receive.tag, receive.peer, receive.channel};
  const bool isForAny = receive.peer == kAnyPeer;
  Reply reply;
  {
    std::lock_guard lock(mutex_);
    if (isClosed()) return;
    Arrival* const arrival = isForAny ? arrivalsOfAny_.first(key) : arrivalsOfPeer_.first(key);
    if (arrival == nullptr) {
      receive.order = numPosted_++;
      (isForAny ? postedForAny_ : posted_).append(receive, key);
      if (!isForAny && receive.bytes > windows_.atOnce(receive.channel)) {
        receive.isCleared = true;
        if (!takeSpare(key)) reply = {.peer = receive.peer, .clearance = clearanceOf(key)};
      }
    } else if (arrival->state == Arrival::State::kArriving) {
      beginStreaming(receive, arrival->peer);
      arrival->claimedBy = &receive;
      unqueue(*arrival);
    } else {
      reply.peer = arrival->peer;
      if (arrival->state == Arrival::State::kAnnounced) {
        match(receive, arrival->peer, arrival->header, reply);
      } else {
        if (arrival->header.length == receive.bytes && receive.bytes != 0) {
          std::memcpy(receive.data, arrival->data.get(), receive.bytes);
        }
        noteTaken(arrival->peer, arrival->header, reply);
        finish(receive, arrival->peer, arrival->header);
      }
      unqueue(*arrival);
      drop(*arrival);
    }
  }
  try {
    say(reply);
  } catch (...) {  // nobody will cancel it
    std::lock_guard lock(mutex_);
    if (receive.place.isQueued) (receive.isStreaming() ? awaited_ : posted_).remove(receive);
    throw;
  }
}

bool Mailbox::cancel(Receive& receive) {
  std::lock_guard lock(mutex_);
  if (!receive.place.isQueued || receive.state.load() != Receive::State::kPosted) return false;
  if (isClosed()) return true;  // others of its queue may be gone
  unpost(receive);
  if (std::exchange(receive.isCleared, false)) {
    leaveSpare({receive.tag, receive.peer, receive.channel});
  }
  return true;
}

// Caller holds mutex_, here and below.
Receive* Mailbox::oldestFor(const MatchKey& key) {
  Receive* const own = posted_.first(key);
  if (postedForAny_.isEmpty()) return own;
  Receive* const any = postedForAny_.first({key.tag, kAnyPeer, key.channel});
  if (own == nullptr || any == nullptr) return own == nullptr ? any : own;
  return own->order < any->order ? own : any;
}

void Mailbox::unpost(Receive& receive) {
  (receive.peer == kAnyPeer ? postedForAny_ : posted_).remove(receive);
}

// An announcement has met its receive, which is not posted. One of another length is cleared, too:
// it may be under way already, and the sender waits for it.
void Mailbox::match(Receive& receive, int peer, const FrameHeader& header, Reply& reply) {
  const MatchKey key{header.tag, peer, header.channel};
  receive.header = header;
  awaited_.append(receive, key);
  beginStreaming(receive, peer);
  if (!receive.isCleared && !takeSpare(key)) reply = {.peer = peer, .clearance = clearanceOf(key)};
}

Mailbox::Arrival& Mailbox::keep(int peer, const FrameHeader& header, Arrival::State state,
                                std::unique_ptr<std::byte[]> data) {
  std::list<Arrival> one;
  Arrival& arrival = one.emplace_back(
      Arrival{.peer = peer, .header = header, .state = state, .data = std::move(data)});
  arrival.self = one.begin();
  arrivalsOfPeer_.append(arrival, {header.tag, peer, header.channel});
  arrivalsOfAny_.append(arrival, {header.tag, kAnyPeer, header.channel});
  std::list<Arrival>& all =
      header.channel == Channel::kCollective ? collectiveArrivals_ : arrivals_;
  all.splice(all.end(), one);
  if (arrival.data != nullptr) unexpectedBytes_.fetch_add(header.length);
  if (state == Arrival::State::kAnnounced) ++numAnnounced_;
  return arrival;
}

void Mailbox::unqueue(Arrival& arrival) {
  arrivalsOfPeer_.remove(arrival);
  arrivalsOfAny_.remove(arrival);
}

void Mailbox::drop(Arrival& arrival) {
  if (arrival.data != nullptr) unexpectedBytes_.fetch_sub(arrival.header.length);
  if (arrival.state == Arrival::State::kAnnounced) --numAnnounced_;
  (arrival.header.channel == Channel::kCollective ? collectiveArrivals_ : arrivals_)
      .erase(arrival.self);
}

std::optional<std::pair<int, Signature>> Mailbox::findStray(std::uint64_t sequence) {
  std::lock_guard lock(mutex_);
  for (const Arrival& arrival : collectiveArrivals_) {
    const Signature& signature = arrival.header.signature;
    if (arrival.claimedBy == nullptr && signature.sequence <= sequence) {
      return std::pair(arrival.peer, signature);
    }
  }
  return std::nullopt;
}

// --- flow control --------------------------------------------------------------------------------

// What was sent at once has been taken.
void Mailbox::noteTaken(int peer, const FrameHeader& header, Reply& reply) {
  if (header.kind != FrameKind::kWhole || isLong(header)) return;  // a clearance let it come
  std::uint64_t& taken = taken_[index(peer)][static_cast<std::size_t>(header.channel)];
  taken += Windows::costOf(header.length);
  if (!windows_.isToBeGivenBack(header.channel, taken)) return;
  reply.peer = peer;
  reply.takenBack.emplace();
  reply.takenBack->kind = FrameKind::kReturn;
  reply.takenBack->channel = header.channel;
  used_[index(peer)][static_cast<std::size_t>(header.channel)] -= taken;
  reply.takenBack->amount = std::exchange(taken, 0);
}

// Without locks.
void Mailbox::say(const Reply& reply) {
  for (const std::optional<FrameHeader>* each : {&reply.clearance, &reply.takenBack}) {
    if (*each) transports_[index(reply.peer)]->send(reply.peer, **each, nullptr, nullptr);
  }
}

// As many of the announced messages as there is room for, and one at least. Without locks.
void Mailbox::clearMessages() {
  for (;;) {
    Reply reply;
    {
      std::lock_guard lock(mutex_);
      if (offers_.empty()) return;
      const Offer offer = offers_.front();
      const std::uint64_t cost = Windows::costOf(offer.bytes);
      if (clearedMessageBytes_ != 0 &&
          clearedMessageBytes_ + cost > Windows::kClearedMessageBytes) {
        return;
      }
      clearedOffers_.push_back(offer);
      offers_.pop_front();
      clearedMessageBytes_ += cost;
      reply = {.peer = offer.peer,
               .clearance = clearanceOf({.peer = offer.peer, .channel = Channel::kMessage})};
    }
    say(reply);
  }
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
  switch (header.kind) {
    case FrameKind::kWhole:
      return beginWhole(from, header);
    case FrameKind::kPayload:
      return beginPayload(from, header);
    case FrameKind::kAnnouncement:
      takeAnnouncement(from.peer, header);
      return nullptr;
    case FrameKind::kClearance:
      outflows_[index(from.peer)].clear(*transports_[index(from.peer)], from.peer, header);
      return nullptr;
    case FrameKind::kReturn:
      outflows_[index(from.peer)].giveBack(header.channel, header.amount);
      return nullptr;
  }
  return nullptr;
}

std::byte* Mailbox::beginMessage(int peer, InFlight& flight, const FrameHeader& header) {
  std::list<MessageFrame> message;
  message.push_back({peer, header, frameMemory(header.length), header.kind == FrameKind::kPayload});
  flight.message = std::move(message);
  unexpectedBytes_.fetch_add(header.length, std::memory_order_relaxed);
  return flight.message.front().data.get();
}

std::byte* Mailbox::beginWhole(Stream from, const FrameHeader& header) {
  const int peer = from.peer;
  std::lock_guard lock(mutex_);
  InFlight& flight = inFlight(from);
  if (header.channel == Channel::kControl) {
    flight.control = std::make_unique_for_overwrite<std::byte[]>(header.length);
    return flight.control.get();
  }
  if (!isLong(header)) admit(peer, header);
  const Refusal notCleared{Refusal::Reason::kNotCleared, header};
  if (header.channel == Channel::kMessage) {
    if (isLong(header)) throw notCleared;  // it is announced first
    return beginMessage(from.peer, flight, header);
  }
  const MatchKey key{header.tag, peer, header.channel};
  if (Receive* const receive = oldestFor(key); receive != nullptr) {
    if (isLong(header) && !receive->isCleared && !takeSpare(key) && !passClearance(key)) {
      throw notCleared;
    }
    if (!isLong(header) && receive->isCleared) leaveSpare(key);
    return fill(peer, flight, *receive, receive->peer == kAnyPeer ? postedForAny_ : posted_,
                header);
  }
  if (isLong(header) && !takeSpare(key)) throw notCleared;
  flight.arrival = &keep(peer, header, Arrival::State::kArriving,
                         std::make_unique_for_overwrite<std::byte[]>(header.length));
  return flight.arrival->data.get();
}

// A frame that came at once takes of its sender's window. What is free again there has been given
// back here before, so no peer of ours exceeds it, in whatever order frames arrive.
void Mailbox::admit(int peer, const FrameHeader& header) {
  std::uint64_t& used = used_[index(peer)][static_cast<std::size_t>(header.channel)];
  used += Windows::costOf(header.length);
  if (used > windows_.bytes(header.channel)) {
    throw Refusal{Refusal::Reason::kBeyondWindow, header};
  }
}

// The receive leaves its queue; returns where its payload goes: nowhere, if it has another length.
std::byte* Mailbox::fill(int peer, InFlight& flight, Receive& receive, Receives& queue,
                         const FrameHeader& header) {
  flight.receive = &receive;
  queue.remove(receive);
  beginStreaming(receive, peer);
  // Another length is reported by the receiver, who knows what it expected.
  return receive.bytes == header.length ? receive.data : nullptr;
}

// A clearance was given, and its receive will not take what it lets come.
void Mailbox::leaveSpare(const MatchKey& key) noexcept try {
  ++spare_[key];
} catch (const std::bad_alloc&) {  // it is not known then: what it lets come is refused
}

bool Mailbox::takeSpare(const MatchKey& key) {
  const auto spare = spare_.find(key);
  if (spare == spare_.end()) return false;
  if (--spare->second == 0) spare_.erase(spare);
  return true;
}

// A frame came by the clearance of another receive than that which took it. That one has none now.
// False: there is no such receive.
bool Mailbox::passClearance(const MatchKey& key) {
  Receive* other = posted_.first(key);
  while (other != nullptr && !other->isCleared) other = other->place.younger;
  return other != nullptr && std::exchange(other->isCleared, false);
}

void Mailbox::takeAnnouncement(int peer, const FrameHeader& header) {
  FrameHeader whole = header;
  whole.kind = FrameKind::kWhole;
  whole.length = header.amount;
  whole.amount = 0;
  if (header.channel == Channel::kMessage) {
    {
      const std::lock_guard lock(mutex_);
      if (numOffers_[index(peer)] == windows_.mostOffers()) {
        throw Refusal{Refusal::Reason::kBeyondWindow, header};
      }
      offers_.push_back({peer, whole.length});
      ++numOffers_[index(peer)];
    }
    clearMessages();
    return;
  }
  Reply reply;
  {
    const std::lock_guard lock(mutex_);
    const MatchKey key{header.tag, peer, header.channel};
    if (const auto found = std::ranges::find(overtaken_, key); found != overtaken_.end()) {
      overtaken_.erase(found);
    } else if (Receive* const receive = oldestFor(key); receive != nullptr) {
      unpost(*receive);
      match(*receive, peer, whole, reply);
    } else if (numAnnounced_ == Windows::kMostAnnounced) {
      throw Refusal{Refusal::Reason::kTooManyAnnounced, header};
    } else {
      keep(peer, whole, Arrival::State::kAnnounced, nullptr);
    }
  }
  say(reply);
}

std::byte* Mailbox::beginPayload(Stream from, const FrameHeader& header) {
  const std::lock_guard lock(mutex_);
  InFlight& flight = inFlight(from);
  if (header.channel == Channel::kMessage) {
    const auto cleared = std::ranges::find(clearedOffers_, from.peer, &Offer::peer);
    if (cleared == clearedOffers_.end() || cleared->bytes != header.length) {
      throw Refusal{Refusal::Reason::kNotCleared, header};
    }
    std::byte* const place = beginMessage(from.peer, flight, header);
    clearedOffers_.erase(cleared);
    --numOffers_[index(from.peer)];
    return place;
  }
  const MatchKey key{header.tag, from.peer, header.channel};
  if (Receive* const receive = awaited_.first(key); receive != nullptr) {
    if (receive->header.length != header.length) {
      throw Refusal{Refusal::Reason::kNotCleared, header};
    }
    return fill(from.peer, flight, *receive, awaited_, header);
  }
  // Over several connections the payload of a collective may come before its announcement.
  if (Receive* const receive = posted_.first(key);
      header.channel == Channel::kCollective && receive != nullptr && receive->isCleared) {
    std::list<MatchKey> one{key};
    std::byte* const place = fill(from.peer, flight, *receive, posted_, header);
    overtaken_.splice(overtaken_.end(), one);
    return place;
  }
  // The receive that has cleared it has given up: it is kept.
  Arrival* arrival = arrivalsOfPeer_.first(key);
  while (arrival != nullptr && arrival->state != Arrival::State::kAnnounced) {
    arrival = arrival->ofPeer.younger;
  }
  if (arrival == nullptr || arrival->header.length != header.length || !spare_.contains(key)) {
    throw Refusal{Refusal::Reason::kNotCleared, header};
  }
  arrival->data = std::make_unique_for_overwrite<std::byte[]>(header.length);
  arrival->header.kind = FrameKind::kPayload;
  arrival->state = Arrival::State::kArriving;
  --numAnnounced_;
  unexpectedBytes_.fetch_add(header.length);
  takeSpare(key);
  flight.arrival = arrival;
  return arrival->data.get();
}

void Mailbox::frameEnd(Stream from, const FrameHeader& header) {
  const int peer = from.peer;
  std::unique_ptr<std::byte[]> control;
  Reply reply;
  if (header.kind == FrameKind::kWhole || header.kind == FrameKind::kPayload) {
    std::lock_guard lock(mutex_);
    InFlight& flight = inFlight(from);
    if (header.channel == Channel::kMessage) {
      messages_.splice(messages_.end(), flight.message);
      numMessages_.store(messages_.size(), std::memory_order_release);
    } else if (header.channel == Channel::kControl) {
      control = std::move(flight.control);
    } else if (Receive* const receive = std::exchange(flight.receive, nullptr)) {
      if (header.kind == FrameKind::kWhole) noteTaken(peer, header, reply);
      finish(*receive, peer, header);
    } else if (Arrival* const arrival = std::exchange(flight.arrival, nullptr)) {
      arrival->state = Arrival::State::kWhole;
      if (Receive* const claimant = arrival->claimedBy; claimant != nullptr) {
        if (claimant->bytes == header.length && header.length != 0) {
          std::memcpy(claimant->data, arrival->data.get(), header.length);
        }
        noteTaken(peer, header, reply);
        drop(*arrival);
        finish(*claimant, peer, header);
      }
    }
  }
  say(reply);
  if (control != nullptr) {
    events_.control(peer, header, {reinterpret_cast<const char*>(control.get()), header.length});
  }
  // A return lets nobody go on who waits.
  if (header.kind != FrameKind::kReturn) events_.wake();
}

// The receive that it was for stays as it is, for good: it was streaming, and its group fails.
void Mailbox::frameCancelled(Stream from) noexcept {
  std::lock_guard lock(mutex_);
  InFlight& flight = inFlight(from);
  if (Arrival* const arrival = std::exchange(flight.arrival, nullptr)) {
    if (arrival->claimedBy == nullptr) unqueue(*arrival);
    drop(*arrival);
  }
  flight.receive = nullptr;
  flight.control.reset();
  for (const MessageFrame& message : flight.message) {
    unexpectedBytes_.fetch_sub(message.header.length, std::memory_order_relaxed);
    if (message.wasCleared) clearedMessageBytes_ -= Windows::costOf(message.header.length);
  }
  flight.message.clear();
}

void Mailbox::frameRefused(int peer, const Refusal& refusal) noexcept {
  events_.refused(peer, refusal);
  events_.wake();
}

void Mailbox::sendCompleted(int) { events_.wake(); }

void Mailbox::linkFailed(int peer, const Error& error) {
  {
    std::lock_guard lock(mutex_);
    std::erase_if(offers_, [peer](const Offer& offer) { return offer.peer == peer; });
    std::erase_if(clearedOffers_, [this, peer](const Offer& offer) {
      if (offer.peer != peer) return false;
      clearedMessageBytes_ -= Windows::costOf(offer.bytes);
      return true;
    });
  }
  outflows_[index(peer)].fail();
  events_.linkFailed(peer, error);
  try {
    clearMessages();                 // of others, which have the room now
  } catch (const std::bad_alloc&) {  // with a rank lost, who waits for messages hears of that
  }
  events_.wake();
}

}  // namespace smd::transport
