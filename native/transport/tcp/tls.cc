// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "common/error.h"

namespace smd::transport::tcp {
namespace {

constexpr std::size_t kRecordBytes = 16384;
constexpr std::size_t kReadAheadBytes = std::size_t{128} << 10;
// AES-GCM keeps its promises for some 2^24 records under one key (RFC 8446, section 5.5): long
// before, the next key is taken.
constexpr std::uint64_t kRekeyBytes = std::uint64_t{1} << 36;

std::string reasonOf(unsigned long code) {
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "error " + std::to_string(code) : reason;
}

[[noreturn]] void refuse(const std::string& variable, const std::string& path,
                         const std::string& reason, const std::string& remedy) {
  throw Error(ErrorKind::kConfiguration, variable + "=" + path + " " + reason + ". " + remedy);
}

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL: a peer that is gone would end a process
// that has not switched SIGPIPE off.
int descriptorOf(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int afterTransfer(BIO* bio, ssize_t moved, std::size_t* count, int retryFlag) {
  BIO_clear_retry_flags(bio);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_flags(bio, retryFlag | BIO_FLAGS_SHOULD_RETRY);
  }
  if (moved <= 0) {
    BIO_set_flags(bio, moved == 0 ? BIO_FLAGS_IN_EOF : 0);
    return 0;
  }
  *count = static_cast<std::size_t>(moved);
  return 1;
}

int writeToSocket(BIO* bio, const char* data, std::size_t size, std::size_t* written) {
  const ssize_t sent = ::send(descriptorOf(bio), data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  return afterTransfer(bio, sent, written, BIO_FLAGS_WRITE);
}

int readFromSocket(BIO* bio, char* data, std::size_t size, std::size_t* got) {
  const ssize_t received = ::recv(descriptorOf(bio), data, size, MSG_DONTWAIT);
  return afterTransfer(bio, received, got, BIO_FLAGS_READ);
}

long controlSocket(BIO* bio, int command, long, void*) {
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_EOF:
      return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
    default:
      return 0;
  }
}

const BIO_METHOD* socketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
    if (made == nullptr || BIO_meth_set_write_ex(made, writeToSocket) != 1 ||
        BIO_meth_set_read_ex(made, readFromSocket) != 1 ||
        BIO_meth_set_ctrl(made, controlSocket) != 1) {
      throw Error(ErrorKind::kInternal, "OpenSSL cannot make a BIO_METHOD.");
    }
    return made;
  }();
  return method;
}

std::string lastReason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  return reasonOf(code);
}

// The peers will look at our certificate with the same authority: better to hear it here.
void requireValid(SSL_CTX* context, const TlsFiles& files) {
  const std::unique_ptr<X509_STORE_CTX, decltype(&X509_STORE_CTX_free)> check(X509_STORE_CTX_new(),
                                                                              X509_STORE_CTX_free);
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  if (check == nullptr || X509_STORE_CTX_init(check.get(), SSL_CTX_get_cert_store(context),
                                              SSL_CTX_get0_certificate(context), chain) != 1) {
    throw Error(ErrorKind::kInternal, "OpenSSL cannot check a certificate: " + lastReason());
  }
  if (X509_verify_cert(check.get()) != 1) {
    const int code = X509_STORE_CTX_get_error(check.get());
    ERR_clear_error();
    refuse("SMDDP_TLS_CERT", files.certificate,
           std::string("is no valid certificate of SMDDP_TLS_CA=") + files.authority + " (" +
               X509_verify_cert_error_string(code) + "); expected one that it has signed",
           "Make a new one, see docs/security.md, and check the clock of this host.");
  }
}

}  // namespace

TlsContext::TlsContext(const TlsFiles& files)
    : context_(SSL_CTX_new(TLS_method()), [](SSL_CTX* context) { SSL_CTX_free(context); }) {
  SSL_CTX* context = context_.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1) {
    throw Error(ErrorKind::kInternal, "OpenSSL has no TLS 1.3: " + lastReason());
  }
  // A key with a password is refused; OpenSSL would ask for it on the terminal.
  SSL_CTX_set_default_passwd_cb(context, [](char*, int, int, void*) { return -1; });
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    refuse("SMDDP_TLS_CERT", files.certificate,
           "cannot be used (" + lastReason() + "); expected a certificate in PEM form",
           "Correct the path, or make one, see docs/security.md.");
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    refuse("SMDDP_TLS_KEY", files.key,
           "cannot be used (" + lastReason() + "); expected the key of SMDDP_TLS_CERT=" +
               files.certificate + ", in PEM form without a password",
           "Correct the path, or make both again, see docs/security.md.");
  }
  if (SSL_CTX_load_verify_locations(context, files.authority.c_str(), nullptr) != 1) {
    refuse("SMDDP_TLS_CA", files.authority,
           "cannot be used (" + lastReason() + "); expected certificates in PEM form",
           "Correct the path, or make one, see docs/security.md.");
  }
  requireValid(context, files);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // A connection ends with a goodbye of our own, or counts as broken: no need for a second one.
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);  // nobody resumes
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
}

void checkTlsFiles(const TlsFiles& files) { const TlsContext context(files); }

TlsSession::TlsSession(const TlsContext& context, int socket, TlsRole role)
    : session_(SSL_new(context.context_.get()), [](SSL* session) { SSL_free(session); }) {
  BIO* bio = session_ == nullptr ? nullptr : BIO_new(socketMethod());
  if (bio == nullptr) {
    throw Error(ErrorKind::kInternal, "OpenSSL cannot make a session: " + lastReason());
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket)));
  BIO_set_init(bio, 1);
  SSL_set_bio(session_.get(), bio, bio);
  if (role == TlsRole::kOpener) {
    SSL_set_connect_state(session_.get());
  } else {
    SSL_set_accept_state(session_.get());
  }
}

