# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All ranks' parts of a step, run in one process, one turn after the other: how long each takes.

Source: our choice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from smdistributed.modelparallel.tensorflow.run.plan import Plan, Turn
from smdistributed.modelparallel.tensorflow.run.program import Program
from smdistributed.modelparallel.tensorflow.run.record import nbytes_of

__all__ = ["Measured", "measure"]

# Runs of a segment that tell of its time, at the least; the first one prepares what it calls.
_LEAST_RUNS = 8


class Measured(NamedTuple):
    """Of all ranks' parts of a step.

    Attributes:
        seconds: by key of a segment, for a microbatch: the median of some runs of the whole step.
        sizes: by segment and output, bytes of those of which the graph does not say how many.
    """

    seconds: dict[str, float]
    sizes: dict[tuple[Hashable, int], int]


def measure(programs: Sequence[Program], pieces: Sequence[Sequence[Any]]) -> Measured:
    """Runs a step some times. States that segments change are put back.

    Args:
        programs: by rank.
        pieces: by microbatch, the arguments.
    """
    found: dict[str, list[float]] = {}
    sizes: dict[tuple[Hashable, int], int] = {}
    changed = [state for program in programs for state in program.changed]
    values = [state.read_value() for state in changed]
    plans = [Plan(program) for program in programs]
    try:
        for run in range(1 + -(-_LEAST_RUNS // len(pieces))):
            times = _Run(plans, pieces, sizes).run()
            for key, spent in times.items() if run else ():
                found.setdefault(key, []).extend(spent)
    finally:
        for state, value in zip(changed, values, strict=True):
            state.assign(value)
    return Measured({key: statistics.median(spent) for key, spent in found.items()}, sizes)


class _Run:
    """One step."""

    def __init__(
        self,
        plans: Sequence[Plan],
        pieces: Sequence[Sequence[Any]],
        sizes: dict[tuple[Hashable, int], int],
    ) -> None:
        self._plans = plans
        self._sizes = sizes
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
        """Runs a turn; timed is what is of a turn in a pipeline, too, except for sending."""
        mine = self._places[rank]
        begin_s = time.perf_counter()
        outputs = turn.call([mine[place] for place in turn.inputs])
        for output, size in enumerate(turn.segment.sizes):
            if size is None:
                self._sizes[turn.key, output] = nbytes_of(outputs[output])
        for output, edge, destinations in turn.sends:
            for destination in destinations:
                start, _ = self._plans[destination].received[edge]
                self._places[destination][start + turn.microbatch] = outputs[output]
        for output, place in turn.keeps:
            mine[place] = outputs[output]
        for place in turn.last:
            mine[place] = None
        del outputs
        self._times.setdefault(str(turn.key), []).append(time.perf_counter() - begin_s)
        for destination in turn.tells_room:
            start = self._plans[destination].room[rank]
            self._places[destination][start + turn.microbatch] = True
