# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""In which order each rank runs its tasks: one simulation of a step over a graph of segments.

A *segment* is a piece of the computation of one microbatch on one rank, forward or backward. The
segments of a step form a graph, which is the same for each microbatch. A *turn* is one segment for
one microbatch. A rank runs one turn at a time; an output is at once on each rank that needs it.

Whenever a rank is free, it takes the most urgent turn that may run (`Schedule.priority`; of equals
the segment that comes first in the graph). A turn may run when all this is true:

1. Its inputs are there, and its segment, and those that it follows, have run for the microbatch
   before. So what segments share and change, such as the statistics of a normalization that a step
   uses twice, is changed by one microbatch after the other.
2. Its microbatch has begun on this rank, or is the next to begin and `Schedule.may_start` agrees.
   Each rank begins the microbatches in ascending order. A microbatch is *under way* on a rank from
   the begin of its first turn there to the end of its last. A rank keeps nothing of a microbatch
   that is not under way there, apart from messages that wait for its first turn.
3. It is a forward, or `Schedule.may_turn_back` agrees. It is told how many microbatches have done
   all their forward segments on this rank; on a rank without forward segments, all have.
4. The ranks to which it sends have *room*: on each of them, the microbatch that lies
   `Schedule.bound` before this one has ended.

**The bound holds on each rank, however fast the ranks are.** How many microbatches are under way on
a rank depends on the order of its turns, and on nothing else. So a rank that runs its list has as
many under way as in the simulation. By rule 4 messages that wait for a slow rank are of these
microbatches, or of the next ones up to the bound: a rank ends microbatches in ascending order, as
each of its segments takes them so. (A bound on all ranks together would not hold in the run: no
rank knows what the others have begun.)

**Rule 4 mostly follows from what ranks send each other anyway**: in training, gradients come back.
`awaits_room` says where it does not, as in an evaluation; there a rank that runs its list waits for
the word that there is room.

**The simulation ends.** Suppose that some turns are left, all ranks are free, and none may run. Let
m be the lowest microbatch with turns left. As the graph has no circle, m has a turn left whose
inputs are there. All turns of lower microbatches have run, so rules 1 and 4 permit it. A rank where
m has not begun has begun no higher one, so nothing is under way there: rule 2 permits the turn, as
`may_start` agrees where nothing is under way. So rule 3 forbids it, and forwards are left on its
rank. Now let m be the lowest microbatch with *forwards* left. As no forward needs a backward, m has
a forward left whose inputs are there. The forwards of lower microbatches have run, so rule 1
permits it, and its rank has begun all of them. Rule 2 permits it, as a schedule that forbids to
turn back forbids no start. So does rule 4, as such a schedule is bound by the number of
microbatches alone. So it may run: a contradiction.

**The lists never block.** Messages are buffered, so no send waits. A rank runs its list in order,
and waits only for inputs and room. In the simulation, what gives these ended before the turn was
taken. Of all turns that have not run, take the one that ended first in the simulation: all before
it in its list, and all that it waits for, have run. So it can run, whatever the speed of the ranks.

**With the given seconds, the run takes the predicted times.** Whether a turn may run depends on its
own rank and on the messages that have arrived there. So a rank that runs its list waits where the
simulated rank waited, and nowhere else.

Cost: O(turns * (log(turns) + ranks)) for the lists of all ranks.

