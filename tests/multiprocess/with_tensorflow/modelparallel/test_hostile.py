# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps as nobody meant them to be written: equal to one process, or one clear error.

Source: TensorFlow modelparallel specification, sections 3.3 and 3.4.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).parent / "hostile_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_hostile(name: str) -> None:
    CHECKS.require(name, 2)


def test_python_branches_in_tf_keras() -> None:
    name = "check_python_branches_in_call"
    CHECKS.require(name, 2, [name], TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS.names)
def test_hostile_in_tf_keras(name: str) -> None:
    CHECKS.require(name, 2, TF_USE_LEGACY_KERAS="1")
