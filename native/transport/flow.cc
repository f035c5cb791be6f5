// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/flow.h"

#include <algorithm>
#include <utility>

namespace smd::transport {
namespace {

struct Share {
  std::uint64_t ofAll;   // of all peers together
  std::uint64_t most;    // of one
  std::uint64_t atOnce;  // of one frame, if the window is as long
};
constexpr std::uint64_t kKiB = 1 << 10;
constexpr std::uint64_t kMiB = 1 << 20;
// Two ranks that stream messages of 64 KiB to one another over TCP get five times as many a second
// as with announcements; from 1 MiB on there is no difference.
constexpr Share kPointToPoint{8 * kMiB, kMiB, 64 * kKiB};
// Frames of collectives are asked for soon, since every rank makes the same calls: their window is
// as long as the rounds that are under way at the same time.
constexpr Share kCollective{24 * kMiB, 8 * kMiB, 8 * kMiB};
constexpr Share kMessage{16 * kMiB, 4 * kMiB, 4 * kMiB};
static_assert(kPointToPoint.ofAll + kCollective.ofAll + kMessage.ofAll +
                  Windows::kClearedMessageBytes ==
              Windows::kTotalBytes);
constexpr std::uint64_t kLeastWindow = 4 * kKiB;  // of one peer, however many there are
// Messages that are announced, of all peers together: 16 bytes each.
constexpr std::uint64_t kOffers = std::uint64_t{1} << 16;
constexpr std::uint64_t kFewestOffers = 16;  // of one peer

}  // namespace

Windows::Windows(int worldSize) {
  const auto numPeers = static_cast<std::uint64_t>(std::max(worldSize - 1, 1));
  for (const auto& [channel, share] :
       {std::pair{Channel::kPointToPoint, kPointToPoint},
        std::pair{Channel::kCollective, kCollective}, std::pair{Channel::kMessage, kMessage}}) {
    Window& window = windows_[static_cast<std::size_t>(channel)];
    window.bytes = std::max(std::min(share.most, share.ofAll / numPeers), kLeastWindow);
    const std::uint64_t keptBack = channel == Channel::kPointToPoint ? window.bytes / 8 : 0;
    window.atOnce = std::min(share.atOnce, window.bytes - keptBack - kFrameCost);
  }
  mostOffers_ = std::max(kOffers / numPeers, kFewestOffers);
}

bool Windows::isToBeGivenBack(Channel channel, std::uint64_t taken) const {
  const Window& window = of(channel);
  const bool isInTheWay =
      channel == Channel::kPointToPoint && taken + costOf(window.atOnce) > window.bytes;
  return isInTheWay || 2 * taken >= window.bytes;
}

void Outflow::send(Transport& transport, int peer, const FrameHeader& header, const void* payload,
                   SendTicket* ticket) {
  if (ticket == nullptr) return transport.send(peer, header, payload, nullptr);
  const std::lock_guard lock(mutex_);
  const MatchKey key = keyOf(header, peer);
  const bool isShort = header.length <= windows_.atOnce(header.channel);
  if (isShort) {
    std::uint64_t& used = used_[static_cast<std::size_t>(header.channel)];
    const std::uint64_t cost = Windows::costOf(header.length);
    // No message overtakes one that waits.
    const bool mustFollow = header.channel == Channel::kMessage && byKey_.first(key) != nullptr;
    if (!mustFollow && used + cost <= windows_.bytes(header.channel)) {
      transport.send(peer, header, payload, ticket);
      used += cost;
      return;
    }
  }
  if (hasFailed_) return ticket->complete(SendTicket::State::kFailed);
  const auto cleared = cleared_.find(key);
  if (cleared == cleared_.end()) {
    announce(transport, key, {.header = header, .payload = payload, .ticket = ticket});
    return;
  }
  if (!isShort) {
    transport.send(peer, header, payload, ticket);
  } else {
    // Whole it would be taken for one of the window. The clearance may be of a receive that meets
    // this announcement: it would wait for ever if a longer frame took it.
    Announced& waiting =
        announce(transport, key, {.header = header, .payload = payload, .ticket = ticket});
    try {
      sendPayload(transport, peer, waiting);
    } catch (...) {
      forget(waiting);
      throw;
    }
  }
  if (--cleared->second == 0) cleared_.erase(cleared);
}

// Caller holds mutex_, here and below.
Outflow::Announced& Outflow::announce(Transport& transport, const MatchKey& key,
                                      Announced&& frame) {
  const bool isKept =
      frame.header.channel == Channel::kMessage && numOffers_ >= windows_.mostOffers();
  std::list<Announced> one;
  Announced& waiting = one.emplace_back(std::move(frame));
  waiting.self = one.begin();
  byKey_.reserve();
  byKey_.append(waiting, key);
  try {
    if (!isKept) say(transport, key.peer, waiting);
  } catch (...) {
    byKey_.remove(waiting);
    throw;
  }
  if (isKept && firstUnsaid_ == nullptr) firstUnsaid_ = &waiting;
  announced_.splice(announced_.end(), one);
  announcedBytes_ += waiting.header.length;
  return waiting;
}

void Outflow::say(Transport& transport, int peer, Announced& waiting) {
  FrameHeader announcement = waiting.header;
  announcement.kind = FrameKind::kAnnouncement;
  announcement.amount = waiting.header.length;
  announcement.length = 0;
  transport.send(peer, announcement, nullptr, nullptr);
  waiting.isSaid = true;
  if (waiting.header.channel == Channel::kMessage) ++numOffers_;
}

void Outflow::sendPayload(Transport& transport, int peer, Announced& waiting) {
  FrameHeader payload = waiting.header;
  payload.kind = FrameKind::kPayload;
  transport.send(peer, payload, waiting.payload, waiting.ticket);
  forget(waiting);
}

void Outflow::forget(Announced& waiting) {
  if (waiting.header.channel == Channel::kMessage && waiting.isSaid) --numOffers_;
  if (firstUnsaid_ == &waiting) firstUnsaid_ = waiting.place.younger;
  byKey_.remove(waiting);
  announcedBytes_ -= waiting.header.length;
  announced_.erase(waiting.self);
}

void Outflow::clear(Transport& transport, int peer, const FrameHeader& header) {
  const std::lock_guard lock(mutex_);
  const MatchKey key = keyOf(header, peer);
  Announced* const waiting = byKey_.first(key);
  if (waiting == nullptr) {
    ++cleared_[key];
    return;
  }
  sendPayload(transport, peer, *waiting);
  if (firstUnsaid_ != nullptr && numOffers_ < windows_.mostOffers()) {
    say(transport, peer, *firstUnsaid_);
    firstUnsaid_ = firstUnsaid_->place.younger;
  }
}

void Outflow::giveBack(Channel channel, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::uint64_t& used = used_[static_cast<std::size_t>(channel)];
  used -= std::min(used, bytes);
}

void Outflow::fail() {
  const std::lock_guard lock(mutex_);
  hasFailed_ = true;
  for (Announced& waiting : announced_) {
    byKey_.remove(waiting);
    waiting.ticket->complete(SendTicket::State::kFailed);
  }
  announced_.clear();
  announcedBytes_ = 0;
  numOffers_ = 0;
  firstUnsaid_ = nullptr;
}

std::uint64_t Outflow::announcedBytes() {
  const std::lock_guard lock(mutex_);
  return announcedBytes_;
}

}  // namespace smd::transport
