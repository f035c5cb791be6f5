// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
//
// TLS 1.3 over a non-blocking socket, as OpenSSL does it. Both ends show a certificate of the job's
// authority. Names in certificates are not compared with anything: ranks meet at addresses that
// they have published themselves, and what counts is who has signed.
#pragma once

#include <openssl/types.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "transport/tcp/factory.h"
#include "transport/tcp/protocol.h"

namespace smd::transport::tcp {

// Certificate, key and authority of this rank, for all its connections. Thread-safe once made.
class TlsContext {
 public:
  // Throws Error(kConfiguration) for files that cannot be read, do not belong together, or hold a
  // certificate that the peers would refuse (expired, of another authority).
  explicit TlsContext(const TlsFiles& files);

 private:
  friend class TlsSession;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
};

enum class TlsRole : std::uint8_t { kOpener, kAcceptor };

// One connection. Not thread-safe.
class TlsSession {
 public:
  // `socket` must stay open as long as this.
  TlsSession(const TlsContext& context, int socket, TlsRole role);

  enum class Step : std::uint8_t { kDone, kWantsToRead, kWantsToWrite, kFailed };
  Step handshake();
  // After kDone. Throws Error(kInternal).
  ChannelBinding binding() const;

  // As readv() and writev() of a non-blocking socket, EPROTO with problem() included. A read that
  // returns less than it was asked for has emptied the socket. After EAGAIN, a write must be
  // repeated with the same bytes, or more; they may lie elsewhere.
  ssize_t read(std::span<const iovec> parts);
  ssize_t write(std::span<const iovec> parts);

  // Whether bytes have left the socket, so that no poll reports them, and have not been read.
  bool hasMore() const;
  // What went wrong, and what to do: "it ..."; empty for nothing.
  const std::string& problem() const { return problem_; }

 private:
  Step stepOf(int result);
  ssize_t errnoOf(int result);
  ssize_t writeRecord(std::span<const iovec> parts);

  std::unique_ptr<SSL, void (*)(SSL*)> session_;
  std::string problem_;
  std::uint64_t writtenSinceRekey_ = 0;
};

}  // namespace smd::transport::tcp
