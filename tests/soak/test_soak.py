# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The soak itself for some seconds, and that it would notice what it looks for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launchers import launch_command, run_to_end

from tests.soak.data import MAX_RANKS, PERIOD, check, reduced, table, tile
from tests.soak.plan import COLLECTIVES, FLOATS, INTEGERS, LANES, plan_lane
from tests.soak.usage import MIB, Usage, growth, measure

# Ranks that truly run at the same time, with all processors to themselves.
pytestmark = pytest.mark.quiet

ROOT = Path(__file__).resolve().parents[2]
QUIET = Usage(private_bytes=300 * MIB, shared_bytes=200 * MIB, descriptors=40, threads=9)


def soak(*options: str, timeout_s: float = 110.0) -> tuple[int, str]:
    """Exit status and output of `tests.soak.run` on four ranks."""
    command = [*launch_command("smddprun", 4), "-m", "tests.soak.run", *options]
    ended = run_to_end(command, folder=ROOT, timeout_s=timeout_s)
    return ended.returncode, ended.stdout


@pytest.mark.fresh
def test_six_rounds_pass() -> None:
    status, output = soak("--rounds", "6", "--seed", "7")
    assert status == 0, output
    assert "soak passed" in output
    assert "every result was right and nothing grew" in output
    shared = re.search(r"used (\d+) shared tensors", output)
    assert shared is not None
    assert int(shared[1]) > 10, output
    assert "held addresses (" in output


def test_plans_depend_on_seed_round_and_lane_alone() -> None:
    plan = plan_lane(1, 5, 0, 4, 30)
    assert plan == plan_lane(1, 5, 0, 4, 30)
    others = [plan_lane(2, 5, 0, 4, 30), plan_lane(1, 6, 0, 4, 30), plan_lane(1, 5, 1, 4, 30)]
    assert plan not in others


def test_plans_cover_everything() -> None:
    calls = [
        call
        for number in range(10)
        for lane in range(LANES)
        for step in plan_lane(1, number, lane, 4, 60).steps
        for call in step.calls
    ]
    assert {call.collective for call in calls} == set(COLLECTIVES)
    assert {call.dtype for call in calls} == {*FLOATS, *INTEGERS}
    assert {call.memory for call in calls} == {"fresh", "foreign", "view", "slot"}
    assert min(call.count for call in calls) < 16
    assert max(call.count for call in calls) > 1 << 20


def test_parts_are_whole_and_calls_of_a_step_share_no_buffer() -> None:
    for world_size in (2, 3, 4):
        plan = plan_lane(3, 0, 0, world_size, 200)
        for step in plan.steps:
            for call in step.calls:
                assert call.count % len(plan.groups[call.group]) == 0
            slots = [call.slot for call in step.calls if call.slot is not None]
            assert len(slots) == len(set(slots))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_results_are_exact_in_every_type(dtype: str) -> None:
    tables = [table(11, rank) for rank in range(MAX_RANKS)]
    for op in ("SUM", "MIN", "MAX", "PRODUCT"):
        expected = reduced(tables, op)
        assert torch.equal(expected.to(getattr(torch, dtype)).to(torch.int64), expected)


def test_averages_are_whole_numbers() -> None:
    for ranks in (2, 3, 4):
        tables = [table(11, rank, "AVG") for rank in range(ranks)]
        total = reduced(tables, "SUM")
        assert torch.equal(reduced(tables, "AVG") * ranks, total)
        assert int(total.max()) <= 144


def test_elements_tell_their_rank_and_their_place() -> None:
    here, there = table(1, 0), table(1, 1)
    assert 0.2 < (here == there).float().mean() < 0.5
    assert 0.2 < (here == here.roll(1)).float().mean() < 0.5


@pytest.mark.parametrize("where", [0, PERIOD, 3 * PERIOD - 1])
def test_one_wrong_element_is_found(where: int) -> None:
    period = table(1, 0)
    got = tile(period, 100, 3 * PERIOD, torch.float32)
    check("the data as they should be", got, period, 100)
    got[where] += 1
    with pytest.raises(AssertionError, match=f"element {where} of {3 * PERIOD}"):
        check("one wrong", got, period, 100)


def test_data_at_a_wrong_place_are_found() -> None:
    period = table(1, 0)
    with pytest.raises(AssertionError, match="The result of a collective is wrong"):
        check("shifted", tile(period, 1, 500, torch.uint8), period, 0)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("private_bytes", 5 * MIB),
        ("shared_bytes", 6 * MIB),
        ("descriptors", 1),
        ("threads", 1),
    ],
)
def test_steady_growth_is_found(name: str, step: int) -> None:
    leaking = [replace(QUIET, **{name: getattr(QUIET, name) + n * step}) for n in range(30)]
    words = growth(leaking)
    assert words is not None
    assert words.startswith(f"{name} has grown")
    assert "Look for what is not given back" in words


def test_what_comes_and_goes_is_no_growth() -> None:
    peak = replace(QUIET, private_bytes=500 * MIB, threads=12, descriptors=90)
    assert growth([QUIET, peak] * 15) is None
    assert growth([QUIET] * 10 + [peak] * 5 + [QUIET] * 15) is None


def test_the_first_rounds_do_not_count() -> None:
    begin = [replace(QUIET, private_bytes=n * 50 * MIB, threads=n) for n in range(4)]
    assert growth([*begin, *[QUIET] * 12]) is None
    assert growth([*begin, *[QUIET] * 8, *[replace(QUIET, threads=20)] * 3]) is None  # too few
    assert growth([*begin, *[QUIET] * 8, *[replace(QUIET, threads=20)] * 4]) is not None


def test_a_process_is_measured() -> None:
    before = measure()
    with Path(__file__).open():
        memory = torch.ones(64 * MIB, dtype=torch.uint8)
        during = measure()
    assert during.descriptors == before.descriptors + 1
    assert during.private_bytes >= before.private_bytes + 60 * MIB
    assert during.threads >= 1
    assert int(memory[-1]) == 1
