# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The conformance suite of the collectives, with its ranks on several hosts.

The statements are those of `tests/conformance/collectives`: one rank per host, two per host (then
shared memory and TCP work together in one collective), and hosts with unequal numbers of ranks. All
statements of a list are checked by one job per layout, and are tests of their own here.

Source: the docstrings of `Communicator`; dataparallel specification, section 12, point 3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from harness import run_ranks
from hypothesis import HealthCheck, Phase, given, settings

from tests.conformance.collectives import collective_checks
from tests.conformance.collectives.random_program import Step, run_program
from tests.conformance.collectives.reduction_checks import bits_of_results
from tests.conformance.collectives.test_random_programs import programs
from tests.multihost.hosts import Host
from tests.multihost.placement import run_ranks_on
from tests.multihost.statements import LISTS, check_all

DEADLINE_S = 200.0
pytestmark = pytest.mark.timeout(DEADLINE_S + 40)

Layout = tuple[int, ...]
LAYOUTS: list[Layout] = [(1, 1), (2, 2), (1, 1, 1, 1), (2, 1), (1, 3)]
LISTS_AND_LAYOUTS: list[tuple[str, Layout]] = [
    ("groups", (2, 1)),
    ("reductions", (2, 2)),
]


def named(layout: Layout) -> str:
    return "+".join(str(ranks) for ranks in layout)


Job = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def job(four_hosts: list[Host]) -> Job:
    """Runs a function on a layout, and a second time gives what the first has found."""

    @functools.cache
    def run(layout: Layout, target: Callable[..., Any], *args: Any) -> list[Any]:
        return run_ranks_on(four_hosts, layout, target, *args, deadline_s=DEADLINE_S)

    return run


@pytest.mark.parametrize("layout", LAYOUTS, ids=named)
@pytest.mark.parametrize("collective", collective_checks.CHECKS)
def test_every_rank_gets_what_the_collective_promises(
    collective: str, layout: Layout, job: Job
) -> None:
    host_of = [host for host, ranks in enumerate(layout) for _ in range(ranks)]
    for rank, (used, found) in enumerate(job(layout, collective_checks.run_all)):
        is_neighbour_local = host_of[rank] == host_of[(rank + 1) % len(host_of)]
        assert used == ("shm" if is_neighbour_local else "tcp")
        assert not found[collective], f"rank {rank}: {found[collective]}"


@pytest.mark.parametrize(
    ("statements", "layout", "statement"),
    [
        pytest.param(name, layout, statement, id=f"{named(layout)}-{statement}")
        for name, layout in LISTS_AND_LAYOUTS
        for statement in LISTS[name]
    ],
)
def test_statement(statements: str, layout: Layout, statement: str, job: Job) -> None:
    for rank, found in enumerate(job(layout, check_all, statements)):
        assert not found[statement], f"rank {rank}: {found[statement]}"


def test_ranks_with_a_host_each_get_the_bits_of_one_host(job: Job) -> None:
    here = run_ranks(bits_of_results, 4, deadline_s=DEADLINE_S)
    assert job((1, 1, 1, 1), bits_of_results) == here


@pytest.mark.parametrize("layout", [(2, 2), (1, 3)], ids=named)
def test_all_ranks_get_the_same_bits(layout: Layout, job: Job) -> None:
    first, *others = job(layout, bits_of_results)
    assert all(other == first for other in others)


@pytest.mark.parametrize("layout", [(2, 2), (1, 3)], ids=named)
def test_sixteen_bits_have_those_of_one_host_wherever_ranks_are(layout: Layout, job: Job) -> None:
    """They are summed in float32 and rounded once."""
    here = run_ranks(bits_of_results, sum(layout), deadline_s=DEADLINE_S)
    for mine, theirs in zip(here, job(layout, bits_of_results), strict=True):
        shorts = [name for name in mine if name.startswith(("float16", "bfloat16"))]
        assert shorts
        assert [theirs[name] for name in shorts] == [mine[name] for name in shorts]


def test_the_default_bucket_of_25_mib_and_one_element_either_side(job: Job) -> None:
    job((1, 1), collective_checks.odd_sizes_around_25_mib)


@pytest.mark.parametrize("layout", [(2, 1), (2, 2)], ids=named)
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(program=programs)
def test_programs(program: list[Step], layout: Layout, four_hosts: list[Host]) -> None:
    run_ranks_on(four_hosts, layout, run_program, program)
