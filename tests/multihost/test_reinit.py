# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A process whose group has ended, well or badly, goes on with a new one, and nothing is left over.

Each job lives many lives in the same processes; every one but the first begins where another ended.

Source: our choice; docs/architecture.md, "How it fails".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.multihost.hosts import Host, network
from tests.multihost.placement import running_ranks_on
from tests.multihost.reinit_ranks import Held, milestones_of

RANKS = "tests.multihost.reinit_ranks"
DEADLINE_S = 150.0
LIVES = ["well", "aborted", "well", "disagreed", "timed out"]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.fixture
def two_hosts() -> Iterator[list[Host]]:
    with network(2, gbit=1) as hosts:
        yield hosts


def look_at_what_is_left(held_by_rank: list[list[Held]]) -> None:
    """No more than after the first life, when everything that comes once per process is there.

    Fewer is possible: torch's store closes its connections in its own time.
    """
    for rank, held in enumerate(held_by_rank):
        for number, after in enumerate(held[1:], 1):
            assert after.is_within(held[0]), f"rank {rank}, after life {number}: {after}, {held[0]}"


def cut_and_heal(hosts: Sequence[Host], folder: str, endings: Sequence[str], job: Any) -> None:
    """Part the hosts in each life that ends so."""
    for number, ending in enumerate(endings):
        if ending == "cut":
            milestones = milestones_of(folder, number)
            milestones.wait_for("running", range(4), job)
            hosts[1].silence()
            milestones.wait_for("told", range(4), job)
            for host in hosts:
                host.heal()
            Path(milestones.folder, "healed").touch()


@pytest.mark.parametrize(
    ("layout", "endings"),
    [((1, 1), [*LIVES, "well"]), ((2, 2), [*LIVES, "cut", "well"])],
    ids=["2x1", "2x2"],
)
def test_a_communicator_after_another(
    layout: tuple[int, ...], endings: list[str], two_hosts: list[Host], tmp_path: Path
) -> None:
    with running_ranks_on(
        two_hosts,
        layout,
        f"{RANKS}:engine_lives",
        str(tmp_path),
        endings,
        deadline_s=DEADLINE_S,
    ) as job:
        cut_and_heal(two_hosts, str(tmp_path), endings, job)
        look_at_what_is_left(job.result())


@pytest.mark.parametrize(
    ("layout", "one_store", "endings"),
    [((1, 1), False, [*LIVES, "well"]), ((2, 2), True, [*LIVES, "cut", "well"])],
    ids=["2x1", "2x2-one_store"],
)
def test_init_process_group_after_destroy_process_group(
    layout: tuple[int, ...],
    one_store: bool,
    endings: list[str],
    two_hosts: list[Host],
    tmp_path: Path,
) -> None:
    with running_ranks_on(
        two_hosts,
        layout,
        f"{RANKS}:torch_lives",
        str(tmp_path),
        endings,
        one_store,
        deadline_s=DEADLINE_S,
    ) as job:
        cut_and_heal(two_hosts, str(tmp_path), endings, job)
        look_at_what_is_left(job.result())
