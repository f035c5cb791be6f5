# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What counts as a pair of turns, which ratio comes of it, and what a run for the targets measures.

Times are in microseconds: `(round, core state, best, median)`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

Load = Callable[[str], ModuleType]
Turns = list[tuple[int, str, float, float]]


def evaluate(load: Load, options: dict[str, Any], columns: dict[str, Turns]) -> list[Any]:
    """Outcomes of one target, own column `own` and peer `peer`, in a run with these columns."""
    case = load("cases").Case("all_reduce", "f32", 2, 4)
    target = load("targets").Target(case, "own", "peer", **options)
    names = ("round", "tag", "best_us", "median_us")
    row = {
        library: {"turns": [dict(zip(names, turn, strict=True)) for turn in turns]}
        for library, turns in columns.items()
    }
    outcomes: list[Any] = load("targets").evaluate(target, {("all_reduce", "f32", 2, 4): row})
    return outcomes


@pytest.mark.parametrize(
    ("own", "peer", "pairs"),
    [
        pytest.param([(0, "split", 1, 2)], [(0, "split", 1, 2)], {"split": 1}, id="a pair"),
        pytest.param([(0, "split", 1, 2)], [(1, "split", 1, 2)], {}, id="other rounds"),
        pytest.param([(0, "split", 1, 2)], [(0, "far", 1, 2)], {}, id="other states"),
        pytest.param([(0, "mixed", 1, 2)], [(0, "mixed", 1, 2)], {}, id="no one state"),
        pytest.param(
            [(0, "split", 1, 2), (1, "far", 1, 2), (2, "far", 1, 2), (3, "far", 1, 2)],
            [(0, "split", 1, 2), (1, "far", 1, 2), (3, "far", 1, 2)],
            {"split": 1, "far": 2},
            id="each state by itself",
        ),
    ],
)
def test_a_pair_is_of_one_round_and_one_core_state(
    load: Load, own: Turns, peer: Turns, pairs: dict[str, int]
) -> None:
    outcomes = evaluate(load, {"factor": 1.0}, {"own": own, "peer": peer})

    assert {outcome.tag: outcome.pairs for outcome in outcomes} == pairs


@pytest.mark.parametrize(
    ("options", "own_us", "peer_us", "ratio", "is_reached"),
    [
        pytest.param({"factor": 1.2}, 12.0, 10.0, 1.2, True, id="just within"),
        pytest.param({"factor": 1.2}, 13.0, 10.0, 1.3, False, id="not within"),
        pytest.param({"factor": 1 / 4}, 10.0, 40.0, 4.0, True, id="just as many times as fast"),
        pytest.param({"factor": 1 / 4}, 10.0, 39.0, 3.9, False, id="fewer times as fast"),
        pytest.param({"factor": 2.0, "granted_us": 6.0}, 26.0, 10.0, 2.0, True, id="granted"),
        pytest.param({"factor": 2.0, "granted_us": 6.0}, 39.0, 10.0, 3.0, False, id="too little"),
    ],
)
def test_the_ratio_is_compared_with_the_number_of_the_target(
    load: Load,
    options: dict[str, Any],
    own_us: float,
    peer_us: float,
    ratio: float,
    is_reached: bool,
) -> None:
    columns = {"own": [(0, "smt", own_us, own_us)], "peer": [(0, "smt", peer_us, peer_us)]}

    (outcome,) = evaluate(load, options, columns)

    assert outcome.ratios == pytest.approx((ratio, ratio))
    assert outcome.is_reached == (is_reached, is_reached)


def test_best_is_of_all_pairs_and_median_of_their_ratios(load: Load) -> None:
    columns = {
        "own": [(0, "far", 4, 10), (1, "far", 2, 20), (2, "far", 3, 30), (3, "smt", 1, 1)],
        "peer": [(0, "far", 8, 10), (1, "far", 9, 40), (2, "far", 6, 90), (3, "far", 1, 1)],
    }

    (outcome,) = evaluate(load, {"factor": 1 / 3}, columns)

    assert outcome.own_us == (2, 20)
    assert outcome.peer_us == (6, 40)
    assert outcome.ratios == pytest.approx((3.0, 2.0))  # 6 / 2, and the median of 1, 2 and 3
    assert outcome.is_reached == (True, False)


def test_a_granted_column_counts_as_time_of_the_peer_and_has_to_be_of_the_round(load: Load) -> None:
    columns = {
        "own": [(0, "split", 7, 9), (1, "split", 1, 1)],
        "peer": [(0, "split", 2, 3), (1, "split", 5, 5)],
        "noop": [(0, "split", 5, 7), (1, "far", 5, 5)],
    }

    (outcome,) = evaluate(load, {"factor": 1.0, "granted": "noop"}, columns)

    assert outcome.pairs == 1
    assert outcome.granted_us == (5, 7)
    assert outcome.ratios == pytest.approx((1.0, 0.9))
    assert outcome.is_reached == (True, True)


def test_a_target_holds_in_its_core_states_only(load: Load) -> None:
    turns = [(0, "smt", 1.0, 1.0), (1, "far", 1.0, 1.0)]

    outcomes = evaluate(load, {"factor": 1.0, "tags": ("far",)}, {"own": turns, "peer": turns})

    assert [outcome.tag for outcome in outcomes] == ["far"]


def test_a_column_that_was_not_measured_gives_no_outcome(load: Load) -> None:
    assert evaluate(load, {"factor": 1.0}, {"own": [(0, "smt", 1.0, 1.0)]}) == []


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_run_for_the_targets_has_a_round_of_the_columns_of_each(load: Load, ranks: int) -> None:
    targets = [target for target in load("targets").TARGETS if target.case.ranks == ranks]
    everything = {column.library for target in targets for column in target.columns}

    blocks = load("plan").target_blocks(ranks, everything, None, None)

    rounds = [columns for block in blocks for columns in block.sets]
    assert set(rounds) == {target.columns for target in targets}
    assert len(rounds) == len(set(rounds))


def test_a_target_without_one_of_its_libraries_is_not_measured_in_part(load: Load) -> None:
    (block, *_) = load("plan").target_blocks(4, {"smddp-direct", "openmpi"}, None, None)

    assert {column.library for column in block.columns} == {"smddp-direct", "openmpi"}
    assert block.case.size_bytes == 4  # those through torch are left out
