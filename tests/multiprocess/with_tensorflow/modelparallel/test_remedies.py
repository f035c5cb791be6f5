# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Remedies for old scripts, in both Kerases, in one process.

Source: TensorFlow modelparallel specification, section 6.2.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).parent / "remedy_ranks.py")

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("legacy_keras", ["0", "1"], ids=["keras-3", "tf-keras"])
@pytest.mark.parametrize("name", CHECKS.names)
def test_remedies(name: str, legacy_keras: str) -> None:
    CHECKS.require(name, 1, TF_USE_LEGACY_KERAS=legacy_keras)
