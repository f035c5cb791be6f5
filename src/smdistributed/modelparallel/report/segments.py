# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step that is cut into segments: what each rank runs in which order, and what follows from that.

Where ranks run lists that are fixed beforehand, as with TensorFlow, a step should be what these
lists lead to with the times that segments take. Messages take no time, as in
`decide.schedules.ordering`, of which this is the run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from smdistributed.modelparallel.decide.schedules.ordering import Segment, awaits_room, order
from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.report.costs import Row, Settings

__all__ = [
    "Edge",
    "Hold",
    "Lists",
    "Ran",
    "RankProgram",
    "RankSegment",
    "TurnSeconds",
    "floor_of",
    "graph_of",
    "lists_of",
    "peak_held",
    "play",
    "program_of",
    "segment_of",
]

Lists = tuple[tuple[tuple[str, int], ...], ...]
"""By partition, the segments (keys) and microbatches, in the order in which they run."""

TurnSeconds = Mapping[tuple[str, int], float]
"""By segment (key) and microbatch, how long that took in one step."""


class Edge(NamedTuple):
    """A tensor that a segment of this rank sends.

    Attributes:
        number: the receiver knows it by that.
        segment: that makes it.
        dest: the partition that gets it.
        num_bytes: of one microbatch; None if the graph does not say.
    """

    number: int
    segment: str
    dest: int
    num_bytes: int | None


class Hold(NamedTuple):
    """A tensor that a rank holds of a microbatch, from one segment to others.

    Attributes:
        edge: by which it comes from another rank; None: a segment of this rank makes it.
        segment: that does; empty of one that comes.
        users: segments that need it; it is held until the last has ended.
        num_bytes: of one microbatch; None if the graph does not say.
    """

    edge: int | None
    segment: str
    users: tuple[str, ...]
    num_bytes: int | None


@dataclasses.dataclass(frozen=True)
class RankSegment:
    """A segment of this rank.

    Attributes:
        key: as in the graph.
        phase: letter.
        what: its layers, for people.
        shares: by row of the table, seconds that its operations should take; a guess of the graph.
    """

    key: str
    phase: str
    what: str
    shares: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class RankProgram:
    """What one rank runs of a step.

    Attributes:
        number: the same on all ranks, and of no other program.
        name: of the step function, with its arguments.
        microbatches: how many.
        bound: microbatches of which a rank may hold something at a time.
        rows: layers, in the order in which they are called first; the same on all ranks.
        graph: the segments of all ranks; the same on all ranks. Their seconds are guesses.
        segments: of this rank.
        turns: its list.
        edges: what it sends.
        holds: what it holds.
    """

    number: int
    name: str
    microbatches: int
    bound: int
    rows: tuple[Row, ...]
    graph: tuple[Segment, ...]
    segments: tuple[RankSegment, ...]
    turns: tuple[tuple[str, int], ...]
    edges: tuple[Edge, ...]
    holds: tuple[Hold, ...]


class Ran(NamedTuple):
    """A segment for a microbatch, and when: seconds since the step began."""

    segment: str
    microbatch: int
    begin_s: float
    end_s: float


# --- files ---


def segment_of(content: Mapping[str, Any]) -> Segment:
    """A segment of what `dataclasses.asdict` and JSON have made of one."""
    return Segment(
        **{
            **content,
            "phase": Phase(content["phase"]),
            "inputs": tuple(content["inputs"]),
            "follows": tuple(content["follows"]),
            "message_bytes": tuple((rank, size) for rank, size in content["message_bytes"]),
        }
    )


def program_of(content: Mapping[str, Any]) -> RankProgram:
    """A program of what `dataclasses.asdict` and JSON have made of one."""
    return RankProgram(
        **{
            **content,
            "rows": tuple(Row(**row) for row in content["rows"]),
            "graph": tuple(segment_of(each) for each in content["graph"]),
            "segments": tuple(
                RankSegment(
                    each["key"],
                    each["phase"],
                    each["what"],
                    tuple((path, seconds) for path, seconds in each["shares"]),
                )
                for each in content["segments"]
            ),
            "turns": tuple((key, microbatch) for key, microbatch in content["turns"]),
            "edges": tuple(Edge(*each) for each in content["edges"]),
            "holds": tuple(
                Hold(edge, segment, tuple(users), size)
                for edge, segment, users, size in content["holds"]
            ),
        }
    )


# --- what follows ---


def graph_of(programs: Sequence[RankProgram], seconds: Mapping[str, float]) -> tuple[Segment, ...]:
    """The segments of all ranks, with these seconds; a guess is left where there are none."""
    return tuple(
        dataclasses.replace(each, seconds=seconds.get(each.key, each.seconds))
        for each in programs[0].graph
    )


def lists_of(graph: Sequence[Segment], settings: Settings) -> Lists:
    """What each rank would run, if the library knew these seconds."""
    found = order(settings.schedule(), graph, settings.partitions)
    return tuple(
        tuple((turn.segment, turn.microbatch) for turn in found.of_rank(partition))
        for partition in range(settings.partitions)
    )


