# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps as methods, arguments of the decorator, tests of a part of the model (`step_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).parent / "step_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(
    ("ranks", "is_legacy"), [(2, 0), pytest.param(3, 1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CHECKS.names)
def test_steps(name: str, ranks: int, is_legacy: int) -> None:
    CHECKS.require(name, ranks, TF_USE_LEGACY_KERAS=str(is_legacy))
