// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/socket.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <system_error>

#include "common/error.h"

namespace smd::transport::tcp {
namespace {

// A host that vanishes without closing (power, network) is noticed after about this long, instead
// of the kernel's two hours (idle) or quarter of an hour (sending). It also bounds how long a
// stopped process (SIGSTOP, a debugger) may leave its receive window full.
constexpr std::chrono::milliseconds kUnansweredLimit = std::chrono::seconds(60);
constexpr int kKeepAliveIdleSeconds = 20;
constexpr int kKeepAliveIntervalSeconds = 10;
constexpr int kKeepAliveProbes = 4;

// Best effort: a socket without one of these still works.
void setOption(const FileDescriptor& socket, int level, int option, int value) {
  ::setsockopt(socket.get(), level, option, &value, sizeof(value));
}

void tune(const FileDescriptor& socket) {
  setOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  setOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  setOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  setOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  setOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(kUnansweredLimit.count()));
}

FileDescriptor makeSocket(int family) {
  return FileDescriptor::fromCall(
      [&] { return ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

}  // namespace

FileDescriptor listenAt(const SocketAddress& address) {
  FileDescriptor socket = makeSocket(address.family());
  if (!socket.isOpen()) {
    throw systemError("socket");
  }
  if (::bind(socket.get(), address.data(), address.size()) != 0) {
    throw systemError("bind(" + address.toString() + ")");
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) {
    throw systemError("listen(" + address.toString() + ")");
  }
  return socket;
}

SocketAddress localAddress(const FileDescriptor& socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    throw systemError("getsockname");
  }
  return SocketAddress::from(reinterpret_cast<const sockaddr&>(storage)).value();
}

FileDescriptor connectTo(const SocketAddress& address) {
  FileDescriptor socket = makeSocket(address.family());
  if (!socket.isOpen()) {
    return socket;
  }
  tune(socket);
  if (::connect(socket.get(), address.data(), address.size()) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    socket.reset();
    errno = error;
  }
  return socket;
}

FileDescriptor acceptFrom(const FileDescriptor& listener) {
  FileDescriptor socket = FileDescriptor::fromCall(
      [&] { return ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (socket.isOpen()) {
    tune(socket);
  }
  return socket;
}

int takeError(const FileDescriptor& socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string errnoText(int error) { return std::generic_category().message(error); }

}  // namespace smd::transport::tcp
