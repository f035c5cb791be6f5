#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/find_clang.sh
# Prints the path of a clang++ that can link a fuzzer. Where there is none, installs Debian's packages
# clang and libclang-rt-*-dev if it may (root, apt-get). Fails with the reason on stderr.
set -euo pipefail

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' \
  >"$probe/probe.cc"

find_clang() {
  local candidate
  for candidate in clang++ $(compgen -c clang++- | sort -rV); do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -fsanitize=fuzzer,address,undefined "$probe/probe.cc" -o "$probe/probe" \
        2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

if find_clang; then exit 0; fi
if ! command -v apt-get >/dev/null || [[ $EUID -ne 0 ]]; then
  echo "No clang++ that links with -fsanitize=fuzzer was found, and it cannot be installed without" \
    "root and apt-get. Install clang and its runtime (Debian, Ubuntu: clang libclang-rt-dev)." >&2
  exit 1
fi
echo "Installing clang and its runtime, for the fuzzers" >&2
install() {
  apt-get install -y -qq --no-install-recommends clang >"$probe/apt.log" 2>&1 || return 1
  local major
  major=$(clang++ -dumpversion | cut -d. -f1)
  # A package of its own since release 14; before it came with clang.
  apt-get install -y -qq --no-install-recommends "libclang-rt-$major-dev" >"$probe/apt.log" 2>&1 ||
    return 1
}
# A fresh machine may have no package lists yet.
if ! install && ! { apt-get update -qq >/dev/null 2>&1 && install; }; then
  cat "$probe/apt.log" >&2
  echo "clang, or its runtime, could not be installed." >&2
  exit 1
fi
if ! find_clang; then
  echo "clang is installed and does not link with -fsanitize=fuzzer all the same." >&2
  exit 1
fi