Source: modelparallel specification, section 3.6; the rest is our choice.
"""

import dataclasses
import graphlib
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Priority, Schedule, Task

__all__ = ["Ordering", "Segment", "TimedTurn", "Turn", "awaits_room", "order"]


@dataclasses.dataclass(frozen=True)
class Segment:
    """A piece of the computation of one microbatch, on one rank.

    Attributes:
        key: its name; no other segment has it.
        rank: where it runs.
        phase: forward or backward.
        inputs: keys of the segments, on this rank or others, of which it needs something.
        seconds: how long it runs. All ranks have to assume the same, or their lists do not fit.
        kept_bytes: what the rank keeps of it, from its begin to the end of the last segment there
            that has it as an input.
        message_bytes: by rank, as pairs: what it sends to other ranks. Such a rank keeps it until
            the end of the last segment there that has this one as an input.
        follows: keys of other segments on this rank that have to run for a microbatch before this
            one runs for the next.
    """

    key: str
    rank: int
    phase: Phase
    inputs: tuple[str, ...] = ()
    seconds: float = 1.0
    kept_bytes: int = 0
    message_bytes: tuple[tuple[int, int], ...] = ()
    follows: tuple[str, ...] = ()


class Turn(NamedTuple):
    """A segment for one microbatch."""

    segment: str
    microbatch: int


class TimedTurn(NamedTuple):
    """A turn, and when it runs: seconds since the begin of the step, predicted."""

    turn: Turn
    begin_s: float
    end_s: float


@dataclasses.dataclass(frozen=True)
class Ordering:
    """The order in which each rank runs its turns, and what follows.

    Attributes:
        runs: by rank, the turns in order, with predicted times; empty for a rank without segments.
        makespan_s: predicted seconds of the step.
        peak_microbatches: by rank, the most microbatches that are under way there at a time. True
            of each run of the lists, whatever the segments' seconds are in truth.
        peak_bytes: by rank, the most bytes kept there at a time, messages that have arrived
            included. Messages may arrive earlier than predicted, so this part is a prediction.
    """

    runs: Mapping[int, tuple[TimedTurn, ...]]
    makespan_s: float
    peak_microbatches: Mapping[int, int]
    peak_bytes: Mapping[int, int]

    def of_rank(self, rank: int) -> tuple[Turn, ...]:
        """The turns of a rank, in order.

        Raises:
            KeyError: there is no such rank.
        """
        return tuple(run.turn for run in self.runs[rank])


def order(schedule: Schedule, segments: Sequence[Segment], ranks: int) -> Ordering:
    """The order in which each rank runs the segments of all microbatches.

    Equal arguments give equal results in every process: so each rank may call it for itself.

    Args:
        schedule: the rules.
        segments: of one microbatch. They may be in any order; where turns are equally urgent, the
            segment comes first that comes first here.
        ranks: how many there are; some may have no segments.

    Raises:
        ValueError: the segments are no graph that can run: two with the same key, an input that
            is no segment, a circle, a forward that needs or follows a backward, one that follows
            a segment of another rank, a rank that does not exist, a number that makes no sense; or
            the schedule never begins a microbatch.
    """
    _check(segments, ranks)
    return _Simulation(schedule, segments, ranks).run()


def awaits_room(segments: Sequence[Segment]) -> dict[str, tuple[int, ...]]:
    """Where a rank has to be told that another one has room (rule 4 above).

    It need not where it knows: the other rank has begun the same microbatch, as this segment needs
    something of it; or it has ended all those that this rank has ended, as these need its segments.

    Returns:
        By key of a segment, the ranks to which it sends and of which it cannot know; in ascending
        order. Segments without such ranks are left out.
    """
    bits = {segment.key: 1 << number for number, segment in enumerate(segments)}
    here: dict[int, int] = {}  # by rank, its segments
    for segment in segments:
        here[segment.rank] = here.get(segment.rank, 0) | bits[segment.key]
    needed: dict[str, int] = {}  # by segment, all that it needs, itself included
    inputs = {segment.key: segment.inputs for segment in segments}
    for key in graphlib.TopologicalSorter(inputs).static_order():
        needed[key] = bits[key]
        for each in inputs[key]:
            needed[key] |= needed[each]
    needed_on: dict[int, int] = {}  # by rank, all that its segments need
    for segment in segments:
        needed_on[segment.rank] = needed_on.get(segment.rank, 0) | needed[segment.key]
    found: dict[str, tuple[int, ...]] = {}
    for segment, destinations in zip(segments, _destinations(segments), strict=True):
        unknown = tuple(
            rank
            for rank in destinations
            if not needed[segment.key] & here[rank] and here[rank] & ~needed_on[segment.rank]
        )
        if unknown:
            found[segment.key] = unknown
    return found


def _destinations(segments: Sequence[Segment]) -> list[list[int]]:
    """By segment, the other ranks that need something of it, ascending."""
    rank_of = {segment.key: segment.rank for segment in segments}
    found: dict[str, set[int]] = {segment.key: set() for segment in segments}
    for segment in segments:
        for key in segment.inputs:
            if rank_of[key] != segment.rank:
                found[key].add(segment.rank)
    return [sorted(found[segment.key]) for segment in segments]


def _check(segments: Sequence[Segment], ranks: int) -> None:
    by_key: dict[str, Segment] = {}
    for segment in segments:
        if segment.key in by_key:
            raise ValueError(
                f"two segments have the key {segment.key!r}; expected one. Give each its own key."
            )
        by_key[segment.key] = segment
    needed_on = {(key, segment.rank) for segment in segments for key in segment.inputs}
    for segment in segments:
        _check_numbers(segment, ranks)
        for key in segment.inputs:
            _check_input(segment, by_key.get(key), key)
        for key in segment.follows:
            _check_followed(segment, by_key.get(key), key)
        for rank, nbytes in segment.message_bytes:
            if (segment.key, rank) not in needed_on:
                raise ValueError(
                    f"segment {segment.key!r} sends {nbytes} bytes to rank {rank}, where no segment"
                    " has it as an input. Name it there, or leave the message out."
                )
    try:
        graphlib.TopologicalSorter({each.key: each.inputs for each in segments}).prepare()
    except graphlib.CycleError as error:
        raise ValueError(
            f"segments need each other in a circle: {' <- '.join(error.args[1])}. Expected none:"
            " cut one of them into two segments, before and after what the others need of it."
        ) from None


def _check_numbers(segment: Segment, ranks: int) -> None:
    destinations = [rank for rank, _ in segment.message_bytes]
    for rank in (segment.rank, *destinations):
        if not 0 <= rank < ranks:
            raise ValueError(
                f"segment {segment.key!r} names rank {rank}; expected 0 to {ranks - 1}."
                " Give `order` the number of all ranks."
            )
    if segment.rank in destinations or len(set(destinations)) < len(destinations):
        raise ValueError(
            f"segment {segment.key!r} of rank {segment.rank} has messages to ranks {destinations};"
            " expected each other rank at most once. What stays here is `kept_bytes`."
        )
    if not (math.isfinite(segment.seconds) and segment.seconds >= 0):
        raise ValueError(
            f"segment {segment.key!r} takes {segment.seconds} s; expected a number from 0 on."
        )
    for nbytes in (segment.kept_bytes, *(nbytes for _, nbytes in segment.message_bytes)):
        if nbytes < 0:
            raise ValueError(
                f"segment {segment.key!r} keeps or sends {nbytes} bytes; expected 0 or more."
            )


def _check_input(segment: Segment, needed: Segment | None, key: str) -> None:
    if needed is None:
        raise ValueError(
            f"segment {segment.key!r} needs {key!r}, which is no segment. Expected one of this"
            " graph: what is fed from outside is no input."
        )
    if segment.phase is Phase.FORWARD and needed.phase is Phase.BACKWARD:
        raise ValueError(
            f"segment {segment.key!r} is a forward and needs {key!r}, which is a backward. Expected"
            " the reverse only: all that a forward needs is a part of the forward."
        )


def _check_followed(segment: Segment, followed: Segment | None, key: str) -> None:
    if followed is None or followed.rank != segment.rank:
        raise ValueError(
            f"segment {segment.key!r} of rank {segment.rank} follows {key!r}, which is no segment"
            " there. Expected one of the same rank: what they share is there."
        )
    if segment.phase is Phase.FORWARD and followed.phase is Phase.BACKWARD:
        raise ValueError(
            f"segment {segment.key!r} is a forward and follows {key!r}, which is a backward."
            " Expected the reverse only: forwards run ahead of backwards."
        )


class _Ready(NamedTuple):
    """A turn whose inputs are there; the smallest comes first."""

    priority: Priority
    number: int  # of the segment
    microbatch: int


class _Held(NamedTuple):
    """Bytes on a rank, held until so many segments there have ended."""

    rank: int
    nbytes: int
    num_users: int


class _Rank:
    """What a rank has to do, has done and keeps."""

    def __init__(self, schedule: Schedule, segments: Sequence[Segment]) -> None:
        self._schedule = schedule
        self._num_segments = len(segments)
        self._num_forwards = sum(segment.phase is Phase.FORWARD for segment in segments)
        # Heaps of turns whose inputs are there, by what else they wait for.
        self._ready: list[_Ready] = []  # nothing
        self._not_begun: dict[int, list[_Ready]] = {}  # by microbatch: that it begins here
        self._turning: list[_Ready] = []  # that backwards may run
        self._num_begun = 0
        self._under_way: dict[int, int] = {}  # by microbatch: its segments that have not ended
        self._forwards_left: dict[int, int] = {}
        self._num_forwards_done = 0 if self._num_forwards else schedule.microbatches
        self._bytes = self.peak_bytes = self.peak_microbatches = 0
        self.is_busy = False
        self.runs: list[TimedTurn] = []

    def arrive(self, ready: _Ready, phase: Phase) -> None:
        """The inputs of a turn are there."""
        if phase is Phase.BACKWARD and not self._schedule.may_turn_back(self._num_forwards_done):
            self._turning.append(ready)
        elif ready.microbatch < self._num_begun:
            heapq.heappush(self._ready, ready)
        else:
            heapq.heappush(self._not_begun.setdefault(ready.microbatch, []), ready)

    def take(self) -> _Ready | None:
        """The most urgent of the turns that may run."""
        heap = self._ready
        following = self._not_begun.get(self._num_begun)
        if (
            following
            and (not heap or following[0] < heap[0])
            and self._schedule.may_start(self._num_begun, len(self._under_way))
        ):
            heap = following
        if not heap:
            return None
        taken = heapq.heappop(heap)
        if heap is following:
            self._begin(taken.microbatch)
        return taken

    def _begin(self, microbatch: int) -> None:
        self._num_begun += 1
        self._under_way[microbatch] = self._num_segments
        self._forwards_left[microbatch] = self._num_forwards
        self.peak_microbatches = max(self.peak_microbatches, len(self._under_way))
        for ready in self._not_begun.pop(microbatch):
            heapq.heappush(self._ready, ready)

    def end(self, microbatch: int, phase: Phase) -> bool:
        """A turn has ended. Returns: whether its microbatch has."""
        self.is_busy = False
        self._under_way[microbatch] -= 1
        has_ended = not self._under_way[microbatch]
        if has_ended:
            del self._under_way[microbatch]
        if phase is Phase.FORWARD:
            self._end_forward(microbatch)
        return has_ended

    def _end_forward(self, microbatch: int) -> None:
        self._forwards_left[microbatch] -= 1
        if not self._forwards_left[microbatch]:
            del self._forwards_left[microbatch]
            self._num_forwards_done += 1
            turning, self._turning = self._turning, []
            for ready in turning:
                self.arrive(ready, Phase.BACKWARD)

    def hold(self, nbytes: int) -> None:
        self._bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self._bytes)

    def let_go(self, nbytes: int) -> None:
        self._bytes -= nbytes


class _Memory:
    """Which bytes a segment brings, and which it needs no longer. `Held` by number."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.held: list[_Held] = []
        self.at_begin: list[list[int]] = [[] for _ in segments]  # by segment: what it brings then
        self.at_end: list[list[int]] = [[] for _ in segments]
        self.used_by: list[list[int]] = [[] for _ in segments]
        users: dict[tuple[str, int], list[int]] = {}  # of a segment on a rank
        for index, segment in enumerate(segments):
            for key in segment.inputs:
                users.setdefault((key, segment.rank), []).append(index)
        for index, segment in enumerate(segments):
            here = [index, *users.get((segment.key, segment.rank), ())]
            self._add(segment.kept_bytes, segment.rank, here, self.at_begin[index])
            for rank, nbytes in segment.message_bytes:
                self._add(nbytes, rank, users[segment.key, rank], self.at_end[index])

    def _add(self, nbytes: int, rank: int, users: list[int], brings: list[int]) -> None:
        if not nbytes:
            return
        number = len(self.held)
        self.held.append(_Held(rank, nbytes, len(users)))
        brings.append(number)
        for index in users:
            self.used_by[index].append(number)


