# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is true of every schedule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed.modelparallel.decide.schedules import SCHEDULES, schedule_named
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.decide.schedules.simulation import Run, Visit, predict
from tests.unit.modelparallel.decide.schedules.ways import ways


@given(
    way=ways,
    pipeline=st.sampled_from(list(SCHEDULES)),
    microbatches=st.integers(1, 8),
    active=st.integers(1, 8),
)
def test_what_is_true_of_every_schedule(
    way: list[Visit], pipeline: str, microbatches: int, active: int
) -> None:
    schedule = schedule_named(pipeline, microbatches, active)
    predicted = predict(schedule, way)
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
    assert predicted.makespan_s >= predicted.floor_s - 1e-9
    assert 0.0 <= predicted.bubble < 1.0


def _first(runs: Sequence[Run], phase: Phase, microbatches: int) -> list[float]:
    return [
        next(run.begin_s for run in runs if run.task == Task(phase, index))
        for index in range(microbatches)
    ]
