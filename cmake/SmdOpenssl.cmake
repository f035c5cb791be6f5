# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# OpenSSL 3: handshakes (libcrypto) and TLS (libssl). Linked dynamically, so that security updates
# of the system reach us.
find_package(OpenSSL 3)
if(NOT OpenSSL_FOUND)
  message(FATAL_ERROR
    "OpenSSL 3 was not found with its headers; smdistributed needs it for the handshake between "
    "ranks and for TLS. Install it (Debian, Ubuntu: apt-get install libssl-dev; Fedora: dnf install "
    "openssl-devel), or pass -DOPENSSL_ROOT_DIR=<prefix>.")
endif()
