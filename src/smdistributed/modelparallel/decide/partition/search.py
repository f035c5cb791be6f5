# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Searches for a placement whose fullest partition is as empty as possible.

A load is what the groups of a partition weigh, and what crosses its border costs. The search starts
from given placements and from the best way to cut all groups, in their order, into one run for
each partition. Improving means to move a group, alone or against another one, while that makes the
loads better. All in partition 0 is taken if it is better than what was found, as where messages
cost most. No randomness: the same problem gives the same answer on every rank.

The first group is in partition 0, and stays there.

Source: modelparallel specification, section 7.
"""

import itertools
from collections.abc import Iterable, Sequence

from smdistributed.modelparallel.decide.partition.placement import Placement
from smdistributed.modelparallel.decide.partition.problem import Problem

__all__ = ["alternative", "search"]

# Pairs of groups that may be tried against each other in one pass.
_MOST_SWAPS = 20_000
# Up to so many groups the search also goes on from each place a step away from what it has found.
_MOST_FORCED = 24


def search(problem: Problem, partitions: int, starts: Iterable[Sequence[int]]) -> Placement:
    """The best placement that it finds.

    Args:
        problem: of one group or more.
        partitions: how many there are.
        starts: placements to start from, by group; the first group in partition 0.
    """
    found = [
        _improve(Placement(problem, start, partitions))
        for start in (*starts, _by_runs(problem, partitions))
    ]
    best = min(found, key=Placement.badness)
    in_one = Placement(problem, [0] * problem.num_groups, partitions)
    if _is_better(in_one.badness(), best.badness()):  # messages would cost more than they save
        best = _improve(in_one)
    if problem.num_groups <= _MOST_FORCED:
        best = _improve_by_force(best)
    return best


def _by_runs(problem: Problem, partitions: int) -> list[int]:
    """All groups in order of execution, cut into one run for each partition; the root's in 0."""
    # What goes with the root is there from the start, and the first run is the shorter for it.
    weights = problem.weights
    others = range(1, problem.num_groups)
    low, high = max(weights), sum(weights)
    places = [0] * problem.num_groups
    for _ in range(60):
        middle = (low + high) / 2
        tried, place, filled = [0] * problem.num_groups, 0, weights[0]
        for group in others:
            if filled + weights[group] > middle:
                place, filled = place + 1, 0.0
            filled += weights[group]
            tried[group] = place
        if place < partitions:
            high, places = middle, tried
        else:
            low = middle
    return places


def _improve(placement: Placement) -> Placement:
    while _try_moves(placement) or _try_swaps(placement):
        pass
    return placement


def _improve_by_force(best: Placement) -> Placement:
    """Goes on from everything that is one move away, good or not, while that leads further."""
    partitions = range(len(best.loads))
    for group, target in itertools.product(range(1, best.problem.num_groups), partitions):
        tried = best.copy()
        tried.move(group, target)
        if _is_better(_improve(tried).badness(), best.badness()):
            return _improve_by_force(tried)
    return best


def _is_better(badness: float, than: float) -> bool:
    return badness < than * (1 - 1e-9)


def _try_moves(placement: Placement) -> bool:
    has_improved = False
    badness = placement.badness()
    for group in range(1, placement.problem.num_groups):
        best = source = placement.places[group]
        for target in range(len(placement.loads)):
            placement.move(group, target)
            found = placement.badness()
            if _is_better(found, badness):
                badness, best = found, target
        placement.move(group, best)
        has_improved |= best != source
    return has_improved


def _try_swaps(placement: Placement) -> bool:
    """What is in the fullest partition, against something elsewhere."""
    badness = placement.badness()
    fullest = max(range(len(placement.loads)), key=placement.loads.__getitem__)
    groups = range(1, placement.problem.num_groups)
    inside = [group for group in groups if placement.places[group] == fullest]
    outside = [group for group in groups if placement.places[group] != fullest]
    pairs = itertools.islice(itertools.product(inside, outside), _MOST_SWAPS)
    for one, other in pairs:
        elsewhere = placement.move(other, fullest)
        placement.move(one, elsewhere)
        if _is_better(placement.badness(), badness):
            return True
        placement.move(one, fullest)
        placement.move(other, elsewhere)
    return False


def alternative(placement: Placement, groups: frozenset[int]) -> list[str]:
    """What the next best place of some groups would do, in words; empty if they have none."""
    if 0 in groups or len(placement.loads) == 1:
        return []
    homes = {group: placement.places[group] for group in sorted(groups)}
    now = max(placement.loads)
    tried = []
    for target in range(len(placement.loads)):
        if target in homes.values():
            continue
        for group in homes:
            placement.move(group, target)
        tried.append((max(placement.loads), target))
    for group, home in homes.items():
        placement.move(group, home)
    largest, target = min(tried)
    return [f"in partition {target} the largest load would be {largest:.1%} instead of {now:.1%}"]
