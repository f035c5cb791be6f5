# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What reductions promise about values: operations, dtypes, rounding, order, NaN.

The statements are the names and docstrings in reduction_checks.py.

Source: `ReduceOp` and `Communicator.all_reduce`; native/kernels/kernels.h; dataparallel
specification, section 12, points 3 and 4.
"""

from __future__ import annotations

import pytest
from harness import run_ranks

from tests.conformance.collectives.ranks import TRANSPORTS
from tests.conformance.collectives.reduction_checks import CHECKS, bits_of_results, run_check


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("statement", CHECKS)
def test_reductions_of_three_ranks(statement: str, transport: str) -> None:
    run_ranks(run_check, 3, statement, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "statement",
    ["average_of_equal_halves_is_that_half", "nan_from_one_rank_reaches_all"],
)
def test_reductions_of_eight_ranks(statement: str, transport: str) -> None:
    run_ranks(run_check, 8, statement, env={"SMDDP_TRANSPORT": transport})


def test_all_ranks_get_the_same_bits_by_every_algorithm_and_transport() -> None:
    settings: list[dict[str, str]] = [
        {"SMDDP_TRANSPORT": "tcp"},
        {"SMDDP_TRANSPORT": "shm"},
        {"SMDDP_TRANSPORT": "shm", "SMDDP_ALGORITHM": "all_reduce=staged"},
        {"SMDDP_TRANSPORT": "shm", "SMDDP_ALGORITHM": "all_reduce=shared"},
        {"SMDDP_KERNELS": "scalar"},
        {"SMDDP_KERNELS": "baseline"},
    ]
    found = [run_ranks(bits_of_results, 3, env=setting) for setting in settings]
    first = found[0][0]
    for setting, ranks in zip(settings, found, strict=True):
        for rank, digests in enumerate(ranks):
            differing = [what for what in first if digests[what] != first[what]]
            assert not differing, f"rank {rank} with {setting}: {differing}"
