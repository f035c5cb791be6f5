# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who does what when under a schedule, and what follows: bubble, and memory.

Ranks are simulated that take the best of what is ready, one thing at a time. Every microbatch goes
the same way through them, and messages take no time.
"""

import dataclasses
import enum
import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Priority, Schedule, Task

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

    Args:
        schedule: the rules.
        way: from the leader, which is the rank of the first visit, in order of the forward; the
            backward goes it in reverse.
    """
    return _Simulation(schedule, way).run()


class _Rank:
    """What a rank has to do, has done and keeps."""

    def __init__(self) -> None:
        self.ready: list[tuple[Priority, int, Task]] = []
        self.is_busy = False
        self.runs: list[Run] = []
        self._kept: dict[int, list[int]] = {}  # microbatch: positions of the way
        self._bytes = self.peak_bytes = self.peak_microbatches = 0

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def keep(self, microbatch: int, position: int, nbytes: int) -> None:
        self._kept.setdefault(microbatch, []).append(position)
        self._bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        self.peak_microbatches = max(self.peak_microbatches, len(self._kept))

    def let_go(self, microbatch: int, position: int, nbytes: int) -> None:
        positions = self._kept[microbatch]
        positions.remove(position)
        self._bytes -= nbytes
        if not positions:
            del self._kept[microbatch]


class _What(enum.Enum):
    """What happens to a task on a rank."""

    ARRIVES = enum.auto()
    ENDS = enum.auto()


class _Event(NamedTuple):
    """What happens at a time; events are in order of time, and of number where times are equal."""

    time_s: float
    number: int
    what: _What
    task: Task
    position: int


class _Simulation:
    """Ranks that take the best of what is ready, one thing at a time."""

    def __init__(self, schedule: Schedule, way: Sequence[Visit]) -> None:
        self._schedule = schedule
        self._way = way
        self._leader = way[0].rank
        self._ranks = {rank: _Rank() for rank in sorted({visit.rank for visit in way})}
        self._num_started = self._num_forwards_done = 0
        self._events: list[_Event] = []  # a heap
        self._numbers: Iterator[int] = itertools.count()
        self._turning: list[Task] = []  # backwards that the leader may not begin yet

    def run(self) -> Prediction:
        self._look(0.0)
        now = 0.0
        while self._events:
            event = heapq.heappop(self._events)
            now = event.time_s
            if event.what is _What.ARRIVES:
                self._arrive(event.task, event.position)
            else:
                self._end(now, event.task, event.position)
            # What happens at the same time is known before anybody chooses.
            if not self._events or self._events[0].time_s > now:
                self._look(now)
        return self._result(now)

    def _arrive(self, task: Task, position: int) -> None:
        number = self._way[position].rank
        priority = self._schedule.priority(task, number == self._leader)
        heapq.heappush(self._ranks[number].ready, (priority, position, task))

    def _end(self, now: float, task: Task, position: int) -> None:
        """A rank has done something: the task goes on its way from there."""
        visit = self._way[position]
        rank = self._ranks[visit.rank]
        rank.is_busy = False
        is_forward = task.phase is Phase.FORWARD
        if not is_forward:
            rank.let_go(task.microbatch, position, visit.activation_bytes)
        following = position + 1 if is_forward else position - 1
        if 0 <= following < len(self._way):
            self._plan(now, _What.ARRIVES, task, following)
        elif is_forward:
            self._num_forwards_done += 1
            self._turning.append(Task(Phase.BACKWARD, task.microbatch))

    def _look(self, now: float) -> None:
        """Lets every idle rank take something."""
        if self._schedule.may_turn_back(self._num_forwards_done):
            for task in self._turning:
                self._plan(now, _What.ARRIVES, task, len(self._way) - 1)
            self._turning.clear()
            while self._events and self._events[0].time_s <= now:
                event = heapq.heappop(self._events)
                self._arrive(event.task, event.position)
        for number, rank in self._ranks.items():
            if rank.is_busy:
                continue
            if number == self._leader:
                self._offer_next(rank)
            taken = self._take(rank)
            if taken is None:
                continue
            task, position, seconds = taken
            if task.phase is Phase.FORWARD:
                rank.keep(task.microbatch, position, self._way[position].activation_bytes)
            rank.is_busy = True
            rank.runs.append(Run(task, now, now + seconds))
            self._plan(now + seconds, _What.ENDS, task, position)

    def _take(self, rank: _Rank) -> tuple[Task, int, float] | None:
        """The most urgent thing to do: the task, which of its visits, and how long it takes."""
        if not rank.ready:
            return None
        _, position, task = heapq.heappop(rank.ready)
        visit = self._way[position]
        is_forward = task.phase is Phase.FORWARD
        return task, position, visit.forward_s if is_forward else visit.backward_s

    def _offer_next(self, leader: _Rank) -> None:
        """The next microbatch is ready at the leader, if it may begin and nothing comes first."""
        if not self._schedule.may_start(self._num_started, leader.num_kept):
            return
        task = Task(Phase.FORWARD, self._num_started)
        if not leader.ready or self._schedule.priority(task, True) < leader.ready[0][0]:
            self._num_started += 1
            self._arrive(task, 0)

    def _plan(self, time_s: float, what: _What, task: Task, position: int) -> None:
        event = _Event(time_s, next(self._numbers), what, task, position)
        heapq.heappush(self._events, event)

    def _result(self, makespan_s: float) -> Prediction:
        busy = {
            number: sum(run.end_s - run.begin_s for run in rank.runs)
            for number, rank in self._ranks.items()
        }
        return Prediction(
            runs={number: rank.runs for number, rank in self._ranks.items()},
            makespan_s=makespan_s,
            floor_s=max(self._way_of_one(), *(t + self._way_to(rank) for rank, t in busy.items())),
            bubble=1 - max(busy.values()) / makespan_s if makespan_s else 0.0,
            peak_microbatches={
                number: rank.peak_microbatches for number, rank in self._ranks.items()
            },
            peak_activation_bytes={number: rank.peak_bytes for number, rank in self._ranks.items()},
        )

    def _way_of_one(self) -> float:
        """Seconds of one microbatch alone."""
        return sum(visit.forward_s + visit.backward_s for visit in self._way)

    def _way_to(self, rank: int) -> float:
        """Seconds until a rank can have anything to do, and after it has done the last of it."""
        before = itertools.takewhile(lambda visit: visit.rank != rank, self._way)
        return sum(visit.forward_s + visit.backward_s for visit in before)
