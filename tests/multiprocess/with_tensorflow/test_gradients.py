# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""DistributedGradientTape, and what it and the optimizers do to gradients, against plain tapes.

Source: dataparallel specification, sections 6.1 to 6.5, 7.6, 7.7.
"""

from __future__ import annotations

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("gradient_ranks.py")
# What depends on the number of ranks most.
FEW = [
    "check_a_tape_gives_the_gradients_of_all",
    "check_sixteen_bits",
    "check_none_on_some_ranks_is_zero",
    "check_traces_of_some_ranks_ask_nobody",
    "check_sparse_gradients",
    "check_buckets",
]
ALONE = ["check_persistent_tapes_and_structures", "check_arguments_of_the_tape", *FEW[:2]]
FALLBACK = [
    *FEW,
    "check_higher_orders_and_jacobians",
    "check_the_last_layers_need_not_wait",
    "check_optimizers_of_tensorflow_1",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CHECKS.names)
def test_gradients(name: str, ranks: int) -> None:
    CHECKS.require(name, ranks)


@pytest.mark.parametrize("name", FEW)
def test_gradients_of_five_ranks(name: str) -> None:
    CHECKS.require(name, 5, FEW)


@pytest.mark.parametrize("name", ALONE)
def test_gradients_of_one_rank(name: str) -> None:
    CHECKS.require(name, 1, ALONE)


@pytest.mark.parametrize("name", FALLBACK)
def test_gradients_by_python_functions(name: str) -> None:
    CHECKS.require(name, 2, FALLBACK, SMDDP_TF_OPERATIONS="python")
