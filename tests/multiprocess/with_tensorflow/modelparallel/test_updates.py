# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of a cut model, in whose steps all gradients are looked at together.

With three ranks the one in the middle has no variable.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks(Path(__file__).with_name("update_ranks.py"))

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("legacy_keras", ["0", "1"], ids=["keras-3", "tf-keras"])
@pytest.mark.parametrize("name", CHECKS.names)
def test_updates(name: str, legacy_keras: str) -> None:
    CHECKS.require(name, 3, TF_USE_LEGACY_KERAS=legacy_keras)
