# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Every fault of docs/faults.md: each rank is told what it must be told, and nothing is left.

How long it takes is not asserted; `make faults` measures it. Timeouts are far away, so that an
error that had to wait for one shows by its class.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multihost.fault_ranks import Told
from tests.multihost.fault_run import DEADLINE_S, RANKS, Fault, Record, check, run
from tests.multihost.fault_table import page
from tests.multihost.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.slow if fault.is_long else (), id=fault.name)
        for fault in FAULTS
    ],
)
def test_every_rank_is_told_and_nothing_is_left(fault: Fault, tmp_path: Path) -> None:
    check(fault, run(fault, tmp_path))


def test_every_fault_says_what_becomes_of_the_ranks_that_live() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    for fault in FAULTS:
        assert set(RANKS) - set(fault.verdicts) <= {fault.plan.victim}, fault.name


def test_the_page_has_a_row_for_every_fault() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    for fault in FAULTS:
        assert f"| {fault.name} | {fault.made_by} |" in text, "run `make faults`"
        assert f"### {fault.name[0].upper()}{fault.name[1:]}\n" in text, "run `make faults`"


def test_a_page_shows_ranks_that_say_the_same_together() -> None:
    fault = Fault("flood", "water comes in", lambda scene: None, {})
    told = [
        Told(
            "PeerLostError", f"barrier #1 on rank {rank} of 4 (host {host}, group 'g'): {text}", 2.5
        )
        for rank, host, text in [
            (0, "a", "wet; dry it."),
            (1, "a", "dry"),
            (2, "b", "wet; dry it."),
        ]
    ]
    output = ["noise", "[smdistributed] WARNING: rank 1/4: drips", "", ""]
    empty = (ROOT / "docs" / "faults.md").read_text()
    text = page(empty, [(fault, Record([*told, None], output, {}, 1.25, ["a puddle"]))])
    assert "| flood | water comes in | wet<br>dry | 1.25 | a puddle |" in text
    assert (
        "### Flood\n\nWater comes in.\n\n```text\n"
        "ranks 0, 2: PeerLostError: barrier #1 on rank 0 of 4 (host a, group 'g'): wet; dry it.\n"
        "rank 1: PeerLostError: barrier #1 on rank 1 of 4 (host a, group 'g'): dry\n"
        "rank 1 prints: [smdistributed] WARNING: rank 1/4: drips\n```\n"
    ) in text
