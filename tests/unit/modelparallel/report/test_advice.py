# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a report says to do, of pipelines that are wrong in one way each."""

from __future__ import annotations

import dataclasses

import pytest

from smdistributed.modelparallel.decide.schedules.simulation import Visit
from smdistributed.modelparallel.report.advice import (
    Measured,
    Move,
    advise,
    better_moves,
    enough_microbatches,
)
from smdistributed.modelparallel.report.costs import Row, Settings
from smdistributed.modelparallel.report.expectation import Expected, expect
from tests.unit.modelparallel.report.synthetic import settings


def _rows(*seconds: tuple[int, float], movable: bool = True) -> list[Row]:
    return [
        Row(f"main/{index}", place, 1, "", movable, each / 3, each * 2 / 3)
        for index, (place, each) in enumerate(seconds)
    ]


def _expected(rows: list[Row], chosen: Settings) -> Expected:
    way = [
        Visit(
            place,
            sum(row.forward_s for row in rows if row.partition == place),
            sum(row.backward_s for row in rows if row.partition == place),
        )
        for place in range(2)
    ]
    return expect(way, chosen)


def _advice(rows: list[Row], chosen: Settings, measured: Measured | None = None) -> str:
    return "\n".join(advise(chosen, rows, _expected(rows, chosen), measured))


def test_nothing_to_say() -> None:
    text = _advice(_rows((0, 1.0), (1, 1.0)), settings(16))
    assert text.startswith("Nothing stands out: the busiest rank computes 94%")


def test_the_overloaded_partition_and_what_to_move() -> None:
    rows = _rows((0, 1.0), (1, 1.0), (1, 1.0), (1, 1.0))
    text = _advice(rows, settings(16))
    assert "Partition 1 is overloaded: it does 75% of the computing" in text
    # The first of it goes: what follows each other stays together.
    assert "Move main/1 to partition 0" in text
    assert "smp.set_partition" in text
    moves, after = better_moves(settings(16), rows)
    assert moves == [Move("main/1", 1, 0)]
    assert after.busy_s[0] == pytest.approx(after.busy_s[1])


@pytest.mark.parametrize(
    ("memory_weight", "expected"), [(0.8, '"optimize": "speed"'), (0.2, "trace_execution_times")]
)
def test_what_to_set_where_the_library_has_decided(memory_weight: float, expected: str) -> None:
    chosen = settings(16, auto_partition=True, memory_weight=memory_weight)
    assert expected in _advice(_rows((0, 1.0), (1, 1.0), (1, 1.0), (1, 1.0)), chosen)


def test_a_module_that_is_too_large_to_move() -> None:
    text = _advice(_rows((0, 1.0), (1, 9.0)), settings(16))
    assert "main/1 alone takes 90%" in text
    assert "Make it of several modules" in text
    text = _advice(_rows((0, 1.0), (1, 9.0), movable=False), settings(16))
    assert "It cannot move" in text


def test_too_few_microbatches_and_how_many_are_enough() -> None:
    rows, chosen = _rows((0, 1.0), (1, 1.0)), settings(2)
    text = _advice(rows, chosen)
    assert "Microbatches are too few" in text
    assert '"microbatches": 12 would bring that to 8%' in text
    found = enough_microbatches(chosen, _expected(rows, chosen))
    assert found is not None
    assert found[0] == 12
    # (m + p - 1) / m of the work, whatever m is.
    assert found[1].step_s == pytest.approx(2.0 * 13 / 12)


def test_too_few_active_ones() -> None:
    chosen = settings(16, active_microbatches=1, is_active_set=True)
    assert '"active_microbatches": 2' in _advice(_rows((0, 1.0), (1, 1.0)), chosen)


def test_time_that_nothing_explains() -> None:
    rows, chosen = _rows((0, 1.0), (1, 1.0)), settings(16)
    step_s = _expected(rows, chosen).step_s
    assert "Nothing stands out" in _advice(rows, chosen, Measured(step_s * 1.1, 1))
    text = _advice(rows, chosen, Measured(step_s * 2, 5))
    assert "50% of a step is neither computing nor the bubble" in text
    assert "5 pieces on partition 0" in text
    assert "Larger microbatches" in _advice(rows, chosen, Measured(step_s * 2, 1))


def test_more_microbatches_keep_a_bound_that_was_set() -> None:
    chosen = dataclasses.replace(settings(4), active_microbatches=2, is_active_set=True)
    assert chosen.with_microbatches(8).active_microbatches == 2
    assert settings(2).with_microbatches(8).active_microbatches == 4
