# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Cuts the groups, in their order, into one run for each partition: the exact optimum.

There are n groups, p partitions and m = min(n, p) runs, of one group or more each. Partitions m and
above stay empty. Of all ways to cut, those are admitted in which no run weighs more than
(1 + eps) / m of the model. eps is 0.1, or the least that admits a way. Of the admitted ways

    1. the one with the fewest bytes between partitions is taken,
    2. of equals the one with the least sum of the squared weights of its runs,
    3. of equals the one whose first run is the longest, then the second, and so on.

A weight counts in units of a billionth of the model's, rounded, so that no rule depends on the
rounding of sums. With this the result is what exhaustive search finds.

Bytes are counted once for each partition that they go to. That sum is one term for each run: the
sizes of the flows that come from outside of the run and are used in it. It does not matter how the
rest is cut, so dynamic programming is exact, for flows that go back in the order, too.

The cost is p x n^2 additions at most. As long as eps is 0.1 each cut can be in some tenth of all
places only, and the cost is a hundredth of that.

Source: TensorFlow modelparallel specification, section 4; rules 2 and 3, and that no run is empty,
are our choice.
"""

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from smdistributed.modelparallel.decide.partition.problem import Flow, Problem

__all__ = ["cut"]

_UNITS = 10**9  # of weight in the whole model


def cut(problem: Problem, partitions: int) -> list[int]:
    """By group, its partition; they never decrease along the order.

    Args:
        problem: sizes of its flows are whole numbers.
        partitions: how many there are, one or more.
    """
    runs = min(partitions, problem.num_groups)
    if runs == 0:
        return []
    ends = _best_ends(problem, runs)
    cuts = itertools.pairwise([0, *ends])
    return [place for place, (begin, end) in enumerate(cuts) for _ in range(begin, end)]


def _best_ends(problem: Problem, runs: int) -> list[int]:
    """Where each run ends, by dynamic programming from the last group to the first.

    `best[k][i]` is the least cost of groups i and after in k runs, `ends[k][i]` where the first of
    these runs ends then. One whole number holds both parts of a cost: bytes first.
    """
    num_groups = problem.num_groups
    sums = _running_sums(problem.weights)
    bound = _bound(sums, runs)
    ranges = _places_of_cuts(sums, bound, runs)
    scale = sums[-1] ** 2 + 1
    best = [[0] * (num_groups + 1) for _ in range(runs + 1)]
    ends = [[0] * (num_groups + 1) for _ in range(runs + 1)]
    for begin, events in _events_of_runs(problem):
        counts = [k for k in range(1, runs + 1) if begin in ranges[k]]
        if not counts:
            continue
        last = bisect_right(sums, sums[begin] + bound) - 1
        first = max(begin + 1, min(ranges[k - 1].start for k in counts))
        sizes = list(itertools.accumulate(events[begin:last]))[first - begin - 1 :]
        costs = [
            size_bytes * scale + (weight - sums[begin]) ** 2
            for size_bytes, weight in zip(sizes, sums[first : last + 1], strict=True)
        ]
        for k in counts:
            low = max(first, ranges[k - 1].start)
            high = min(last + 1, ranges[k - 1].stop)
            totals = list(
                map(operator.add, costs[low - first : high - first], best[k - 1][low:high])
            )
            best[k][begin] = least = min(totals)
            ends[k][begin] = high - 1 - totals[::-1].index(least)  # of equals the longest run
    found = [0]
    for k in range(runs, 0, -1):
        found.append(ends[k][found[-1]])
    return found[1:]


def _running_sums(weights: Sequence[float]) -> list[int]:
    """Of the first 0, 1, ... groups, in units."""
    whole = sum(weights) or 1.0
    units = [round(weight / whole * _UNITS) for weight in weights]
    return list(itertools.accumulate(units, initial=0))


def _bound(sums: Sequence[int], runs: int) -> int:
    """The most that a run may weigh, in units."""
    low, high = sums[-1] * 11 // (10 * runs), sums[-1]
    while low < high:
        middle = (low + high) // 2
        if _first_places(sums, middle, runs)[-1] == 0:
            high = middle
        else:
            low = middle + 1
    return high


def _first_places(sums: Sequence[int], bound: int, runs: int) -> list[int]:
    """By k, the first group from which on k runs within the bound reach the end."""
    firsts = [len(sums) - 1]
    for _ in range(runs):
        firsts.append(bisect_left(sums, sums[firsts[-1]] - bound, 0, firsts[-1]))
    return firsts


def _places_of_cuts(sums: Sequence[int], bound: int, runs: int) -> list[range]:
    """By k, where the last k runs can begin, as all runs are within the bound and none is empty."""
    num_groups = len(sums) - 1
    firsts = _first_places(sums, bound, runs)
    lasts = [0]  # by k, the most groups that the first k runs can hold
    for _ in range(runs):
        lasts.append(bisect_right(sums, sums[lasts[-1]] + bound) - 1)
    return [
        range(max(firsts[k], runs - k), min(num_groups - k, lasts[runs - k]) + 1)
        for k in range(runs + 1)
    ]


def _events_of_runs(problem: Problem) -> Iterator[tuple[int, list[int]]]:
    """For each begin of a run, from the last on: a list of events, which is changed in place.

    The sum of `events[begin:end]` is the bytes that come from outside into the run from `begin` to
    before `end`. A flow adds its size where it is first used at or after the begin. If its producer
    comes later still, that takes the size away again; if the producer comes between, there is none.
    """
    touching: list[list[Flow]] = [[] for _ in range(problem.num_groups)]
    for flow in problem.flows:
        for group in (flow.producer, *flow.consumers):
            touching[group].append(flow)
    events = [0] * problem.num_groups
    for begin in reversed(range(problem.num_groups)):
        for flow in touching[begin]:
            for at, size in _events_of(flow, begin + 1):
                events[at] -= size
            for at, size in _events_of(flow, begin):
                events[at] += size
        yield begin, events


def _events_of(flow: Flow, begin: int) -> tuple[tuple[int, int], ...]:
    at = bisect_left(flow.consumers, begin)
    if at == len(flow.consumers):
        return ()
    first, size = flow.consumers[at], int(flow.size_bytes)
    if flow.producer < begin:
        return ((first, size),)
    if flow.producer > first:
        return ((first, size), (flow.producer, -size))
    return ()
