# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Importing the package says nothing of its own, with every warning switched on.

On interpreters that have imported nothing: what ranks and scripts of other tests are forked from
has imported the package long before, and its warnings with it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from machine_speed import scaled

TORCH = (
    "smdistributed.dataparallel.torch.torch_smddp",
    "smdistributed.dataparallel.torch.distributed",
    "smdistributed.dataparallel.torch.parallel.distributed",
    "smdistributed.modelparallel.torch",
    "smdistributed.compat.horovod.torch",
)
TENSORFLOW = (
    "smdistributed.dataparallel.tensorflow.keras",
    "smdistributed.modelparallel.tensorflow",
)


@pytest.mark.parametrize("modules", [TORCH, TENSORFLOW], ids=["torch", "tensorflow"])
def test_imports_say_nothing(modules: tuple[str, ...]) -> None:
    command = [sys.executable, "-W", "always", "-c", f"import {', '.join(modules)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120.0))
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    ours = [line for line in done.stderr.splitlines() if "smdistributed" in line]
    assert not ours, done.stderr
