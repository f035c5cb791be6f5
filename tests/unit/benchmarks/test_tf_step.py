# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which ratio comes of the turns of a tf_step run, and when its targets are met."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

FOLDER = "tf_step"  # whose modules `load` imports

Load = Callable[[str], ModuleType]


def test_a_call_takes_as_long_as_its_slowest_rank(load: Load) -> None:
    assert load("common.rounds").slowest([[1.0, 5.0], [2.0, 3.0]]) == [2.0, 5.0]


def test_ratios_are_of_turns_of_one_round(load: Load) -> None:
    """The machine is slower by ten in the second round, which touches both alike."""
    turns = [[0.2, 0.2, 9.0], [2.0, 2.0, 2.0], [0.4, 0.4, 0.4]]
    others = [[0.1], [1.0], [0.1]]
    assert load("turns").ratios(turns, others) == {"median": 2.0, "p10": 2.0, "p90": 4.0}


def test_summary(load: Load) -> None:
    found = load("turns").summarise([[0.001, 0.002, 0.003], [0.010, 0.011, 0.012]])
    assert found["turns"] == 2
    assert found["calls"] == 6
    assert found["best_ms"] == 1.0
    assert found["median_ms"] == 6.5
    assert (found["p10_ms"], found["p90_ms"]) == (1.0, 12.0)


@pytest.mark.parametrize(
    ("times_faster", "small_ms", "step", "met"),
    [
        (10.0, 0.3, 1.10, [True, True, True]),
        (9.99, 0.3, 1.10, [False, True, True]),
        (10.0, 0.301, 1.10, [True, False, True]),
        (10.0, 0.3, 1.101, [True, True, False]),
    ],
)
def test_targets(
    times_faster: float, small_ms: float, step: float, met: list[bool], load: Load
) -> None:
    def ratio(middle: float) -> dict[str, float]:
        return {"median": middle, "p10": middle - 1, "p90": middle + 1}

    def sums(ranks: int, num_bytes: int) -> dict[str, Any]:
        columns = {"smddp": {"median_ms": small_ms}}
        to_ours = {"tensorflow": ratio(times_faster)}
        return {"ranks": ranks, "bytes": num_bytes, "columns": columns, "to_smddp": to_ours}

    content = {
        "collectives": [sums(2, 25 << 20), sums(2, 4), sums(2, 4096), sums(4, 4)],
        "steps": [{"ranks": ranks, "to_compute": {"tape": ratio(step)}} for ranks in (2, 4)],
    }
    assert [is_met for *_, is_met in load("report").targets(content)] == met
