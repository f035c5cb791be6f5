# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Records of ranks that kept to a schedule: the timeline tells what the schedule said."""

from __future__ import annotations

import dataclasses

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.modelparallel.decide.schedules import SCHEDULES
from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.decide.schedules.simulation import Visit, predict
from smdistributed.modelparallel.report.expectation import expect
from smdistributed.modelparallel.report.records import Stretch
from smdistributed.modelparallel.report.timeline import order_of, timelines, typical, way_of
from tests.unit.modelparallel.report.synthetic import MS, records, settings

EVEN = [Visit(0, 10, 20), Visit(1, 10, 20)]
# No two things end at the same time: who comes first then is decided by the last bit.
THERE_AND_BACK = [Visit(0, 10, 20), Visit(1, 21.3, 43.7), Visit(0, 5.1, 10.2)]


def _in_ms(way: list[Visit]) -> list[tuple[int, float, float]]:
    return [(v.rank, round(1e3 * v.forward_s, 3), round(1e3 * v.backward_s, 3)) for v in way]


@pytest.mark.parametrize(
    ("way", "pipeline"),
    [*((EVEN, name) for name in SCHEDULES), (THERE_AND_BACK, "interleaved")],
)
def test_the_way_and_the_bubble_are_those_of_the_schedule(way: list[Visit], pipeline: str) -> None:
    chosen = settings(pipeline=pipeline)
    steps = timelines(records(way, chosen))
    found = way_of(steps)
    assert _in_ms(found) == [(v.rank, v.forward_s, v.backward_s) for v in way]
    expected = expect(found, chosen)
    for partition in range(2):
        assert typical(steps).bubble(partition) == pytest.approx(expected.bubble[partition])


def test_a_phase_that_nobody_has_heard_of_is_work_of_the_way_back() -> None:
    chosen = settings()
    changed = []
    for record in records(EVEN, chosen):
        steps = tuple(
            dataclasses.replace(
                step,
                stretches=tuple(
                    each._replace(phase="X") if each.phase == Phase.BACKWARD.value else each
                    for each in step.stretches
                ),
            )
            for step in record.steps
        )
        changed.append(dataclasses.replace(record, steps=steps))
    assert _in_ms(way_of(timelines(changed))) == [(0, 10, 20), (1, 10, 20)]


def test_what_is_too_short_to_be_a_visit_counts_where_its_rank_is() -> None:
    # Handing on a result takes the leader a moment.
    way = [Visit(0, 10, 20), Visit(1, 10, 20), Visit(0, 0.1, 0.2)]
    assert _in_ms(way_of(timelines(records(way, settings())))) == [
        (0, 10.1, 20.2),
        (1, 10, 20),
    ]


def test_clocks_of_two_hosts_are_put_on_one() -> None:
    ahead = 5_000_000_000 * MS
    one = timelines(records(EVEN, settings()))[1]
    other = timelines(records(EVEN, settings(), offsets_ns=(0, ahead)))[1]
    for mine, theirs in zip(one.spans[1], other.spans[1], strict=True):
        # Steps tie the clocks together to the time between a last message and the end.
        assert theirs.begin_s == pytest.approx(mine.begin_s, abs=50e-6)


def test_steps_that_some_rank_lacks_are_left_out() -> None:
    first, second = records(EVEN, settings())
    second = dataclasses.replace(second, steps=second.steps[1:])
    assert [step.number for step in timelines([first, second])] == [2, 3]
    second = dataclasses.replace(second, steps=second.steps[:0])
    with pytest.raises((ConfigurationError, ValueError)):
        timelines([first, second])


@pytest.mark.parametrize("way", [EVEN, THERE_AND_BACK])
def test_the_order_is_that_of_the_schedule(way: list[Visit]) -> None:
    chosen = settings()
    runs = predict(chosen.schedule(), way).runs
    for record in records(way, chosen):
        own = [visit for visit in way if visit.rank == record.partition]
        found = order_of(record.steps[0].stretches, len(own))
        assert found == [run.task for run in runs[record.partition]]


def test_what_only_hands_on_is_no_pass_of_its_own() -> None:
    stretches = [
        Stretch("F", 0, 0, 1000),
        Stretch("B", 0, 1000, 1010),  # asks another rank to go back
        Stretch("F", 1, 1010, 2010),
        Stretch("X", 0, 2010, 4010),  # of a newer release: work of the way back
        Stretch("W", 0, 4010, 4020),  # of 2.0 with zero_bubble: likewise
        Stretch("W", 0, 4020, 4030),
    ]
    names = [str(task) for task in order_of(stretches, 1)]
    assert names == ["F0", "F1", "B0"]
