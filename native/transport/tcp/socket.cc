// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/socket.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include "common/error.h"

namespace smd::transport::tcp {
namespace {

// A host that vanishes without closing (power, network) while its connections are idle is noticed
// after about kSilenceLimit, instead of the kernel's two hours. (silence.h: while they are not.)
constexpr int kKeepAliveIdleSeconds = 4;
constexpr int kKeepAliveIntervalSeconds = 2;
constexpr int kKeepAliveProbes = 3;

// Best effort: a socket without one of these still works.
void setOption(const FileDescriptor& socket, int level, int option, int value) {
  ::setsockopt(socket.get(), level, option, &value, sizeof(value));
}

// How the kernel decides how much to send. BBR paces every packet by a timer, which costs a fifth
// of the processor time of a large collective (2 hosts, 5 Gbit/s, 100 MiB, one machine: 0.83 of the
// bound with BBR, 0.93 with CUBIC). So where the system says BBR, CUBIC is asked for; any other
// choice of the system stands, and SMDDP_TCP_CONGESTION goes before it. Throws
// Error(kConfiguration) if the kernel refuses that.
void chooseCongestionControl(const FileDescriptor& socket) {
  const char* wanted = std::getenv("SMDDP_TCP_CONGESTION");
  const bool isAsked = wanted != nullptr && *wanted != '\0' && std::string_view(wanted) != "auto";
  std::array<char, 16> name{};
  socklen_t size = name.size();
  if (::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return;
  const std::string current(name.data(), ::strnlen(name.data(), name.size()));
  const std::string chosen = isAsked ? wanted : current == "bbr" ? "cubic" : current;
  if (chosen == current) return;
  const bool isTaken = ::setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, chosen.data(),
                                    static_cast<socklen_t>(chosen.size())) == 0;
  if (isTaken || !isAsked) return;
  throw Error(ErrorKind::kConfiguration,
              "SMDDP_TCP_CONGESTION asks for \"" + chosen + "\", which the kernel refuses (" +
                  errnoText(errno) +
                  "); expected one of those that `sysctl net.ipv4.tcp_allowed_congestion_control` "
                  "lists. Leave it unset to have one chosen.");
}

void tune(const FileDescriptor& socket) {
  setOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  setOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  setOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  setOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  setOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
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
  chooseCongestionControl(socket);  // connections that it accepts inherit it
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

FileDescriptor connectTo(const SocketAddress& address, const std::optional<SocketAddress>& source) {
  FileDescriptor socket = makeSocket(address.family());
  if (!socket.isOpen()) {
    return socket;
  }
  tune(socket);
  chooseCongestionControl(socket);
  if (source.has_value()) {
    setOption(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (::bind(socket.get(), source->data(), source->size()) != 0) {
      const int error = errno;
      socket.reset();
      errno = error;
      return socket;
    }
  }
  if (::connect(socket.get(), address.data(), address.size()) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    socket.reset();
    errno = error;
  }
  return socket;
}

FileDescriptor acceptFrom(const FileDescriptor& listener, SocketAddress& from) {
  sockaddr_storage storage{};
  FileDescriptor socket = FileDescriptor::fromCall([&] {
    socklen_t size = sizeof(storage);
    return ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&storage), &size,
                     SOCK_NONBLOCK | SOCK_CLOEXEC);
  });
  from = SocketAddress::from(reinterpret_cast<const sockaddr&>(storage)).value_or(SocketAddress());
  if (socket.isOpen()) {
    tune(socket);
  }
  return socket;
}

int takeError(int socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

std::string errnoText(int error) { return std::generic_category().message(error); }

}  // namespace smd::transport::tcp
