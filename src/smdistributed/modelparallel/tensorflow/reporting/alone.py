# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All ranks' parts of a step, run in one process, one turn after the other: how long each takes.

Source: our choice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from smdistributed.modelparallel.tensorflow.run.plan import Plan, Turn
from smdistributed.modelparallel.tensorflow.run.program import Program

__all__ = ["seconds_of_segments"]

# Runs of a segment that tell of its time, at the least; the first one prepares what it calls.
_LEAST_RUNS = 8


def seconds_of_segments(
    programs: Sequence[Program], pieces: Sequence[Sequence[Any]]
) -> dict[str, float]:
    """By key, what a segment takes for a microbatch: the median of some runs of the whole step.

    States that segments change are put back.

    Args:
        programs: by rank.
        pieces: by microbatch, the arguments.
    """
    found: dict[str, list[float]] = {}
    changed = [state for program in programs for state in program.changed]
    values = [state.read_value() for state in changed]
    plans = [Plan(program) for program in programs]
    try:
        for run in range(1 + -(-_LEAST_RUNS // len(pieces))):
            times = _Run(plans, pieces).run()
            for key, spent in times.items() if run else ():
                found.setdefault(key, []).extend(spent)
    finally:
        for state, value in zip(changed, values, strict=True):
            state.assign(value)
    return {key: statistics.median(spent) for key, spent in found.items()}


class _Run:
    """One step."""

    def __init__(self, plans: Sequence[Plan], pieces: Sequence[Sequence[Any]]) -> None:
        self._plans = plans
        self._places: list[list[Any]] = [[None] * plan.num_places for plan in plans]
        arguments = [tensor for each in pieces for tensor in each]
        for places in self._places:
            places[: len(arguments)] = arguments
        self._times: dict[str, list[float]] = {}

    def run(self) -> dict[str, list[float]]:
        """Runs the lists of all ranks, each in its order. Returns: seconds by key of a segment."""
        left = [list(reversed(plan.turns)) for plan in self._plans]
        while any(left):
            for rank, turns in enumerate(left):
                while turns and self._can_run(rank, turns[-1]):
                    self._take(rank, turns.pop())
        return self._times

    def _can_run(self, rank: int, turn: Turn) -> bool:
        return all(self._places[rank][place] is not None for place, _ in turn.awaited)

    def _take(self, rank: int, turn: Turn) -> None:
        mine = self._places[rank]
        inputs = [mine[place] for place in turn.inputs]
        begin_s = time.perf_counter()
        outputs = turn.call(inputs)
        self._times.setdefault(str(turn.key), []).append(time.perf_counter() - begin_s)
        for output, edge, destinations in turn.sends:
            for destination in destinations:
                start, _ = self._plans[destination].received[edge]
                self._places[destination][start + turn.microbatch] = outputs[output]
        for output, place in turn.keeps:
            mine[place] = outputs[output]
        for place in turn.last:
            mine[place] = None
        for destination in turn.tells_room:
            start = self._plans[destination].room[rank]
            self._places[destination][start + turn.microbatch] = True
