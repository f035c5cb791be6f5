# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The schedules: who does what when as tables, and what is true of every one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.modelparallel.schedule import Phase, Run, Schedule, Task, Visit, predict


def _chain(ranks: int) -> list[Visit]:
    return [Visit(rank, 1.0, 1.0, 10) for rank in range(ranks)]


def _table(pipeline: str, microbatches: int, active: int, way: Sequence[Visit]) -> list[str]:
    predicted = predict(Schedule.named(pipeline, microbatches, active), way)
    return [" ".join(predicted.order(rank)) for rank in predicted.runs]


@pytest.mark.parametrize(
    ("pipeline", "microbatches", "active", "ranks", "expected"),
    [
        # The example of the specification, section 3.6.
        (
            "interleaved",
            4,
            2,
            2,
            ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"],
        ),
        ("interleaved", 4, 1, 2, ["F0 B0 F1 B1 F2 B2 F3 B3"] * 2),
        ("simple", 4, 2, 2, ["F0 F1 F2 F3 B0 B1 B2 B3"] * 2),
        ("interleaved", 3, 3, 1, ["F0 B0 F1 B1 F2 B2"]),
        ("simple", 3, 3, 1, ["F0 F1 F2 B0 B1 B2"]),
        (
            "interleaved",
            4,
            4,
            3,
            [
                "F0 F1 F2 F3 B0 B1 B2 B3",
                "F0 F1 F2 B0 F3 B1 B2 B3",
                "F0 B0 F1 B1 F2 B2 F3 B3",
            ],
        ),
    ],
)
def test_who_does_what_when(
    pipeline: str, microbatches: int, active: int, ranks: int, expected: list[str]
) -> None:
    assert _table(pipeline, microbatches, active, _chain(ranks)) == expected


def test_a_way_may_lead_back_to_the_leader() -> None:
    # The head and the loss of a model whose embedding and head share a weight.
    way = [Visit(0, 1, 1), Visit(1, 1, 1), Visit(0, 0.5, 0.5)]
    expected = ["F0 F1 F0 B0 F1 B1 B0 B1", "F0 F1 B0 B1"]
    assert _table("interleaved", 2, 2, way) == expected


@pytest.mark.parametrize(
    ("pipeline", "ranks", "microbatches", "makespan", "bubble"),
    [
        # (m + p - 1) slots of forward and backward, of which p - 1 are the bubble.
        ("simple", 2, 4, 10.0, 1 / 5),
        ("interleaved", 2, 4, 10.0, 1 / 5),
        ("interleaved", 4, 8, 22.0, 3 / 11),
        ("interleaved", 1, 8, 16.0, 0.0),
    ],
)
def test_the_bubble_of_equal_stages(
    pipeline: str, ranks: int, microbatches: int, makespan: float, bubble: float
) -> None:
    schedule = Schedule.named(pipeline, microbatches, active_microbatches=ranks + 2)
    predicted = predict(schedule, _chain(ranks))
    assert predicted.makespan_s == pytest.approx(makespan)
    assert predicted.floor_s == pytest.approx(makespan)
    assert predicted.bubble == pytest.approx(bubble)


def test_a_bound_keeps_activations_few_and_the_simple_schedule_keeps_all() -> None:
    way = _chain(2)
    for bound in (1, 2, 3):
        predicted = predict(Schedule.named("interleaved", 16, bound), way)
        assert predicted.peak_microbatches[0] == bound
        assert predicted.peak_activation_bytes[0] == bound * 10
    predicted = predict(Schedule.named("simple", 16, 2), way)
    assert predicted.peak_microbatches == {0: 16, 1: 16}


def test_messages_take_their_time() -> None:
    near, far = (
        predict(Schedule.named("interleaved", 1, 1), _chain(2), latency_s=latency)
        for latency in (0.0, 0.25)
    )
    # To the other rank; the loss comes from it to the leader, and its gradient goes back; the
    # gradient of what it was sent returns.
    assert far.makespan_s - near.makespan_s == pytest.approx(4 * 0.25)


_times = st.floats(0.01, 10.0)


_visits = st.builds(Visit, st.integers(0, 3), _times, _times, st.integers(0, 1000))
_ways = st.lists(_visits, min_size=1, max_size=6)


@given(
    way=_ways,
    pipeline=st.sampled_from(["interleaved", "simple"]),
    microbatches=st.integers(1, 8),
    active=st.integers(1, 8),
    latency=st.sampled_from([0.0, 0.1]),
)
def test_what_is_true_of_every_schedule(
    way: list[Visit], pipeline: str, microbatches: int, active: int, latency: float
) -> None:
    schedule = Schedule.named(pipeline, microbatches, active)
    predicted = predict(schedule, way, latency)
    for rank, runs in predicted.runs.items():
        here = [visit for visit in way if visit.rank == rank]
        # Every microbatch makes each of its visits, forward and backward, one thing at a time.
        for phase, index in itertools.product(Phase, range(microbatches)):
            assert [run.task for run in runs].count(Task(phase, index)) == len(here)
        busy = sum(run.end_s - run.begin_s for run in runs)
        work = sum(visit.forward_s + visit.backward_s for visit in here) * microbatches
        assert busy == pytest.approx(work)
        assert all(a.end_s <= b.begin_s + 1e-9 for a, b in itertools.pairwise(runs))
        assert predicted.peak_microbatches[rank] <= schedule.bound
        for index in range(microbatches):
            forward = [run for run in runs if run.task == Task(Phase.FORWARD, index)]
            backward = [run for run in runs if run.task == Task(Phase.BACKWARD, index)]
            assert forward[-1].end_s <= backward[0].begin_s + 1e-9
    leader = predicted.runs[way[0].rank]
    firsts = _first(leader, Phase.FORWARD, microbatches)
    assert firsts == sorted(firsts)
    if pipeline == "simple":
        last_forward = max(run.end_s for run in leader if run.task.phase is Phase.FORWARD)
        first_backward = min(run.begin_s for run in leader if run.task.phase is Phase.BACKWARD)
        assert last_forward <= first_backward + 1e-9
    assert predicted.makespan_s >= predicted.floor_s - 1e-9
    assert 0.0 <= predicted.bubble < 1.0


def _first(runs: Sequence[Run], phase: Phase, microbatches: int) -> list[float]:
    return [
        next(run.begin_s for run in runs if run.task == Task(phase, index))
        for index in range(microbatches)
    ]
