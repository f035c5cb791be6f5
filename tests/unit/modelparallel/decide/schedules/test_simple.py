# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule `simple`: who does what when as tables, its bubble, and what it keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.decide.schedules.simple import Simple
from smdistributed.modelparallel.decide.schedules.simulation import Visit, predict
from tests.unit.modelparallel.decide.schedules.ways import chain, table, ways


@pytest.mark.parametrize(
    ("microbatches", "active", "ranks", "expected"),
    [
        (4, 2, 2, ["F0 F1 F2 F3 B0 B1 B2 B3"] * 2),
        (3, 3, 1, ["F0 F1 F2 B0 B1 B2"]),
    ],
)
def test_who_does_what_when(
    microbatches: int, active: int, ranks: int, expected: list[str]
) -> None:
    assert table(Simple(microbatches, active), chain(ranks)) == expected


def test_the_bubble_of_equal_stages() -> None:
    # (m + p - 1) slots of forward and backward, of which p - 1 are the bubble.
    predicted = predict(Simple(4, 4), chain(2))
    assert predicted.makespan_s == pytest.approx(10.0)
    assert predicted.floor_s == pytest.approx(10.0)
    assert predicted.bubble == pytest.approx(1 / 5)


def test_it_keeps_all_whatever_the_user_allows() -> None:
    predicted = predict(Simple(16, 2), chain(2))
    assert predicted.peak_microbatches == {0: 16, 1: 16}


@given(way=ways, microbatches=st.integers(1, 8), active=st.integers(1, 8))
def test_the_leader_ends_all_forward_passes_first(
    way: list[Visit], microbatches: int, active: int
) -> None:
    leader = predict(Simple(microbatches, active), way).runs[way[0].rank]
    last_forward = max(run.end_s for run in leader if run.task.phase is Phase.FORWARD)
    first_backward = min(run.begin_s for run in leader if run.task.phase is Phase.BACKWARD)
    assert last_forward <= first_backward + 1e-9


@pytest.mark.parametrize(
    ("is_leader", "expected"),
    [(True, ["F0", "F1", "B0", "B1"]), (False, ["B0", "B1", "F0", "F1"])],
)
def test_what_comes_first(is_leader: bool, expected: list[str]) -> None:
    tasks = [Task(phase, number) for phase in Phase for number in (1, 0)]
    tasks.sort(key=lambda task: Simple(2, 2).priority(task, is_leader))
    assert [str(task) for task in tasks] == expected
