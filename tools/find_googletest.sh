#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/find_googletest.sh DIR
# Prints the prefix of a GoogleTest installation that CMake can use: the system's, if there is one;
# otherwise Debian's package libgtest-dev, downloaded and unpacked into DIR. Nothing is installed
# into the system, so no root is needed as long as the package lists are there. Fails with the
# reason on stderr.
set -euo pipefail
dir=$1

for prefix in /usr /usr/local; do
  if [[ -e $prefix/include/gtest/gtest.h ]]; then
    echo "$prefix"
    exit 0
  fi
done
if [[ ! -e $dir/usr/include/gtest/gtest.h ]]; then
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "GoogleTest was not found in /usr or /usr/local, and without apt-get it cannot be" \
      "fetched. Install it with the system's package manager (googletest, gtest-devel)." >&2
    exit 1
  fi
  mkdir -p "$dir"
  fetch() { (cd "$dir" && apt-get download -qq libgtest-dev 2>apt.log); }
  # A fresh machine may have no package lists yet; only root can fetch those.
  if ! fetch && ! { [[ $EUID -eq 0 ]] && apt-get update -qq >/dev/null 2>&1 && fetch; }; then
    cat "$dir/apt.log" >&2
    echo "GoogleTest was not found, and its package libgtest-dev could not be downloaded." \
      "Install it: apt-get install libgtest-dev" >&2
    exit 1
  fi
  dpkg-deb -x "$dir"/libgtest-dev_*.deb "$dir"
fi
echo "$(cd "$dir" && pwd)/usr"
