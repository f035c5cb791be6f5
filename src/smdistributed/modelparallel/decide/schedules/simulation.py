# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who does what when in a chain of visits, and what follows: bubble, and memory.

Every microbatch goes the same way through the ranks, forward and then back. `ordering` simulates
them; messages take no time.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from smdistributed.modelparallel.decide.schedules.ordering import Segment, order
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Schedule, Task

__all__ = ["Prediction", "Run", "Visit", "predict"]


@dataclasses.dataclass(frozen=True)
class Visit:
    """A stretch of a microbatch's way through the ranks.

    Attributes:
        rank: where it is.
        forward_s, backward_s: seconds of computing there.
        activation_bytes: what is kept there from the forward to the backward.
    """

    rank: int
    forward_s: float
    backward_s: float
    activation_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """A task on a rank, on one of its visits there."""

    task: Task
    begin_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a schedule leads to.

    Attributes:
        runs: by rank, in order of time.
        makespan_s: seconds of the step.
        floor_s: no schedule needs less: the way of one microbatch, or what a rank has to compute
            and the way to it and back, whichever is most.
        bubble: share of the step in which the busiest rank waits, 0 to 1.
        peak_microbatches: by rank; the most of which something was kept there at a time.
        peak_activation_bytes: by rank.
    """

    runs: dict[int, list[Run]]
    makespan_s: float
    floor_s: float
    bubble: float
    peak_microbatches: dict[int, int]
    peak_activation_bytes: dict[int, int]

    def order(self, rank: int) -> list[str]:
        """The tasks of a rank as names, such as `["F0", "F1", "B0", "B1"]`."""
        return [str(run.task) for run in self.runs[rank]]


def predict(schedule: Schedule, way: Sequence[Visit]) -> Prediction:
    """Simulates a step in which every microbatch goes the same way.

    This is the order of a chain of segments. There, what holds on each rank by itself is what holds
    for the leader alone: a rank has no microbatch under way that the leader has not, microbatches
    do not overtake each other, and the forwards end where the backwards begin.

    Args:
        schedule: the rules.
        way: from the leader, which is the rank of the first visit, in order of the forward; the
            backward goes it in reverse.
    """
    place_of = {rank: place for place, rank in enumerate(sorted({visit.rank for visit in way}))}
    segments = _chain(way, place_of)
    ordering = order(schedule, segments, len(place_of))
    phases = {segment.key: segment.phase for segment in segments}
    runs = {
        rank: [
            Run(Task(phases[turn.segment], turn.microbatch), begin_s, end_s)
            for turn, begin_s, end_s in ordering.runs[place]
        ]
        for rank, place in place_of.items()
    }
    busy = {rank: sum(run.end_s - run.begin_s for run in done) for rank, done in runs.items()}
    makespan_s = ordering.makespan_s
    return Prediction(
        runs=runs,
        makespan_s=makespan_s,
        floor_s=max(_way_of_one(way), *(t + _way_to(way, rank) for rank, t in busy.items())),
        bubble=1 - max(busy.values()) / makespan_s if makespan_s else 0.0,
        peak_microbatches={
            rank: ordering.peak_microbatches[place] for rank, place in place_of.items()
        },
        peak_activation_bytes={
            rank: ordering.peak_bytes[place] for rank, place in place_of.items()
        },
    )


def _chain(way: Sequence[Visit], place_of: Mapping[int, int]) -> list[Segment]:
    """The segments of a microbatch that goes this way and back; ranks are counted from 0 on."""
    forwards = [
        Segment(
            f"F{position}",
            place_of[visit.rank],
            Phase.FORWARD,
            inputs=(f"F{position - 1}",) if position else (),
            seconds=visit.forward_s,
            kept_bytes=visit.activation_bytes,
        )
        for position, visit in enumerate(way)
    ]
    backwards = [
        Segment(
            f"B{position}",
            place_of[visit.rank],
            Phase.BACKWARD,
            inputs=(f"F{position}", *([f"B{position + 1}"] if position + 1 < len(way) else [])),
            seconds=visit.backward_s,
        )
        for position, visit in enumerate(way)
    ]
    return forwards + backwards


def _way_of_one(way: Sequence[Visit]) -> float:
    """Seconds of one microbatch alone."""
    return sum(visit.forward_s + visit.backward_s for visit in way)


def _way_to(way: Sequence[Visit], rank: int) -> float:
    """Seconds until a rank can have anything to do, and after it has done the last of it."""
    before = itertools.takewhile(lambda visit: visit.rank != rank, way)
    return sum(visit.forward_s + visit.backward_s for visit in before)