TlsSession::Step TlsSession::handshake() {
  ERR_clear_error();
  return stepOf(SSL_do_handshake(session_.get()));
}

ChannelBinding TlsSession::binding() const {
  static constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  ChannelBinding binding;
  if (SSL_export_keying_material(session_.get(), reinterpret_cast<unsigned char*>(binding.data()),
                                 binding.size(), kLabel.data(), kLabel.size(), nullptr, 0,
                                 0) != 1) {
    throw Error(ErrorKind::kInternal, "OpenSSL cannot export keying material: " + lastReason());
  }
  return binding;
}

ssize_t TlsSession::read(std::span<const iovec> parts) {
  ssize_t total = 0;
  for (const iovec& part : parts) {
    std::size_t filled = 0;
    while (filled < part.iov_len) {
      ERR_clear_error();
      std::size_t got = 0;
      const int result =
          SSL_read_ex(session_.get(), static_cast<std::byte*>(part.iov_base) + filled,
                      part.iov_len - filled, &got);
      if (result != 1) {
        // An end or an error shows again at the next call: first what has come.
        return total > 0 ? total : errnoOf(result);
      }
      filled += got;
      total += static_cast<ssize_t>(got);
    }
  }
  return total;
}

ssize_t TlsSession::write(std::span<const iovec> parts) {
  ssize_t total = 0;
  std::array<iovec, 64> left;
  while (true) {
    // What is left of `parts` after `total` bytes.
    std::size_t skip = static_cast<std::size_t>(total);
    std::size_t count = 0;
    for (const iovec& part : parts) {
      const std::size_t skipped = std::min(skip, part.iov_len);
      skip -= skipped;
      if (skipped < part.iov_len && count < left.size()) {
        left[count++] = {static_cast<std::byte*>(part.iov_base) + skipped, part.iov_len - skipped};
      }
    }
    if (count == 0) {
      return total;
    }
    const ssize_t written = writeRecord(std::span(left).first(count));
    if (written < 0) {
      return total > 0 ? total : written;
    }
    total += written;
  }
}

// Small parts share a record. Which bytes make up a record depends on where it begins and on no
// boundary between calls, so a repeated call repeats the same one.
ssize_t TlsSession::writeRecord(std::span<const iovec> parts) {
  if (writtenSinceRekey_ >= kRekeyBytes &&
      SSL_key_update(session_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    writtenSinceRekey_ = 0;
  }
  std::array<std::byte, kRecordBytes> gathered;
  const void* data = parts[0].iov_base;
  std::size_t size = std::min(parts[0].iov_len, kRecordBytes);
  if (size < kRecordBytes && parts.size() > 1) {
    size = 0;
    for (const iovec& part : parts) {
      const std::size_t taken = std::min(part.iov_len, kRecordBytes - size);
      std::memcpy(gathered.data() + size, part.iov_base, taken);
      size += taken;
    }
    data = gathered.data();
  }
  ERR_clear_error();
  std::size_t written = 0;
  const int result = SSL_write_ex(session_.get(), data, size, &written);
  if (result != 1) {
    const ssize_t failed = errnoOf(result);
    if (failed == 0) {
      errno = EPIPE;
    }
    return -1;
  }
  writtenSinceRekey_ += written;
  return static_cast<ssize_t>(written);
}

bool TlsSession::hasMore() const { return SSL_has_pending(session_.get()) == 1; }

TlsSession::Step TlsSession::stepOf(int result) {
  if (result == 1) {
    return Step::kDone;
  }
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kWantsToRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantsToWrite;
    default:
      break;
  }
  const int systemErrno = errno;
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const long verified = SSL_get_verify_result(session_.get());
  if (verified != X509_V_OK) {
    problem_ = std::string("it showed a certificate that is not valid here (") +
               X509_verify_cert_error_string(verified) +
               "); expected one signed by SMDDP_TLS_CA and not expired. Give all ranks "
               "certificates of one authority, see docs/security.md";
  } else if (code != 0 && ERR_GET_LIB(code) == ERR_LIB_SSL &&
             ERR_GET_REASON(code) > SSL_AD_REASON_OFFSET) {
    problem_ = "it refused the certificate of this rank (" + reasonOf(code) +
               "); expected it to accept SMDDP_TLS_CERT. Give all ranks the same SMDDP_TLS_CA, and "
               "check the clocks of both hosts";
  } else if (code != 0) {
    problem_ = "it does not speak TLS 1.3 as this rank does (" + reasonOf(code) +
               "); expected TLS on all ranks. Set SMDDP_TLS_CERT, _KEY and _CA on all ranks, or on "
               "none";
  }
  errno = code != 0 || verified != X509_V_OK ? EPROTO : systemErrno;
  return Step::kFailed;
}

// After a call that moved nothing: what read() and write() of a socket would return.
ssize_t TlsSession::errnoOf(int result) {
  if (SSL_get_error(session_.get(), result) == SSL_ERROR_ZERO_RETURN) {
    return 0;
  }
  if (stepOf(result) != Step::kFailed) {
    errno = EAGAIN;
    return -1;
  }
  return errno == 0 ? 0 : -1;
}

}  // namespace smd::transport::tcp
