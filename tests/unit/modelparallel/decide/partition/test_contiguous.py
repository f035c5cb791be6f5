# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Contiguous placements: each rule by itself, and a comparison with exhaustive search."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

import pytest
from machine_speed import scaled

from smdistributed.modelparallel.decide.partition import contiguous
from smdistributed.modelparallel.decide.partition.contiguous import cut, next_best
from smdistributed.modelparallel.decide.partition.problem import Flow, Problem


def _chain(weights: Sequence[float], sizes: Sequence[int]) -> Problem:
    flows = [Flow(group, (group + 1,), size) for group, size in enumerate(sizes)]
    return Problem([weight / (sum(weights) or 1) for weight in weights], flows)


def test_few_bytes_come_first_as_long_as_no_run_is_a_tenth_above_the_mean() -> None:
    weights = [0.25, 0.25, 0.04, 0.01, 0.25, 0.20]  # runs of 0.45 to 0.55 are admitted
    assert cut(_chain(weights, [9, 9, 9, 8, 9]), 2) == [0, 0, 0, 0, 1, 1]
    assert cut(_chain(weights, [9, 9, 8, 9, 9]), 2) == [0, 0, 0, 1, 1, 1]
    assert cut(_chain(weights, [1, 8, 9, 9, 1]), 2) == [0, 0, 1, 1, 1, 1]


def test_of_ways_with_equal_bytes_the_best_balanced_one_is_taken() -> None:
    assert cut(_chain([5, 1.2, 0.5, 0.5, 5, 0.3], [7] * 5), 2) == [0, 0, 1, 1, 1, 1]
    assert cut(_chain([1] * 8, [7] * 7), 4) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_of_equally_good_ways_lower_partitions_get_more() -> None:
    assert cut(_chain([1] * 5, [7] * 4), 2) == [0, 0, 0, 1, 1]
    assert cut(_chain([1] * 5, [7] * 4), 3) == [0, 0, 1, 1, 2]
    assert cut(_chain([1, 0, 0, 1], [7] * 3), 2) == [0, 0, 0, 1]


def test_a_group_that_outweighs_the_others_raises_the_bound_just_enough() -> None:
    assert cut(_chain([1, 8, 1, 1], [1, 9, 9]), 2) == [0, 0, 1, 1]  # 9 is the least possible
    assert cut(_chain([1, 8, 1, 1], [9, 9, 9]), 3) == [0, 1, 2, 2]


def test_a_flow_to_several_groups_of_one_partition_crosses_once() -> None:
    # Cut after group 1, the flow of 10 crosses once; cut after group 2, two flows of 6 do.
    flows = [Flow(0, (2, 3, 4), 10), Flow(1, (3,), 3), Flow(2, (3,), 6), Flow(2, (4,), 6)]
    problem = Problem([0.2] * 5, flows)
    assert cut(problem, 2) == [0, 0, 1, 1, 1]
    assert problem.crossing_bytes([0, 0, 1, 1, 1]) == 13
    assert problem.crossing_bytes([0, 0, 0, 1, 1]) == 25
    assert problem.crossing_bytes([0, 0, 1, 1, 2]) == 29  # 10 to two partitions


def test_flows_that_go_back_count_as_well() -> None:
    forward = [Flow(group, (group + 1,), 2) for group in range(3)]
    assert cut(Problem([0.25] * 4, forward), 2) == [0, 0, 1, 1]
    heavy = Problem([0.24, 0.26, 0.02, 0.48], [*forward, Flow(2, (0,), 5)])
    assert cut(heavy, 2) == [0, 0, 0, 1]


@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
@pytest.mark.parametrize("num_groups", [0, 1, 2, 3])
def test_partitions_without_a_group_are_the_last_ones(num_groups: int, partitions: int) -> None:
    problem = _chain([1] * num_groups, [1] * (num_groups - 1))
    if num_groups <= partitions:
        assert cut(problem, partitions) == list(range(num_groups))
    assert len(next_best(problem, cut(problem, partitions))) == num_groups


def test_groups_may_weigh_nothing() -> None:
    assert cut(_chain([0, 0, 0], [3, 2]), 2) == [0, 0, 1]
    assert cut(_chain([0, 0, 0], [2, 3]), 2) == [0, 1, 1]


def test_the_next_best_place_is_told() -> None:
    problem = _chain([1, 1, 1, 1], [5, 6, 7])
    first, second, third, last = next_best(problem, [0, 0, 1, 1])
    assert first == (
        "in partition 1, with 1 more, the largest load would be 100.0% instead of 50.0%, and"
        " 0 bytes would cross instead of 6 (partition 0 would be empty)"
    )
    assert second == (
        "in partition 1 the largest load would be 75.0% instead of 50.0%, and"
        " 5 bytes would cross instead of 6 (55.0% is allowed)"
    )
    assert third == second.replace("partition 1", "partition 0").replace(" 5 bytes", " 7 bytes")
    assert last == first.replace("partition 1,", "partition 0,").replace(
        "partition 0 w", "partition 1 w"
    )
    assert next_best(problem, [0, 0, 0, 0]) == [""] * 4


