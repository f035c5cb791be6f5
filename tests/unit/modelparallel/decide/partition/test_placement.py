# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Placements: loads by definition, after any moves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from smdistributed.modelparallel.decide.partition.placement import Placement
from smdistributed.modelparallel.decide.partition.problem import Flow, Problem
from smdistributed.modelparallel.decide.partition.search import search


def _loads(problem: Problem, places: Sequence[int], partitions: int) -> list[float]:
    """From the definition and nothing else."""
    loads = [0.0] * partitions
    for group, place in enumerate(places):
        loads[place] += problem.weights[group]
    for flow in problem.flows:
        home = places[flow.producer]
        for place in {places[each] for each in flow.consumers} - {home}:
            loads[place] += flow.cost
            loads[home] += flow.cost
    return loads


def test_a_flow_costs_its_ends_once_for_each_destination() -> None:
    problem = Problem([0.25] * 4, [Flow(0, (1, 2, 3), 8, cost=0.125)])
    assert Placement(problem, [0, 0, 0, 0], 3).loads == [1.0, 0.0, 0.0]
    assert Placement(problem, [0, 1, 1, 1], 3).loads == [0.375, 0.875, 0.0]
    assert Placement(problem, [0, 1, 1, 2], 3).loads == [0.5, 0.625, 0.375]


@pytest.mark.parametrize("seed", range(50))
def test_moves_keep_loads_right(seed: int) -> None:
    chance = random.Random(seed)
    num_groups, partitions = chance.randint(1, 9), chance.randint(1, 4)
    flows = []
    for _ in range(chance.randrange(12)):
        ends = chance.sample(range(num_groups), chance.randint(1, num_groups))
        if len(ends) > 1:
            flows.append(Flow(ends[0], tuple(sorted(ends[1:])), 1, chance.random()))
    problem = Problem([chance.random() for _ in range(num_groups)], flows)
    placement = Placement(
        problem, [chance.randrange(partitions) for _ in range(num_groups)], partitions
    )
    for _ in range(30):
        group, target = chance.randrange(num_groups), chance.randrange(partitions)
        before = placement.places[group]
        assert placement.move(group, target) == before
        assert placement.places[group] == target
        assert placement.loads == pytest.approx(_loads(problem, placement.places, partitions))
    assert placement.copy().loads == pytest.approx(placement.loads)


def test_the_search_counts_a_flow_to_several_groups_once() -> None:
    """It pays to send it to three users elsewhere: one crossing is cheap, three would not be."""
    weights = [0.5, 0.01, 0.17, 0.16, 0.16]
    flows = [Flow(0, (2, 3, 4), 8, cost=0.05), Flow(0, (1,), 8, cost=0.3)]
    found = search(Problem(weights, flows), 2, [])
    assert found.places == [0, 0, 1, 1, 1]
    assert found.loads == pytest.approx([0.56, 0.54])
