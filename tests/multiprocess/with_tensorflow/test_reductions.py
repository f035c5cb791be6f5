# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""allreduce, oob_allreduce and broadcasts of TensorFlow, against NumPy.

Source: dataparallel specification, sections 6.3, 6.4, 7.3 to 7.5, 7.8.
"""

from __future__ import annotations

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks

CHECKS = Checks("reduction_ranks.py")
# What depends on the number of ranks most.
FEW = [
    "check_every_dtype_in_a_function",
    "check_averages_of_16_bits_do_not_overflow",
    "check_nan_and_inf_reach_all_ranks",
    "check_whatever_a_script_holds",
    "check_gradients_flow",
    "check_variables_eagerly",
]
FALLBACK = [
    *FEW,
    "check_a_gradient_flows_to_the_root",
    "check_loops_and_branches",
    "check_variables_in_a_function",
    "check_sessions",
    "check_xla_is_refused",
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CHECKS.names)
def test_reductions_and_broadcasts(name: str, ranks: int) -> None:
    CHECKS.require(name, ranks)


@pytest.mark.parametrize("ranks", [1, 5])
@pytest.mark.parametrize("name", FEW)
def test_other_numbers_of_ranks(name: str, ranks: int) -> None:
    CHECKS.require(name, ranks, FEW)


@pytest.mark.parametrize("name", FALLBACK)
def test_reductions_by_python_functions(name: str) -> None:
    CHECKS.require(name, 2, FALLBACK, SMDDP_TF_OPERATIONS="python")
