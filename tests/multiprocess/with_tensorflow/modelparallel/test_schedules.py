# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks run what the schedule says, and hold no more than it allows (`schedule_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).parent / "schedule_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_two_ranks(name: str) -> None:
    CHECKS.require(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["0", "1"])
@pytest.mark.parametrize("name", CHECKS.names)
def test_three_ranks(name: str, keras: str) -> None:
    CHECKS.require(name, 3, TF_USE_LEGACY_KERAS=keras)
