# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Steps are right, and end, in whatever order messages come.

Between two ranks order is kept; messages of different ranks, and what a rank does meanwhile, may
interleave in any way. Here a test decides how (ordered_channel.py), so a seed that fails fails
again, and a step that would wait forever fails at once, with what each rank waits for.

Source: modelparallel specification, sections 3.6, 3.12 and 8; our choice of failures.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import run_ranks

RANKS = str(Path(__file__).with_name("message_order_ranks.py"))
DEADLINE_S = 240.0

# Kinds of courses, see there, and seeds. Few of what is drawn, as a course takes 0.2 s; but all
# ways are "repeated", and all that can go wrong does where the leader is "late": that found most.
SEEDS: dict[str, Sequence[int]] = {
    "good": range(4),
    "repeated": range(16),
    "random": range(4),
    "program": range(6),
    "failing": range(4),
    "caught": range(6),
    "late": [*range(36), *range(70, 216, 35)],
}
MANY = range(1000, 1150)
PROGRAMS = range(1000, 2000)  # on 2 and on 3 ranks

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


def _run(name: str, ranks: int, *args: Any, deadline_s: float = DEADLINE_S) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        return run_ranks(f"{RANKS}:{name}", ranks, folder, *args, deadline_s=deadline_s)


@functools.cache
def _findings(ranks: int) -> list[tuple[dict[str, list[str]], list[int], int]]:
    courses = [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds]
    return _run("run_courses", ranks, courses)


@pytest.mark.parametrize("kind", SEEDS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_any_order_will_do(ranks: int, kind: str) -> None:
    found = [wrong for wrong, _, _ in _findings(ranks)]
    all_wrong = [f"rank {rank}: {each}" for rank, wrong in enumerate(found) for each in wrong[kind]]
    assert not all_wrong, "\n".join(all_wrong)


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_last_backward_pass_is_foreseen_somewhere(ranks: int) -> None:
    """Or that it is foreseen too early could not be seen in "repeated"."""
    times = [num_noticed for _, _, num_noticed in _findings(ranks)]
    assert all(times[:2]), times


@pytest.mark.parametrize("pipeline", ["interleaved", "simple"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_error_comes_while_a_microbatch_waits_for_its_turn(ranks: int, pipeline: str) -> None:
    """Up to 80eb003 the failed program was asked to go back, and the step waited for it forever."""
    found = _run("an_error_comes_while_a_microbatch_waits_for_its_turn", ranks, pipeline)
    assert not any(wrong for wrong, _ in found), found
    assert found[0][1] == 4, "in each of four steps it came at that moment"


def test_a_seed_names_a_course_of_events() -> None:
    courses = [("good", 0), ("good", 1), ("random", 2)]
    first, again = (_run("run_courses", 3, courses) for _ in range(2))
    digests = [rank[1] for rank in first]
    assert digests == [rank[1] for rank in again]
    assert len(set(digests[0])) == 3


def test_a_hang_is_found_at_once() -> None:
    told = _run("waits_for_what_nobody_sends", 3)
    assert all("no rank can go on" in each for each in told), told
    assert any("rank 0: a message; rank 1: a message; rank 2: a message" in each for each in told)


@pytest.mark.slow
@pytest.mark.timeout(3700)
@pytest.mark.parametrize("ranks", [2, 3])
def test_many_orders(ranks: int) -> None:
    courses = [(kind, seed) for kind in SEEDS for seed in MANY]
    for rank, (wrong, _, _) in enumerate(_run("run_courses", ranks, courses, deadline_s=3600.0)):
        assert not any(wrong.values()), f"rank {rank}: {wrong}"


@pytest.mark.slow
@pytest.mark.timeout(3700)
@pytest.mark.parametrize("ranks", [2, 3])
def test_many_programs(ranks: int) -> None:
    courses = [("program", seed) for seed in PROGRAMS]
    for rank, (wrong, _, _) in enumerate(_run("run_courses", ranks, courses, deadline_s=3600.0)):
        assert not any(wrong.values()), f"rank {rank}: {wrong}"
