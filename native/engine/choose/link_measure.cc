// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/choose/link_measure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace smd::engine {
namespace {

using Clock = std::chrono::steady_clock;
using transport::FrameHeader;
using transport::Receive;
using transport::SendTicket;

// No tag of a user is that high.
constexpr std::uint64_t kFirstTag = std::uint64_t{0xFFFFFFFF} << 32;
// The first message makes the connection.
constexpr int kSmallMessages = 9;
constexpr int kLargeMessages = 8;
constexpr std::uint64_t kLargeBytes = std::uint64_t{128} << 10;

class Known {
 public:
  std::optional<Link> get() {
    const std::lock_guard lock(mutex_);
    return link_;
  }
  void set(const Link& link) {
    const std::lock_guard lock(mutex_);
    link_ = link;
  }

 private:
  std::mutex mutex_;
  std::optional<Link> link_;
};

Known& known() {
  static Known instance;
  return instance;
}

// Messages to the next host and from the one before, all at the same time.
class Passing {
 public:
  Passing(int before, std::uint64_t firstTag, int count, std::uint64_t bytes)
      : out_(bytes),
        in_(static_cast<std::size_t>(count), std::vector<std::byte>(bytes)),
        tickets_(static_cast<std::size_t>(count)) {
    for (std::vector<std::byte>& each : in_) {
      Receive& receive = receives_.emplace_back();
      receive.peer = before;
      receive.tag = firstTag + receives_.size();
      receive.data = each.data();
      receive.bytes = bytes;
    }
  }

  // What it throws leaves some posted or sent.
  void begin(transport::Mailbox& mailbox, int next) {
    for (Receive& receive : receives_) mailbox.post(receive);
    for (std::size_t i = 0; i < tickets_.size(); ++i) {
      FrameHeader header;
      header.length = out_.size();
      header.tag = receives_[i].tag;
      mailbox.send(next, header, out_.data(), &tickets_[i]);
    }
  }

  bool isDone() const {
    return std::ranges::all_of(receives_, [](const Receive& each) { return each.isDone(); }) &&
           std::ranges::all_of(tickets_, [](const SendTicket& each) {
             return each.state() != SendTicket::State::kPending;
           });
  }

 private:
  std::vector<std::byte> out_;
  std::vector<std::vector<std::byte>> in_;
  std::deque<Receive> receives_;
  std::deque<SendTicket> tickets_;

  friend void keepForEver(std::unique_ptr<Passing> messages) noexcept;
  Passing* nextKept_ = nullptr;
};

// Those that were given up: bytes may still be on their way into and out of them.
void keepForEver(std::unique_ptr<Passing> messages) noexcept {
  static Passing* kept = nullptr;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  messages->nextKept_ = kept;
  kept = messages.release();
}

double powerOfTwo(double value) { return std::exp2(std::round(std::log2(value))); }

}  // namespace

std::string serializeLink(const std::optional<Link>& link) {
  if (!link.has_value()) return {};
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.17g %.17g", link->latencySeconds,
                link->bytesPerSecond);
  return text.data();
}

std::optional<Link> parseLink(const std::string& text) {
  Link link;
  if (std::sscanf(text.c_str(), "%lf %lf", &link.latencySeconds, &link.bytesPerSecond) != 2 ||
      !(link.latencySeconds > 0 && link.latencySeconds < 1e3) ||
      !(link.bytesPerSecond > 0 && link.bytesPerSecond < 1e15)) {
    return std::nullopt;
  }
  return link;
}

Link slowestOf(const std::vector<std::string>& links) {
  double latency = 0;
  double bandwidth = std::numeric_limits<double>::infinity();
  for (const std::string& text : links) {
    if (const std::optional<Link> link = parseLink(text)) {
      latency = std::max(latency, link->latencySeconds);
      bandwidth = std::min(bandwidth, link->bytesPerSecond);
    }
  }
  Link link;
  if (latency > 0) {
    link.latencySeconds = powerOfTwo(latency * 1e6) * 1e-6;
    link.bytesPerSecond = powerOfTwo(bandwidth);
  }
  return link;
}

std::optional<Link> measureLink(const hosts::Hosts& hosts, transport::Mailbox& mailbox,
                                const Liveness& liveness, std::chrono::nanoseconds limit) {
  if (hosts.position != 0 || hosts.count() < 2) return std::nullopt;
  const int next = hosts.ranksOf((hosts.self + 1) % hosts.count())[0];
  const int before = hosts.ranksOf((hosts.self + hosts.count() - 1) % hosts.count())[0];
  const Clock::time_point deadline = Clock::now() + limit;
  std::uint64_t tag = kFirstTag;

  // Seconds until all of `count` messages have passed; none if they do not.
  const auto pass = [&](int count, std::uint64_t bytes) -> std::optional<double> {
    const Clock::time_point begin = Clock::now();
    auto messages = std::make_unique<Passing>(before, tag, count, bytes);
    tag += static_cast<std::uint64_t>(count);
    try {
      messages->begin(mailbox, next);
    } catch (...) {
      keepForEver(std::move(messages));
      throw;
    }
    while (!messages->isDone()) {
      if (liveness.anyLost() || Clock::now() > deadline) {
        keepForEver(std::move(messages));
        return std::nullopt;
      }
      if (!mailbox.poll()) std::this_thread::yield();
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };

  Link link;
  link.latencySeconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kSmallMessages; ++i) {
    const std::optional<double> seconds = pass(1, 8);
    if (!seconds.has_value()) return std::nullopt;
    if (i > 0) link.latencySeconds = std::min(link.latencySeconds, *seconds);
  }
  const std::optional<double> seconds = pass(kLargeMessages, kLargeBytes);
  if (!seconds.has_value()) return std::nullopt;
  link.bytesPerSecond = static_cast<double>(kLargeMessages * kLargeBytes) / *seconds;
  return link;
}

std::optional<Link> knownLink() { return known().get(); }
void rememberLink(const Link& link) { known().set(link); }

}  // namespace smd::engine
