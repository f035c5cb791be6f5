// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// The sockets of one transport, as one epoll descriptor that is itself watched by the event loop:
// so the loop thread and a thread in Transport::poll() can serve the same sockets.
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <span>

#include "common/error.h"
#include "common/file_descriptor.h"
#include "transport/tcp/rails.h"
#include "transport/transport.h"

namespace smd::transport::tcp {

// What an event is about: a kind of socket, and which one (a rank, or a number that is never used
// again, so that an event that was already in hand when its socket was closed finds nobody).
enum class Source : std::uint8_t { kListener, kWake, kHandshake, kReceiver, kSender };
struct Tag {
  Source source = Source::kListener;
  std::uint64_t number = 0;
};

inline Tag tagOfSender(Stream peer) {
  return {Source::kSender, static_cast<std::uint64_t>(peer.peer) * kMostRails +
                               static_cast<std::uint64_t>(peer.index)};
}
inline Stream senderOf(std::uint64_t number) {
  return {static_cast<int>(number / kMostRails), static_cast<int>(number % kMostRails)};
}

class Poller {
 public:
  Poller() : epoll_(FileDescriptor::fromCall([] { return ::epoll_create1(EPOLL_CLOEXEC); })) {
    if (!epoll_.isOpen()) {
      throw systemError("epoll_create1");
    }
  }

  int descriptor() const { return epoll_.get(); }

  // These return false, with errno, if the kernel refuses (out of memory or of watches).
  bool add(int fd, std::uint32_t events, Tag tag) const {
    return control(EPOLL_CTL_ADD, fd, events, tag);
  }
  bool modify(int fd, std::uint32_t events, Tag tag) const {
    return control(EPOLL_CTL_MOD, fd, events, tag);
  }
  // To be called before close(): a child that is just being forked may hold the socket a moment
  // longer, and epoll would go on reporting it.
  void remove(int fd) const { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

  // What is ready now; never waits.
  int ready(std::span<epoll_event> events) const {
    return ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  }

  static Tag tagOf(const epoll_event& event) {
    return {static_cast<Source>(event.data.u64 >> kSourceShift), event.data.u64 & kNumberMask};
  }

 private:
  static constexpr int kSourceShift = 56;
  static constexpr std::uint64_t kNumberMask = (std::uint64_t{1} << kSourceShift) - 1;

  bool control(int operation, int fd, std::uint32_t events, Tag tag) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = (static_cast<std::uint64_t>(tag.source) << kSourceShift) | tag.number;
    return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
  }

  FileDescriptor epoll_;
};

}  // namespace smd::transport::tcp
