#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/run_at_processor_levels.sh COMMAND...
# Runs COMMAND once for each level of instructions that this processor has, with everything held to
# that level: our kernels, torch's, and oneDNN's. A test that depends on the machine on which it was
# written fails at one of them. All levels run; the last line says which failed.
set -euo pipefail

has() { grep -qwm1 "$1" /proc/cpuinfo; }
levels=("baseline default SSE41")
if has avx2; then levels+=("avx2 avx2 AVX2"); fi
if has avx512f && has avx512bw && has avx512vl; then levels+=("avx512 avx512 AVX512_CORE"); fi

failed=()
for level in "${levels[@]}"; do
  read -r kernels aten onednn <<<"$level"
  printf '\033[1m%s\033[0m\n' "kernels held to $kernels"
  SMDDP_KERNELS=$kernels ATEN_CPU_CAPABILITY=$aten ONEDNN_MAX_CPU_ISA=$onednn "$@" ||
    failed+=("$kernels")
done
if ((${#failed[@]})); then
  echo "FAILED at: ${failed[*]}"
  exit 1
fi
echo "passed at ${#levels[@]} levels"