class _Simulation:
    """Ranks that take the most urgent of what may run, one turn at a time."""

    def __init__(self, schedule: Schedule, segments: Sequence[Segment], ranks: int) -> None:
        microbatches = range(schedule.microbatches)
        self._segments = segments
        self._ranks = [
            _Rank(schedule, [each for each in segments if each.rank == rank])
            for rank in range(ranks)
        ]
        # Nobody leads: each rank chooses as a leader does.
        self._priorities = {
            phase: [schedule.priority(Task(phase, each), is_leader=True) for each in microbatches]
            for phase in Phase
        }
        self._consumers = _by_key([segment.inputs for segment in segments], segments)
        # Of the microbatch before: its own segment, and what it follows.
        before = [tuple(dict.fromkeys((each.key, *each.follows))) for each in segments]
        self._followers = _by_key(before, segments)
        self._bound = schedule.bound
        destinations = _destinations(segments)
        self._senders: list[list[int]] = [[] for _ in range(ranks)]  # to a rank
        for index, theirs in enumerate(destinations):
            for rank in theirs:
                self._senders[rank].append(index)
        # By microbatch and segment: what is missing of all these, and how many ranks have no room.
        self._missing = [
            [
                len(segment.inputs)
                + (len(keys) if microbatch else 0)
                + (len(theirs) if microbatch >= self._bound else 0)
                for segment, keys, theirs in zip(segments, before, destinations, strict=True)
            ]
            for microbatch in microbatches
        ]
        self._memory = _Memory(segments)
        self._users = [[held.num_users for held in self._memory.held] for _ in microbatches]
        self._ends: list[tuple[float, int, int]] = []  # a heap: time, index of segment, microbatch

    def run(self) -> Ordering:
        for index, segment in enumerate(self._segments):
            if self._missing and not segment.inputs:
                self._arrive(index, 0)
        now = 0.0
        self._look(now)
        while self._ends:
            now = self._ends[0][0]
            # What happens at the same time is known before anybody chooses.
            while self._ends and self._ends[0][0] <= now:
                _, index, microbatch = heapq.heappop(self._ends)
                self._end(index, microbatch)
            self._look(now)
        return self._result(now)

    def _arrive(self, index: int, microbatch: int) -> None:
        segment = self._segments[index]
        priority = self._priorities[segment.phase][microbatch]
        self._ranks[segment.rank].arrive(_Ready(priority, index, microbatch), segment.phase)

    def _look(self, now: float) -> None:
        """Lets every idle rank take something."""
        for rank in self._ranks:
            if rank.is_busy:
                continue
            taken = rank.take()
            if taken is None:
                continue
            segment = self._segments[taken.number]
            end_s = now + segment.seconds
            rank.is_busy = True
            rank.runs.append(TimedTurn(Turn(segment.key, taken.microbatch), now, end_s))
            self._hold(self._memory.at_begin[taken.number])
            heapq.heappush(self._ends, (end_s, taken.number, taken.microbatch))

    def _end(self, index: int, microbatch: int) -> None:
        segment = self._segments[index]
        has_ended = self._ranks[segment.rank].end(microbatch, segment.phase)
        self._hold(self._memory.at_end[index])
        self._let_go(index, microbatch)
        for consumer in self._consumers[index]:
            self._bring(consumer, microbatch)
        if microbatch + 1 < len(self._missing):
            for follower in self._followers[index]:
                self._bring(follower, microbatch + 1)
        if has_ended and microbatch + self._bound < len(self._missing):
            for sender in self._senders[segment.rank]:
                self._bring(sender, microbatch + self._bound)

    def _bring(self, index: int, microbatch: int) -> None:
        """One of the things that a turn waits for is there."""
        missing = self._missing[microbatch]
        missing[index] -= 1
        if not missing[index]:
            self._arrive(index, microbatch)

    def _hold(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            held = self._memory.held[number]
            self._ranks[held.rank].hold(held.nbytes)

    def _let_go(self, index: int, microbatch: int) -> None:
        users = self._users[microbatch]
        for number in self._memory.used_by[index]:
            users[number] -= 1
            if not users[number]:
                held = self._memory.held[number]
                self._ranks[held.rank].let_go(held.nbytes)

    def _result(self, makespan_s: float) -> Ordering:
        num_done = sum(len(rank.runs) for rank in self._ranks)
        num_turns = len(self._segments) * len(self._missing)
        if num_done < num_turns:
            raise ValueError(
                f"the schedule let {num_done} of {num_turns} turns run, and no other. Expected one"
                " that begins a microbatch where none is under way, and that turns back when all"
                " forwards have ended. Is active_microbatches 1 or more?"
            )
        return Ordering(
            runs={number: tuple(rank.runs) for number, rank in enumerate(self._ranks)},
            makespan_s=makespan_s,
            peak_microbatches={n: rank.peak_microbatches for n, rank in enumerate(self._ranks)},
            peak_bytes={n: rank.peak_bytes for n, rank in enumerate(self._ranks)},
        )


def _by_key(keys: Sequence[Sequence[str]], segments: Sequence[Segment]) -> list[list[int]]:
    """By segment, the numbers of those among whose keys it is."""
    number_of = {segment.key: number for number, segment in enumerate(segments)}
    found: list[list[int]] = [[] for _ in segments]
    for number, each in enumerate(keys):
        for key in each:
            found[number_of[key]].append(number)
    return found
