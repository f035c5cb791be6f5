# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's names for Keras, against one process and the published rates.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("horovod_keras_ranks.py")
OF_TF_KERAS = [
    "check_momentum_correction",
    "check_passes_equal_one_process",
    "check_passes_change_nothing_but_the_last",
    "check_gradients_that_come_and_go",
    "check_passes_with_loss_scaling",
    "check_load_model",
]
FEW = [
    "check_the_warm_up",
    "check_passes_change_nothing_but_the_last",
    "check_gradients_that_come_and_go",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("name", CHECKS.names)
def test_horovod_with_keras_3(name: str) -> None:
    CHECKS.require(name, 2)


@pytest.mark.parametrize("name", OF_TF_KERAS)
def test_horovod_with_tf_keras(name: str) -> None:
    CHECKS.require(name, 2, OF_TF_KERAS, TF_USE_LEGACY_KERAS="1")


@pytest.mark.parametrize("name", FEW)
def test_three_ranks(name: str) -> None:
    CHECKS.require(name, 3, FEW)
