# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What needs no other ranks: each `*_checks.py` of this folder says what it checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorflow_harness import run_tensorflow_ranks

from tests.multiprocess.with_tensorflow.tf_ranks import Checks

CHECKS = {path.stem: Checks(path) for path in sorted(Path(__file__).parent.glob("*_checks.py"))}


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file, checks in CHECKS.items() for name in checks.names]
)
def test_in_one_process(file: str, name: str) -> None:
    CHECKS[file].require(name, 1)


@pytest.mark.parametrize("legacy_keras", ["0", "1"])
def test_training_without_a_launcher(legacy_keras: str) -> None:
    train = Path(__file__).with_name("optimizers_checks.py")
    run_tensorflow_ranks(
        f"{train}:train_without_a_launcher", 1, env={"TF_USE_LEGACY_KERAS": legacy_keras}
    )
