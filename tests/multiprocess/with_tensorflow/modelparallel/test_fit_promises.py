# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the guide says of training by Keras, one sentence after the other, beside plain Keras.

Source: TensorFlow modelparallel specification, section 5.4.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S as DEADLINE_OF_CHECKS_S
from tests.multiprocess.with_tensorflow.tf_ranks import Checks

DEADLINE_S = 2 * DEADLINE_OF_CHECKS_S  # there are many
CHECKS = Checks(Path(__file__).with_name("fit_promise_ranks.py"), DEADLINE_S)
FAST = [
    "check_a_scaled_loss",
    "check_that_training_stops_early",
    "check_rows_that_are_missing",
    "check_methods_of_the_scripts",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", FAST)
def test_fit(name: str) -> None:
    CHECKS.require(name, 2, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS.names)
@pytest.mark.parametrize("is_legacy", [0, 1])
def test_fit_by_both_kerases(is_legacy: int, name: str) -> None:
    CHECKS.require(name, 2, TF_USE_LEGACY_KERAS=str(is_legacy))
