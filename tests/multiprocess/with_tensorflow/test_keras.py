# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training with Keras on several ranks, against one process with the batches joined.

Source: dataparallel specification, sections 6.3, 7.7, 7.9, 8 and 12.
"""

from __future__ import annotations

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("keras_ranks.py")
KERAS_3 = [name for name in CHECKS.names if not name.startswith("check_tf_keras_")]
TF_KERAS = [name for name in CHECKS.names if not name.startswith("check_keras3_")]
# Tracing what `fit` trains takes seconds; in parts, no start of ranks has to do all of it.
PARTS = 3
# What depends on the number of ranks most.
FEW = [
    "check_fit_equals_one_process",
    "check_metrics_are_averaged",
    "check_logs_that_differ_between_ranks",
    "check_the_broadcast_callback",
    "check_loops_of_ones_own",
    "check_a_loop_in_a_function",
    "check_arguments",
    "check_reduced_once_with_a_tape",
    "check_a_gradient_that_some_ranks_lack",
    "check_an_overflow_on_one_rank",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _part_of(name: str, names: list[str]) -> list[str]:
    return names[names.index(name) % PARTS :: PARTS]


@pytest.mark.parametrize("name", KERAS_3)
def test_keras_3(name: str) -> None:
    CHECKS.require(name, 2, _part_of(name, KERAS_3))


@pytest.mark.parametrize("name", TF_KERAS)
def test_tf_keras(name: str) -> None:
    CHECKS.require(name, 2, _part_of(name, TF_KERAS), TF_USE_LEGACY_KERAS="1")


@pytest.mark.parametrize("name", FEW)
def test_keras_3_on_four_ranks(name: str) -> None:
    CHECKS.require(name, 4, FEW)


@pytest.mark.parametrize("name", FEW)
def test_tf_keras_on_four_ranks(name: str) -> None:
    CHECKS.require(name, 4, FEW, TF_USE_LEGACY_KERAS="1")
