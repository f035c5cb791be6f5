// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/attach.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/error.h"
#include "common/signals.h"

namespace smd::transport::shm {
namespace {

constexpr milliseconds kPeerPatience{2000};

sockaddr_un abstractAddress(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t used = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), used);  // a leading NUL: abstract namespace
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + used);
  return address;
}

std::string randomName() {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) throw systemError("getrandom");
  std::string name = "smdistributed-";
  constexpr char digits[] = "0123456789abcdef";
  for (unsigned char byte : random) {
    name += digits[byte >> 4];
    name += digits[byte & 15];
  }
  return name;
}

void limitWait(int descriptor, milliseconds timeout) {
  const timeval limit{static_cast<time_t>(timeout.count() / 1000),
                      static_cast<suseconds_t>(timeout.count() % 1000 * 1000)};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

bool sameUser(int descriptor) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

bool equalInConstantTime(const AttachSecret& a, const AttachSecret& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

// A message of one byte with room for one descriptor. The pointers stay inside: not to be copied.
struct DescriptorMessage {
  char tag = 0;
  iovec data{&tag, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  DescriptorMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;
};

bool sendDescriptor(int connection, int descriptor) {
  DescriptorMessage message;
  message.tag = 'R';
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  return sendmsg(connection, &message.header, MSG_NOSIGNAL) == 1;
}

int receiveDescriptor(int connection) {
  DescriptorMessage message;
  ssize_t received;
  do {  // a signal is no reason to believe that the ranks do not share a host
    received = recvmsg(connection, &message.header, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received != 1 || message.tag != 'R') return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return -1;
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

}  // namespace

AttachServer::AttachServer()
    : name_(randomName()),
      listener_(FileDescriptor::fromCall(
          [] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); })),
      stopEvent_(FileDescriptor::fromCall([] { return eventfd(0, EFD_CLOEXEC); })) {
  if (!listener_.isOpen()) throw systemError("socket(AF_UNIX)");
  if (!stopEvent_.isOpen()) throw systemError("eventfd");
  socklen_t length = 0;
  const sockaddr_un address = abstractAddress(name_, length);
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener_.get(), 4096) != 0) {
    throw systemError("bind(abstract Unix socket)");
  }
}

AttachServer::~AttachServer() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = write(stopEvent_.get(), &one, sizeof one);
  thread_.join();
}

void AttachServer::offer(std::shared_ptr<Region> region, const AttachSecret& secret) {
  region_ = std::move(region);
  secret_ = secret;
  const NoSignals meanwhile;
  thread_ = std::thread([this] { serve(); });
}

void AttachServer::serve() {
  for (;;) {
    pollfd waits[2] = {{listener_.get(), POLLIN, 0}, {stopEvent_.get(), POLLIN, 0}};
    if (poll(waits, 2, -1) < 0) continue;
    if (waits[1].revents != 0) return;
    const FileDescriptor connection = FileDescriptor::fromCall(
        [this] { return accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC); });
    if (!connection.isOpen()) {
      if (errno == EMFILE || errno == ENFILE) {
        // Who waits is told by the end of its connection, instead of us trying again and again.
        listener_.reset();
        return;
      }
      continue;
    }
    limitWait(connection.get(), kPeerPatience);
    AttachSecret presented{};
    if (sameUser(connection.get()) &&
        recv(connection.get(), presented.data(), presented.size(), MSG_WAITALL) ==
            static_cast<ssize_t>(presented.size()) &&
        equalInConstantTime(presented, secret_)) {
      sendDescriptor(connection.get(), region_->descriptor());
    }
  }
}

FileDescriptor requestRegion(const std::string& socketName, const AttachSecret& secret,
                             milliseconds timeout) {
  const FileDescriptor connection =
      FileDescriptor::fromCall([] { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  if (!connection.isOpen()) return {};
  limitWait(connection.get(), timeout);
  socklen_t length = 0;
  const sockaddr_un address = abstractAddress(socketName, length);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      !sameUser(connection.get()) ||  // the name may have come from a store that anyone can write
      send(connection.get(), secret.data(), secret.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(secret.size())) {
    return {};
  }
  return FileDescriptor(receiveDescriptor(connection.get()));
}

}  // namespace smd::transport::shm
