# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each collective of `smdistributed.collectives.Communicator` gives, and to whom.

The statements are the docstrings in collective_checks.py.

Source: the docstrings of `Communicator`; dataparallel specification, section 12, point 3.
"""

from __future__ import annotations

import functools

import pytest
from harness import run_ranks

from tests.conformance.collectives.collective_checks import (
    CHECKS,
    beyond_32_bits,
    odd_sizes_around_25_mib,
    run_all,
    run_with_forced_algorithm,
)
from tests.conformance.collectives.ranks import TRANSPORTS, WORLD_SIZES

# Ranks that truly run at the same time, with all processors to themselves.
pytestmark = pytest.mark.quiet

JOBS = [
    (transport, world_size)
    for world_size in WORLD_SIZES
    for transport in TRANSPORTS
    if world_size > 1 or transport == "shm"  # a group of one rank has no transport
]


@functools.cache
def what_ranks_found(transport: str, world_size: int) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = run_ranks(
        run_all, world_size, env={"SMDDP_TRANSPORT": transport}, deadline_s=90
    )
    return found


@pytest.mark.parametrize(("transport", "world_size"), JOBS)
@pytest.mark.parametrize("collective", CHECKS)
def test_every_rank_gets_what_the_collective_promises(
    collective: str, transport: str, world_size: int
) -> None:
    for rank, (used, found) in enumerate(what_ranks_found(transport, world_size)):
        assert used == ("self" if world_size == 1 else transport)
        assert not found[collective], f"rank {rank}: {found[collective]}"


@pytest.mark.parametrize("algorithm", [pytest.param("staged", marks=pytest.mark.fresh), "shared"])
def test_every_algorithm_is_right_for_every_size(algorithm: str) -> None:
    names = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
    setting = ",".join(f"{name}={algorithm}" for name in names)
    run_ranks(run_with_forced_algorithm, 3, env={"SMDDP_ALGORITHM": setting})


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_default_bucket_of_25_mib_and_one_element_either_side(transport: str) -> None:
    run_ranks(odd_sizes_around_25_mib, 2, env={"SMDDP_TRANSPORT": transport})


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_more_than_2_31_elements(transport: str) -> None:
    run_ranks(beyond_32_bits, 2, env={"SMDDP_TRANSPORT": transport}, deadline_s=240)
