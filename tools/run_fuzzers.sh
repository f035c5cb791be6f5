#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/run_fuzzers.sh BUILD_DIR JOBS SECONDS
# Builds the fuzzers of tests/fuzz in BUILD_DIR and runs each for SECONDS from its kept corpus. What
# is found beyond the corpus is kept in BUILD_DIR/corpus, and the input that made a fuzzer fail in
# BUILD_DIR. FUZZ_RUNS=N in the environment bounds the number of inputs of each instead of the time.
# Without clang and its runtime, and without a way to get them, says so and succeeds: most machines
# that build the package have no clang, and that should not fail a change.
set -euo pipefail
build_dir=$1
jobs=$2
seconds=$3
tools=$(dirname "$0")

if ! clang=$("$tools/find_clang.sh"); then
  "$tools/note.sh" "SKIPPED: the fuzzers (tests/fuzz) were not built; see above for why."
  exit 0
fi
cmake -S . -B "$build_dir" -G Ninja --log-level=WARNING -DCMAKE_CXX_COMPILER="$clang" \
  -DCMAKE_BUILD_TYPE=Debug -DSMD_BUILD_PYTHON=OFF -DSMD_BUILD_FUZZERS=ON \
  -DSMD_SANITIZE=address,undefined >/dev/null
echo "Building the fuzzers"
cmake --build "$build_dir" --parallel "$jobs" --target fuzzers -- --quiet

# One without a corpus would not be run below.
for source in tests/fuzz/*_fuzz.cc; do
  name=$(basename "$source" _fuzz.cc)
  if [[ ! -d tests/fuzz/corpus/$name ]]; then
    echo "FAILED: $source has no folder tests/fuzz/corpus/$name, so nothing runs it." >&2
    exit 1
  fi
done

limit=(-max_total_time="$seconds")
if [[ -n ${FUZZ_RUNS:-} ]]; then limit=(-runs="$FUZZ_RUNS"); fi
# All at the same time: each is one thread.
names=()
pids=()
for corpus in tests/fuzz/corpus/*; do
  name=$(basename "$corpus")
  mkdir -p "$build_dir/corpus/$name"
  # max_len: two frames or a handshake with some more; longer inputs are slower, not deeper.
  "$build_dir/tests/fuzz/${name}_fuzz" "$build_dir/corpus/$name" "$corpus" "${limit[@]}" \
    -max_len=1024 -timeout=10 -print_final_stats=1 -artifact_prefix="$build_dir/$name-" \
    >"$build_dir/$name.log" 2>&1 &
  names+=("$name")
  pids+=($!)
done
status=0
for i in "${!names[@]}"; do
  name=${names[$i]}
  log=$build_dir/$name.log
  if wait "${pids[$i]}"; then
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [[ ${inputs:-0} -gt 0 ]]; then
      echo "$name: $inputs inputs, nothing found"
    else
      status=1
      echo "FAILED: the fuzzer of $name ended without an input; $log may say why." >&2
    fi
  else
    status=1
    tail -n 60 "$log" >&2
    echo "FAILED: the fuzzer of $name found something; the lines above and $log say what. Run" \
      "$build_dir/tests/fuzz/${name}_fuzz on the file in $build_dir to see it again." >&2
  fi
done
exit $status
