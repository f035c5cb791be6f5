// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "transport/tcp/socket.h"

namespace smd::transport::tcp {

Connection::Connection(FileDescriptor socket, const TlsContext* context, TlsRole role)
    : socket_(std::move(socket)) {
  if (context != nullptr) {
    tls_ = std::make_unique<TlsSession>(*context, socket_.get(), role);
  }
}

void Connection::reset() {
  tls_.reset();
  socket_.reset();
}

TlsSession::Step Connection::secure() {
  return tls_ == nullptr ? TlsSession::Step::kDone : tls_->handshake();
}

std::optional<ChannelBinding> Connection::binding() const {
  if (tls_ == nullptr) {
    return std::nullopt;
  }
  return tls_->binding();
}

ssize_t Connection::read(std::span<const iovec> parts) {
  if (tls_ != nullptr) {
    return tls_->read(parts);
  }
  ssize_t got = 0;
  do {
    got = ::readv(socket_.get(), parts.data(), static_cast<int>(parts.size()));
  } while (got < 0 && errno == EINTR);
  return got;
}

ssize_t Connection::write(std::span<const iovec> parts) {
  if (tls_ != nullptr) {
    return tls_->write(parts);
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

bool Connection::writeAll(std::span<const std::byte> bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return write({&part, 1}) == static_cast<ssize_t>(bytes.size());
}

std::string Connection::problem(int error) const {
  if (tls_ != nullptr && !tls_->problem().empty()) {
    return tls_->problem();
  }
  return error == 0 ? "" : errnoText(error);
}

}  // namespace smd::transport::tcp
