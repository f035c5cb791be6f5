// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// A non-blocking socket, in the clear or inside TLS: those who read and write need not know which.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/file_descriptor.h"
#include "transport/tcp/protocol.h"
#include "transport/tcp/tls.h"

namespace smd::transport::tcp {

// Not thread-safe.
class Connection {
 public:
  Connection() = default;
  // `context`: null for a connection in the clear; must outlive this.
  Connection(FileDescriptor socket, const TlsContext* context, TlsRole role);

  bool isOpen() const { return socket_.isOpen(); }
  int descriptor() const { return socket_.get(); }
  void reset();

  // To be called until it is kDone, before anything is read or written. At once in the clear.
  TlsSession::Step secure();
  // Once it is: what the two ends of this TLS connection have in common with nobody else; none in
  // the clear.
  std::optional<ChannelBinding> binding() const;
  // As readv() and sendmsg() of a non-blocking socket, repeated on EINTR. See TlsSession for what a
  // repeated write must look like.
  ssize_t read(std::span<const iovec> parts);
  ssize_t write(std::span<const iovec> parts);
  // Whether all of `bytes`, few enough for a fresh connection to have room, were written.
  bool writeAll(std::span<const std::byte> bytes);
  // Whether bytes are there to be read that no poll reports.
  bool hasMore() const { return tls_ != nullptr && tls_->hasMore(); }
  // Why a call has failed with `error`: what TLS met ("it ..."), else errno's text; empty for 0.
  std::string problem(int error) const;

 private:
  FileDescriptor socket_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace smd::transport::tcp
