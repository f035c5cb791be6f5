#!/usr/bin/env bash
# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
#
# Usage: tools/check_wheel.sh PYTHON BUILD_DIR
# Builds a wheel into dist/, from what is compiled in BUILD_DIR if that is up to date, installs it in
# an environment that holds nothing else but what the wheel asks for, and uses it there as a user
# does: `smddprun --check`, then a sum over two ranks. No source of this checkout is in sight.
set -euo pipefail
python=$1
build_dir=$2
env=build/wheel-env
unset PYTHONPATH  # would bring what is not installed
pip() { "$env/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

rm -rf dist "$env"
"$python" -m pip --disable-pip-version-check --quiet wheel --no-build-isolation --no-deps \
  --config-settings=build-dir="$build_dir" --wheel-dir dist .
"$python" -m venv "$env"
pip install --constraint constraints.txt dist/*.whl

cd build  # not the checkout's root, where `import` would find its folders
bin=$PWD/wheel-env/bin
"$bin/smddprun" --check
cat >two_rank_sum.py <<'END'
import numpy as np
from smdistributed import collectives

with collectives.init() as comm:
    total = np.full(1000, comm.rank + 1, np.float32)
    comm.all_reduce(total)
    assert comm.world_size == 2, comm.world_size
    assert (total == 3).all(), total
    print(f"rank {comm.rank} of {comm.world_size}: the sum of two ranks is right")
END
sums=$("$bin/smddprun" -np 2 "$bin/python" two_rank_sum.py)
echo "$sums"
[[ $(grep -c "the sum of two ranks is right" <<<"$sums") == 2 ]]
# The line for the interpreter's start has come with the wheel.
"$bin/smddprun" -np 1 "$bin/python" -c "import horovod; print('the stand-in for Horovod is', horovod.__file__)"
if "$bin/python" -c "import horovod" 2>/dev/null; then
  echo "Horovod's stand-in is found outside of jobs"
  exit 1
fi
