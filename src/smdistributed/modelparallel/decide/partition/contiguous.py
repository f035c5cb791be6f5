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
places only, and the cost is a hundredth of that. With many groups that may still take minutes,
where one outweighs all others. So above 3,000 groups the order is divided into 3,000 stretches, and
in each of them only the place that the fewest bytes pass is considered.

Source: TensorFlow modelparallel specification, section 4; rules 2 and 3, and that no run is empty,
are our choice.
"""

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smdistributed.modelparallel.decide.partition.problem import Flow, Problem

__all__ = ["cut", "next_best"]

_UNITS = 10**9  # of weight in the whole model
_MOST_PLACES = 3_000  # that are considered


def cut(problem: Problem, partitions: int) -> list[int]:
    """By group, its partition; they never decrease along the order.

    Args:
        problem: sizes of its flows are whole numbers.
        partitions: how many there are, one or more.
    """
    if problem.num_groups > _MOST_PLACES + 1:
        stretch_of = _stretches(problem)
        places = cut(_joined(problem, stretch_of), partitions)
        return [places[stretch] for stretch in stretch_of]
    runs = min(partitions, problem.num_groups)
    if runs == 0:
        return []
    cuts = itertools.pairwise([0, *_best_ends(problem, runs)])
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


# --- Many groups ---


def _stretches(problem: Problem) -> list[int]:
    """By group, the number of what it is joined to; `_MOST_PLACES` places are left between them."""
    num_groups = problem.num_groups
    changes = [0] * (num_groups + 1)
    for flow in problem.flows:
        ends = flow.producer, flow.consumers[0], flow.consumers[-1]
        changes[min(ends) + 1] += int(flow.size_bytes)
        changes[max(ends) + 1] -= int(flow.size_bytes)
    size_bytes = list(itertools.accumulate(changes))  # that pass the place before each group
    limits = [1 + i * (num_groups - 1) // _MOST_PLACES for i in range(_MOST_PLACES + 1)]
    begins = {
        min(range(low, high), key=size_bytes.__getitem__)
        for low, high in itertools.pairwise(limits)
    }
    return list(itertools.accumulate(int(group in begins) for group in range(num_groups)))


def _joined(problem: Problem, joined_to: Sequence[int]) -> Problem:
    """The problem of groups that are joined."""
    weights = [0.0] * (joined_to[-1] + 1)
    for group, weight in zip(joined_to, problem.weights, strict=True):
        weights[group] += weight
    flows = []
    for flow in problem.flows:
        producer = joined_to[flow.producer]
        consumers = sorted({joined_to[consumer] for consumer in flow.consumers} - {producer})
        if consumers:
            flows.append(Flow(producer, tuple(consumers), flow.size_bytes, flow.cost))
    return Problem(weights, flows)


# --- Explaining ---


class _Move(NamedTuple):
    """What happens if a group goes to a neighbouring partition; the first of moves is the best."""

    is_refused: bool
    size_bytes: int
    largest: int
    target: int
    companions: int
    source: int
    is_empty: bool  # its partition would be


def next_best(problem: Problem, places: Sequence[int]) -> list[str]:
    """By group, what the next best place would do, in words; empty if there is no other.

    To a neighbouring partition a group takes along what is between it and that partition.

    Args:
        problem: as for `cut`.
        places: what `cut` has found.
    """
    if not places:
        return []
    runs = _Runs(problem, places)
    texts = []
    for group in range(problem.num_groups):
        moves = runs.moves(group)
        texts.append(runs.told(min(moves)) if moves else "")
    return texts


class _Runs:
    """The runs of a placement, and what moving the border between two of them would do."""

    def __init__(self, problem: Problem, places: Sequence[int]) -> None:
        self._places = places
        self._begins = [bisect_left(places, place) for place in range(places[-1] + 1)]
        self._ends = [*self._begins[1:], len(places)]
        self._sums = _running_sums(problem.weights)
        self._bound = _bound(self._sums, len(self._ends))
        # From the begin of a run up to each end in it and in the next one, the bytes that come in.
        self._from_begin: list[list[int]] = [[] for _ in self._ends]
        # From each group up to the end of its run, and of the next one.
        self._to_ends: list[tuple[int, int]] = [(0, 0)] * len(places)
        for begin, events in _events_of_runs(problem):
            run = places[begin]
            end, far_end = self._ends[run], self._ends[min(run + 1, len(self._ends) - 1)]
            own = sum(events[begin:end])
            self._to_ends[begin] = own, own + sum(events[end:far_end])
            if begin == self._begins[run]:
                sizes = itertools.accumulate(events[begin:far_end], initial=0)
                self._from_begin[run] = list(sizes)
        self._weights = [self._sums[end] - self._sums[begin] for begin, end in self._borders()]
        self._sizes = [self._to_ends[begin][0] for begin in self._begins]

    def moves(self, group: int) -> list[_Move]:
        """To the partition before and the one after."""
        run = self._places[group]
        moves = []
        if run > 0:
            moves.append(self._move(run - 1, group + 1, run, run - 1))
        if run + 1 < len(self._ends):
            moves.append(self._move(run, group, run, run + 1))
        return moves

    def told(self, move: _Move) -> str:
        """In words."""
        along = f", with {move.companions} more," if move.companions else ""
        why_not = ""
        if move.is_empty:
            why_not = f" (partition {move.source} would be empty)"
        elif move.is_refused:
            why_not = f" ({self._share(self._bound)} is allowed)"
        return (
            f"in partition {move.target}{along} the largest load would be"
            f" {self._share(move.largest)} instead of {self._share(max(self._weights))}, and"
            f" {move.size_bytes:,} bytes would cross instead of {sum(self._sizes):,}{why_not}"
        )

    def _borders(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    def _share(self, weight: int) -> str:
        return f"{weight / (self._sums[-1] or 1):.1%}"

    def _move(self, run: int, border: int, source: int, target: int) -> _Move:
        """If the border between a run and the next one were at this group."""
        begin, end = self._begins[run], self._ends[run + 1]
        size_bytes = sum(self._sizes) - self._sizes[run] - self._sizes[run + 1]
        size_bytes += self._from_begin[run][border - begin]
        if border < end:  # the run that is left of, or grows, to the right of the border
            size_bytes += self._to_ends[border][self._places[border] == run]
        others = self._weights[:run] + self._weights[run + 2 :]
        first, second = self._sums[border] - self._sums[begin], self._sums[end] - self._sums[border]
        largest = max([first, second, *others])
        is_empty = border in (begin, end)
        is_refused = is_empty or largest > self._bound
        companions = abs(border - self._begins[run + 1]) - 1
        return _Move(is_refused, size_bytes, largest, target, companions, source, is_empty)
