// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "auth/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <memory>
#include <string>
#include <vector>

#include "common/error.h"

namespace smd::auth {
namespace {

Error cryptoError(const char* call) {
  std::array<char, 256> text{};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  return Error(ErrorKind::kInternal,
               std::string(call) + " of OpenSSL failed: " + text.data() +
                   "; expected it to succeed. Check the OpenSSL 3 of this host (openssl version).");
}

const unsigned char* toOpenssl(Bytes bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

void fillRandom(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) !=
      1) {
    throw cryptoError("RAND_bytes");
  }
}

Digest hmacSha256(Bytes key, std::initializer_list<Bytes> parts) {
  std::vector<std::byte> message;
  for (const Bytes part : parts) {
    message.insert(message.end(), part.begin(), part.end());
  }
  Digest digest;
  // A null key would mean "the key of the last call" to OpenSSL.
  const std::byte none{};
  if (HMAC(EVP_sha256(), key.empty() ? &none : key.data(), static_cast<int>(key.size()),
           toOpenssl(message), message.size(), reinterpret_cast<unsigned char*>(digest.data()),
           nullptr) == nullptr) {
    throw cryptoError("HMAC");
  }
  return digest;
}

Digest hkdfSha256(Bytes secret, Bytes salt, Bytes info) {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> kdf(
      EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(
      kdf == nullptr ? nullptr : EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  const auto octets = [](const char* name, Bytes bytes) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()),
                                             bytes.size());
  };
  std::string hash = "SHA256";
  const std::array<OSSL_PARAM, 5> params = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash.data(), hash.size()),
      octets(OSSL_KDF_PARAM_KEY, secret), octets(OSSL_KDF_PARAM_SALT, salt),
      octets(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  Digest key;
  if (context == nullptr ||
      EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(),
                     params.data()) != 1) {
    throw cryptoError("HKDF");
  }
  return key;
}

bool isEqual(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace smd::auth
