#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/run_native_tests.sh BUILD_DIR JOBS
# Builds the tests of tests/native in BUILD_DIR and runs them with ctest. SMD_SANITIZE in the
# environment builds the engine and the tests with sanitizers; the Python module is left out then.
# COMPILE_JOBS there is for the compiler, if it is to have another number than the tests.
# Without GoogleTest, and without a way to get it, says so and succeeds: the Python tests still
# cover the engine, and a machine without it should not fail a change.
set -euo pipefail
build_dir=$1
jobs=$2
sanitize=${SMD_SANITIZE:-}
tools=$(dirname "$0")

if ! gtest_root=$("$tools/find_googletest.sh" build/googletest); then
  "$tools/note.sh" "SKIPPED: the native tests (tests/native) were not built; see above for why."
  exit 0
fi

options=(-DSMD_BUILD_TESTS=ON -DSMD_SANITIZE="$sanitize" -DCMAKE_PREFIX_PATH="$gtest_root")
if [[ -n $sanitize ]]; then
  # GCC's flow warnings (maybe-uninitialized) are unreliable in instrumented code: not errors here.
  options+=(-DSMD_BUILD_PYTHON=OFF -DCMAKE_BUILD_TYPE=Debug -DSMD_TEST_TIMEOUT_S=1200)
else
  options+=(-DSMD_WARNINGS_AS_ERRORS=ON)
fi
# The build directory is usually the one that pip has used: the engine is compiled once for both.
cmake -S . -B "$build_dir" -G Ninja --log-level=WARNING "${options[@]}" >/dev/null
echo "Building the native tests${sanitize:+ with -fsanitize=$sanitize}"
cmake --build "$build_dir" --parallel "${COMPILE_JOBS:-$jobs}" -- --quiet

# A sanitizer that finds something must end the test program with an error.
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS=print_stacktrace=1
# What goes to another rank and comes back is ordered by the network, which TSan does not see: it
# notes what sendmsg() has read after the call, and the answer may have come to the same place by then.
export TSAN_OPTIONS=second_deadlock_stack=1:intercept_send=0
# Side by side; those that need the processors for themselves say so (RUN_SERIAL, tests/native). No
# more than there are processors: each is bound to one, and ctest 4.4 hangs when it has none left to
# give. What fails runs once more, alone, as in tests/plugins/second_run.py.
tests=(ctest --test-dir "$build_dir" --output-on-failure --no-tests=error)
# ctest writes it when it has ended, so an older one would be that of another run: of a ctest that
# was killed, or could not begin, nothing may run again and pass.
failed=$build_dir/Testing/Temporary/LastTestsFailed.log
rm -f "$failed"
status=0
processors=$(nproc)
"${tests[@]}" --parallel "$((jobs < processors ? jobs : processors))" || status=$?
if ((status == 0)); then exit 0; fi
if [[ ! -s $failed ]]; then
  echo "FAILED: ctest ended with status $status and did not say which native tests failed." >&2
  exit "$status"
fi
echo "Running what failed once more, alone"
"${tests[@]}" --rerun-failed
"$tools/note.sh" "UNSTABLE: native tests failed, then passed when run alone; see above for which."
