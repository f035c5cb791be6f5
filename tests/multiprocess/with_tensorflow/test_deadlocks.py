# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives keep the order of the program on all ranks, however few threads TensorFlow has.

Source: dataparallel specification, sections 7.3 to 7.5 and 12.8.
"""

from __future__ import annotations

import pytest
from machine_speed import scaled

from tests.multiprocess.with_tensorflow.tf_ranks import Checks

DEADLINE_S = 300.0  # a deadlock is found by the timeout of a collective
CHECKS = Checks("deadlock_ranks.py", DEADLINE_S)
NUM_RANKS = 4
# Operations, threads that run operations, threads within one, steps of training. The fewest threads
# find most; many are tried with the operations that most scripts use.
SETTINGS = [
    ("kernels", 1, 1, 100),
    ("kernels", 8, 2, 100),
    ("python", 1, 1, 100),
    pytest.param("kernels", 2, 1, 100, marks=pytest.mark.slow),
    pytest.param("python", 8, 2, 100, marks=pytest.mark.slow),
    pytest.param("kernels", 1, 1, 1000, marks=pytest.mark.slow),
    pytest.param("kernels", 2, 1, 1000, marks=pytest.mark.slow),
    pytest.param("kernels", 8, 2, 1000, marks=pytest.mark.slow),
    pytest.param("python", 1, 1, 300, marks=pytest.mark.slow),
    pytest.param("python", 8, 2, 300, marks=pytest.mark.slow),
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(("operations", "inter", "intra", "steps"), SETTINGS)
@pytest.mark.parametrize("name", CHECKS.names)
def test_collectives_in_the_order_of_the_program(
    name: str, operations: str, inter: int, intra: int, steps: int
) -> None:
    CHECKS.require(
        name,
        NUM_RANKS,
        SMDDP_TF_OPERATIONS=operations,
        SMDDP_BUCKET_CAP_MB="0.00390625",
        SMDDP_TIMEOUT_SECONDS=str(scaled(30.0)),
        INTER_OP_THREADS=str(inter),
        INTRA_OP_THREADS=str(intra),
        STEPS=str(steps),
    )
