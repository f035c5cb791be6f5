# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Exits, signals and interrupts at any moment of steps (`sabotage_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

SABOTAGE = Checks(Path(__file__).parent / "sabotage_ranks.py")
AT_ANY_MOMENT = "check_interrupts_at_any_moment"

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", SABOTAGE.names)
def test_sabotage(name: str) -> None:
    SABOTAGE.require(name, 2)


@pytest.mark.slow
@pytest.mark.parametrize("is_legacy", [0, 1])
def test_many_interrupts(is_legacy: int) -> None:
    env = {"TF_USE_LEGACY_KERAS": str(is_legacy), "SMP_TEST_INTERRUPTS": "200"}
    SABOTAGE.require(AT_ANY_MOMENT, 2, [AT_ANY_MOMENT], **env)
