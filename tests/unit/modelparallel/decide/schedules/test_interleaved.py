# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule `interleaved`: who does what when as tables, its bubble, and what it keeps."""

from __future__ import annotations

import pytest

from smdistributed.modelparallel.decide.schedules.interleaved import Interleaved
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.decide.schedules.simulation import Visit, predict
from tests.unit.modelparallel.decide.schedules.ways import chain, table


@pytest.mark.parametrize(
    ("microbatches", "active", "ranks", "expected"),
    [
        # The example of the specification, section 3.6.
        (4, 2, 2, ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
        (4, 1, 2, ["F0 B0 F1 B1 F2 B2 F3 B3"] * 2),
        (3, 3, 1, ["F0 B0 F1 B1 F2 B2"]),
        (
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
    microbatches: int, active: int, ranks: int, expected: list[str]
) -> None:
    assert table(Interleaved(microbatches, active), chain(ranks)) == expected


def test_a_way_may_lead_back_to_the_leader() -> None:
    # The head and the loss of a model whose embedding and head share a weight.
    way = [Visit(0, 1, 1), Visit(1, 1, 1), Visit(0, 0.5, 0.5)]
    expected = ["F0 F1 F0 B0 F1 B1 B0 B1", "F0 F1 B0 B1"]
    assert table(Interleaved(2, 2), way) == expected


@pytest.mark.parametrize(
    ("ranks", "microbatches", "makespan", "bubble"),
    [
        # (m + p - 1) slots of forward and backward, of which p - 1 are the bubble.
        (2, 4, 10.0, 1 / 5),
        (4, 8, 22.0, 3 / 11),
        (1, 8, 16.0, 0.0),
    ],
)
def test_the_bubble_of_equal_stages(
    ranks: int, microbatches: int, makespan: float, bubble: float
) -> None:
    predicted = predict(Interleaved(microbatches, ranks + 2), chain(ranks))
    assert predicted.makespan_s == pytest.approx(makespan)
    assert predicted.floor_s == pytest.approx(makespan)
    assert predicted.bubble == pytest.approx(bubble)


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_a_bound_keeps_activations_few(bound: int) -> None:
    predicted = predict(Interleaved(16, bound), chain(2))
    assert predicted.peak_microbatches[0] == bound
    assert predicted.peak_activation_bytes[0] == bound * 10


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_backward_pass_comes_first(is_leader: bool) -> None:
    tasks = [Task(phase, number) for phase in Phase for number in (1, 0)]
    tasks.sort(key=lambda task: Interleaved(2, 2).priority(task, is_leader))
    assert [str(task) for task in tasks] == ["B0", "B1", "F0", "F1"]