# --- Exhaustive search ---


def _random_problem(chance: random.Random, num_groups: int) -> Problem:
    weights = [chance.choice([0, 1, 1, 2, 5, chance.random()]) for _ in range(num_groups)]
    flows = []
    for _ in range(chance.randrange(3 * num_groups)):
        ends = chance.sample(range(num_groups), chance.randint(1, min(4, num_groups)))
        if len(ends) > 1:  # in any direction
            flows.append(Flow(ends[0], tuple(sorted(ends[1:])), chance.choice([1, 2, 3, 50])))
    whole = sum(weights) or 1
    return Problem([weight / whole for weight in weights], flows)


def _crossing(problem: Problem, places: Sequence[int]) -> int:
    """From the definition and nothing else."""
    return sum(
        int(flow.size_bytes)
        for flow in problem.flows
        for place in range(len(places))
        if place != places[flow.producer] and any(places[each] == place for each in flow.consumers)
    )


def _by_exhaustive_search(problem: Problem, partitions: int) -> list[int]:
    """From the docstring of the module and nothing else."""
    num_groups = problem.num_groups
    whole = sum(problem.weights) or 1
    units = [round(weight / whole * 10**9) for weight in problem.weights]
    ways = [
        [sum(group >= begin for begin in begins) for group in range(num_groups)]
        for begins in itertools.combinations(range(1, num_groups), min(partitions, num_groups) - 1)
    ]

    def loads(places: list[int]) -> list[int]:
        return [
            sum(unit for unit, place in zip(units, places, strict=True) if place == wanted)
            for wanted in range(partitions)
        ]

    least = min(max(loads(places)) for places in ways)
    bound = max(sum(units) * 1.1 / min(partitions, num_groups), least)
    return min(
        (places for places in ways if max(loads(places)) <= bound),
        key=lambda places: (
            _crossing(problem, places),
            sum(load**2 for load in loads(places)),
            places,
        ),
    )


@pytest.mark.parametrize("seed", range(200))
def test_small_problems_are_solved_as_by_exhaustive_search(seed: int) -> None:
    chance = random.Random(seed)
    problem = _random_problem(chance, chance.randint(1, 12))
    partitions = chance.randint(1, 6)
    found = cut(problem, partitions)
    assert found == _by_exhaustive_search(problem, partitions)
    assert _crossing(problem, found) == problem.crossing_bytes(found)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_next_best_place_would_do_is_what_it_does(seed: int) -> None:
    chance = random.Random(seed)
    problem = _random_problem(chance, chance.randint(2, 12))
    places = cut(problem, chance.randint(2, 4))
    for group, text in enumerate(next_best(problem, places)):
        target = int(text.removeprefix("in partition ").split(",")[0].split()[0])
        low, high = sorted((places[group], target))
        tried = [
            target
            if place == places[group] and (each <= group if target == low else each >= group)
            else place
            for each, place in enumerate(places)
        ]
        assert high - low == 1
        assert f" {_crossing(problem, tried):,} bytes would cross instead of" in text


# --- Large problems ---


def _large_problem(num_groups: int, *, is_one_heavy: bool) -> Problem:
    chance = random.Random(1)
    weights = [chance.random() for _ in range(num_groups)]
    if is_one_heavy:
        weights[num_groups // 3] = sum(weights)
    flows = [
        Flow(group, tuple(sorted({group + 1, far})), chance.randrange(10**9))
        for group in range(num_groups - 1)
        for far in [min(num_groups - 1, group + chance.choice([1, 1, 2, 30]))]
    ]
    return Problem([weight / sum(weights) for weight in weights], flows)


@pytest.mark.parametrize("is_one_heavy", [False, True], ids=["alike", "one heavy"])
def test_two_thousand_groups_take_two_seconds_at_most(is_one_heavy: bool) -> None:
    problem = _large_problem(2_000, is_one_heavy=is_one_heavy)
    begin = time.process_time()
    places = cut(problem, 8)
    next_best(problem, places)
    assert time.process_time() - begin < scaled(2)
    assert sorted(set(places)) == list(range(8))


def test_of_very_many_groups_only_the_cheapest_place_of_each_stretch_is_considered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contiguous, "_MOST_PLACES", 3)
    sizes = [9, 9, 9, 5, 9, 6, 9, 9, 9, 7, 9, 9]
    assert cut(_chain([1] * 13, sizes), 4) == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 3
    monkeypatch.setattr(contiguous, "_MOST_PLACES", 100)
    problem = _large_problem(700, is_one_heavy=False)
    found = cut(problem, 4)
    assert found == sorted(found)
    assert set(found) == set(range(4))
    monkeypatch.undo()
    assert _crossing(problem, found) <= 1.2 * _crossing(problem, cut(problem, 4))
