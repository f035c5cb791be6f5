# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of TensorFlow's pipelines that fail, with real models (`failing_ranks.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

FAILING = Checks(Path(__file__).parent / "failing_ranks.py")
REFUSING = Checks(Path(__file__).parent / "refusing_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(("ranks", "is_legacy"), [(2, 0), (3, 1)])
@pytest.mark.parametrize("name", FAILING.names)
def test_steps_that_fail(name: str, ranks: int, is_legacy: int) -> None:
    FAILING.require(name, ranks, TF_USE_LEGACY_KERAS=str(is_legacy))


@pytest.mark.parametrize("is_legacy", [0, 1])
@pytest.mark.parametrize("name", REFUSING.names)
def test_what_is_refused(name: str, is_legacy: int) -> None:
    REFUSING.require(name, 2, TF_USE_LEGACY_KERAS=str(is_legacy))
