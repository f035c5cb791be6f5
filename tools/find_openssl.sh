#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/find_openssl.sh
# Sees to it that the headers of OpenSSL 3 are there: installs Debian's package libssl-dev if they are
# missing and it may (root, apt-get). Always succeeds: CMake looks in more places than this, and says
# what to do if it finds none either.
set -euo pipefail

if echo '#include <openssl/ssl.h>' | ${CXX:-c++} -E -x c++ - >/dev/null 2>&1; then exit 0; fi
if ! command -v apt-get >/dev/null || [[ $EUID -ne 0 ]]; then exit 0; fi
echo "Installing libssl-dev, for the handshake between ranks"
install() { apt-get install -y -qq --no-install-recommends libssl-dev >/dev/null 2>&1; }
# A fresh machine may have no package lists yet.
install || { apt-get update -qq >/dev/null 2>&1 && install; } || true
