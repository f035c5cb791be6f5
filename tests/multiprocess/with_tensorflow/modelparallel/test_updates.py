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
# What each Keras does by itself. The others are about gradients and losses alone.
BY_KERAS = [
    "check_global_clipnorm",
    "check_average_weights",
    "check_a_scaled_loss_that_overflows_on_one_rank",
    "check_mixed_precision",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_updates(name: str) -> None:
    CHECKS.require(name, 3)


@pytest.mark.parametrize("name", BY_KERAS)
def test_updates_of_tf_keras(name: str) -> None:
    CHECKS.require(name, 3, BY_KERAS, TF_USE_LEGACY_KERAS="1")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS.names)
def test_all_with_tf_keras(name: str) -> None:
    CHECKS.require(name, 3, TF_USE_LEGACY_KERAS="1")
