# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The driver of a pipeline of TensorFlow's, on programs made by hand (`driver_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).parent / "driver_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(("ranks", "threads"), [(2, 1), (3, 4)])
@pytest.mark.parametrize("name", CHECKS.names)
def test_the_driver(name: str, ranks: int, threads: int) -> None:
    CHECKS.require(name, ranks, SMP_TEST_THREADS=str(threads))