def play(
    graph: Sequence[Segment], lists: Lists, bound: int, seconds: TurnSeconds | None = None
) -> list[list[Ran]]:
    """When each segment runs, by partition.

    Args:
        graph: with the seconds of segments.
        lists: what runs.
        bound: microbatches under way at a time; a rank waits for word of others where it has to.
        seconds: of one step; None: each microbatch takes those of the graph.

    Raises:
        ValueError: the lists wait for each other.
    """
    of_key = {segment.key: segment for segment in graph}
    room = awaits_room(graph)
    lasts = [{microbatch: key for key, microbatch in own} for own in lists]
    ends: dict[tuple[str, int], float] = {}
    runs: list[list[Ran]] = [[] for _ in lists]
    is_moving = True
    while is_moving:
        is_moving = False
        for own, done in zip(lists, runs, strict=True):
            while len(done) < len(own):
                key, microbatch = own[len(done)]
                waits = [(each, microbatch) for each in of_key[key].inputs]
                if microbatch >= bound:
                    before = microbatch - bound
                    waits += [(lasts[rank][before], before) for rank in room.get(key, ())]
                if any(each not in ends for each in waits):
                    break
                begin_s = max((ends[each] for each in waits), default=0.0)
                begin_s = max(begin_s, done[-1].end_s if done else 0.0)
                takes_s = _seconds_of(of_key[key], microbatch, seconds)
                done.append(Ran(key, microbatch, begin_s, begin_s + takes_s))
                ends[key, microbatch] = done[-1].end_s
                is_moving = True
    if any(len(done) < len(own) for own, done in zip(lists, runs, strict=True)):
        raise ValueError(
            "the lists of segments wait for each other; expected lists that ranks have run. Give"
            " the files of one run, unchanged."
        )
    return runs


def _seconds_of(segment: Segment, microbatch: int, seconds: TurnSeconds | None) -> float:
    return segment.seconds if seconds is None else seconds[segment.key, microbatch]


def floor_of(
    graph: Sequence[Segment],
    microbatches: int,
    partitions: int,
    seconds: TurnSeconds | None = None,
) -> float:
    """Seconds that no order goes below.

    The way of one microbatch; or what a rank has to compute, with the shortest way to it and back.

    Args:
        seconds: as of `play`.
    """
    ordered = _in_order(graph)
    floor_s = 0.0
    work_s = [0.0] * partitions
    to_s, back_s = [math.inf] * partitions, [math.inf] * partitions
    # Where all microbatches take the same, one of them tells.
    alike = microbatches if seconds is None else 1
    for microbatch in range(0, microbatches, alike):
        takes = {each.key: _seconds_of(each, microbatch, seconds) for each in graph}
        before: dict[str, float] = {}
        after = dict.fromkeys(takes, 0.0)
        for segment in ordered:
            before[segment.key] = max(
                (before[key] + takes[key] for key in segment.inputs), default=0.0
            )
        for segment in reversed(ordered):
            for key in segment.inputs:
                after[key] = max(after[key], after[segment.key] + takes[segment.key])
        for segment in graph:
            key, rank = segment.key, segment.rank
            floor_s = max(floor_s, before[key] + takes[key] + after[key])
            work_s[rank] += alike * takes[key]
            to_s[rank] = min(to_s[rank], before[key])
            back_s[rank] = min(back_s[rank], after[key])
    busy = (sum(each) for each in zip(to_s, work_s, back_s, strict=True) if each[1])
    return max(floor_s, *busy, 0.0)


def _in_order(graph: Sequence[Segment]) -> list[Segment]:
    """Such that what a segment needs comes before it."""
    left = {segment.key: segment for segment in graph}
    ordered: list[Segment] = []
    done: set[str] = set()
    while left:
        ready = [each for each in left.values() if done.issuperset(each.inputs)]
        if not ready:
            raise ValueError("segments need each other; expected a graph that can run.")
        for each in ready:
            ordered.append(each)
            done.add(each.key)
            del left[each.key]
    return ordered


def peak_held(
    programs: Sequence[RankProgram], runs: Sequence[Sequence[Ran]]
) -> tuple[int | None, ...]:
    """By partition, the most bytes that it holds of microbatches at a time.

    As a rank counts that looks at what has come before each turn. None where the graph does not
    say how large something is.
    """
    senders = {edge.number: edge for program in programs for edge in program.edges}
    ends = {(run.segment, run.microbatch): run.end_s for own in runs for run in own}
    return tuple(
        _peak_of(program, own, senders, ends) for program, own in zip(programs, runs, strict=True)
    )


def _peak_of(
    program: RankProgram,
    runs: Sequence[Ran],
    senders: Mapping[int, Edge],
    ends: Mapping[tuple[str, int], float],
) -> int | None:
    sizes = [
        hold.num_bytes if hold.edge is None else senders[hold.edge].num_bytes
        for hold in program.holds
    ]
    if any(size is None for size in sizes):
        return None
    made: dict[str, list[int]] = {}
    used: dict[str, list[int]] = {}
    arrivals = []
    for number, hold in enumerate(program.holds):
        for user in hold.users:
            used.setdefault(user, []).append(number)
        if hold.edge is None:
            made.setdefault(hold.segment, []).append(number)
        else:
            sender = senders[hold.edge].segment
            arrivals += [
                (ends[sender, microbatch], number) for microbatch in range(program.microbatches)
            ]
    arrivals.sort()
    left = {
        (number, microbatch): len(hold.users)
        for number, hold in enumerate(program.holds)
        for microbatch in range(program.microbatches)
    }
    held = peak = num_arrived = 0
    for run in runs:
        while num_arrived < len(arrivals) and arrivals[num_arrived][0] <= run.begin_s:
            held += sizes[arrivals[num_arrived][1]] or 0
            num_arrived += 1
        peak = max(peak, held)
        held += sum(sizes[number] or 0 for number in made.get(run.segment, ()))
        peak = max(peak, held)
        for number in used.get(run.segment, ()):
            left[number, run.microbatch] -= 1
            if not left[number, run.microbatch]:
                held -= sizes[number] or 0
    return peak
