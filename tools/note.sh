#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/note.sh TEXT
# Says something that nobody should miss, now and, where SMD_TEST_NOTES names a file, once more at the
# end of the Python tests, whose summary is all that is often looked at (tests/plugins/notes.py).
set -euo pipefail
echo "$1" >&2
if [[ -n ${SMD_TEST_NOTES:-} ]]; then
  mkdir -p "$(dirname "$SMD_TEST_NOTES")"
  echo "$1" >>"$SMD_TEST_NOTES"
fi
