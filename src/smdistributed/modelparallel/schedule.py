# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who works on what when: the rules of a pipeline's schedules, and what they lead to.

A step cuts its batch into microbatches. Each of them is up to two tasks of the leader, forward and
backward, and while a task is away on another rank, the leader works on another one. A rank that has
several things to do takes the first by `Schedule.priority`; the executor and the simulation below
ask the same rules, so what is predicted is what is done.

    interleaved   backward before forward, then the lowest microbatch. What is computed for a
                  backward pass is let go as soon as possible.
    simple        forward before backward, then the lowest microbatch; the leader begins no backward
                  before all forwards have ended. Everything is kept until then.

At most `bound` microbatches are under way at a time (`active_microbatches`).

Source: modelparallel specification, section 3.6.
"""

import dataclasses
import enum
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Phase", "Prediction", "Run", "Schedule", "Task", "Visit", "predict"]


class Phase(enum.Enum):
    """A half of a microbatch's work."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclasses.dataclass(frozen=True)
class Task:
    """One half of one microbatch; `F3` in tables."""

    phase: Phase
    microbatch: int

    def __str__(self) -> str:
        return f"{self.phase.value}{self.microbatch}"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The rules of one step.

    Attributes:
        is_interleaved: else simple.
        microbatches: of the step.
        bound: microbatches that may be under way at a time.
    """

    is_interleaved: bool
    microbatches: int
    bound: int

    @classmethod
    def named(cls, pipeline: str, microbatches: int, active_microbatches: int) -> "Schedule":
        """The schedule of the parameter `pipeline`.

        The simple one has all microbatches under way, whatever `active_microbatches` says: none
        ends before the last has begun.
        """
        is_interleaved = pipeline == "interleaved"
        bound = min(active_microbatches, microbatches) if is_interleaved else microbatches
        return cls(is_interleaved, microbatches, bound)

    def priority(self, task: Task) -> tuple[bool, int]:
        """What comes first where a rank has the choice: the smallest."""
        later = Phase.FORWARD if self.is_interleaved else Phase.BACKWARD
        return task.phase is later, task.microbatch

    def may_start(self, num_started: int, num_finished: int) -> bool:
        """Whether the leader may begin another microbatch."""
        return num_started < self.microbatches and num_started - num_finished < self.bound

    def may_turn_back(self, num_forwards_done: int) -> bool:
        """Whether the leader may begin a backward pass."""
        return self.is_interleaved or num_forwards_done == self.microbatches


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

    def seconds(self, phase: Phase) -> float:
        """Of one of the two passes."""
        return self.forward_s if phase is Phase.FORWARD else self.backward_s


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


def predict(schedule: Schedule, way: Sequence[Visit], latency_s: float = 0.0) -> Prediction:
    """Simulates a step in which every microbatch goes the same way.

    Args:
        schedule: the rules.
        way: from the leader, which is the rank of the first visit, in order of the forward; the
            backward goes it in reverse.
        latency_s: seconds from one rank to another.
    """
    return _Simulation(schedule, way, latency_s).run()


class _Simulation:
    """Ranks that take the best of what is ready, one thing at a time."""

    def __init__(self, schedule: Schedule, way: Sequence[Visit], latency_s: float) -> None:
        self._schedule = schedule
        self._way = way
        self._latency_s = latency_s
        self._leader = way[0].rank
        ranks = sorted({visit.rank for visit in way})
        self._ready: dict[int, list[tuple[tuple[bool, int], int, Task]]] = {r: [] for r in ranks}
        self._is_busy = dict.fromkeys(ranks, False)
        self._runs: dict[int, list[Run]] = {rank: [] for rank in ranks}
        self._num_started = self._num_forwards_done = self._num_finished = 0
        # (time, number, what then happens): numbers keep the order of equal times.
        self._events: list[tuple[float, int, tuple[str, Task, int]]] = []
        self._numbers: Iterator[int] = itertools.count()
        self._turning: list[Task] = []  # backwards that the leader may not begin yet

    def run(self) -> Prediction:
        self._look(0.0)
        now = 0.0
        while self._events:
            now, _, (kind, task, position) = heapq.heappop(self._events)
            if kind == "arrives":
                self._arrive(task, position)
            else:
                self._is_busy[self._way[position].rank] = False
                self._go_on(now, task, position)
            # What happens at the same time is known before anybody chooses.
            if not self._events or self._events[0][0] > now:
                self._look(now)
        return self._result(now)

    def _arrive(self, task: Task, position: int) -> None:
        heapq.heappush(
            self._ready[self._way[position].rank], (self._schedule.priority(task), position, task)
        )

    def _go_on(self, now: float, task: Task, position: int) -> None:
        """Sends a task on its way from where it has just been."""
        is_forward = task.phase is Phase.FORWARD
        following = position + 1 if is_forward else position - 1
        if 0 <= following < len(self._way):
            is_move = self._way[following].rank != self._way[position].rank
            self._plan(now + self._latency_s * is_move, "arrives", task, following)
        elif is_forward:
            self._num_forwards_done += 1
            self._turning.append(Task(Phase.BACKWARD, task.microbatch))
        else:
            self._num_finished += 1

    def _look(self, now: float) -> None:
        """Lets every idle rank take something."""
        if self._schedule.may_turn_back(self._num_forwards_done):
            for task in self._turning:
                # The loss is the leader's: the last visit hears of it from there.
                last = len(self._way) - 1
                delay = self._latency_s * (self._way[last].rank != self._leader)
                self._plan(now + 2 * delay, "arrives", task, last)
            self._turning.clear()
            while self._events and self._events[0][0] <= now:
                _, _, (_, task, position) = heapq.heappop(self._events)
                self._arrive(task, position)
        for rank, ready in self._ready.items():
            if self._is_busy[rank]:
                continue
            if rank == self._leader:
                self._offer_next()
            if ready:
                _, position, task = heapq.heappop(ready)
                end = now + self._way[position].seconds(task.phase)
                self._is_busy[rank] = True
                self._runs[rank].append(Run(task, now, end))
                self._plan(end, "ends", task, position)

    def _offer_next(self) -> None:
        """The next microbatch is ready at the leader, if it may begin and nothing comes first."""
        if not self._schedule.may_start(self._num_started, self._num_finished):
            return
        task = Task(Phase.FORWARD, self._num_started)
        ready = self._ready[self._leader]
        if not ready or self._schedule.priority(task) < ready[0][0]:
            self._num_started += 1
            self._arrive(task, 0)

    def _plan(self, time_s: float, kind: str, task: Task, position: int) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), (kind, task, position)))

    def _result(self, makespan_s: float) -> Prediction:
        busy = {
            rank: sum(run.end_s - run.begin_s for run in runs) for rank, runs in self._runs.items()
        }
        peaks = {rank: _peaks(runs, self._way, rank) for rank, runs in self._runs.items()}
        return Prediction(
            runs=self._runs,
            makespan_s=makespan_s,
            floor_s=max(_seconds(self._way), *(t + self._way_to(rank) for rank, t in busy.items())),
            bubble=1 - max(busy.values()) / makespan_s if makespan_s else 0.0,
            peak_microbatches={rank: peak[0] for rank, peak in peaks.items()},
            peak_activation_bytes={rank: peak[1] for rank, peak in peaks.items()},
        )

    def _way_to(self, rank: int) -> float:
        """Seconds until a rank can have anything to do, and after it has done the last of it."""
        return _seconds(itertools.takewhile(lambda visit: visit.rank != rank, self._way))


def _seconds(visits: Iterable[Visit]) -> float:
    return sum(visit.forward_s + visit.backward_s for visit in visits)


def _peaks(runs: Sequence[Run], way: Sequence[Visit], rank: int) -> tuple[int, int]:
    """The most microbatches and bytes that a rank keeps: from a visit's forward to its backward."""
    visits = [visit.activation_bytes for visit in way if visit.rank == rank]
    held: dict[int, int] = {}  # microbatch: visits whose forward it has had there
    bytes_held = most_microbatches = most_bytes = 0
    for run in runs:  # one at a time, so their order is that of time
        count = held.get(run.task.microbatch, 0)
        if run.task.phase is Phase.FORWARD:
            held[run.task.microbatch] = count + 1
            bytes_held += visits[count]
        elif count == 1:
            del held[run.task.microbatch]
            bytes_held -= visits[0]
        else:
            held[run.task.microbatch] = count - 1
            bytes_held -= visits[count - 1]
        most_microbatches = max(most_microbatches, len(held))
        most_bytes = max(most_bytes, bytes_held)
    return most_microbatches, most_bytes
