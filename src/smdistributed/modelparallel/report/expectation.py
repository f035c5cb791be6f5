# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a step should be like: from a microbatch's way through the ranks, by the schedule's rules.

The way comes from a timeline of what has happened, or from a profile of what modules cost. Either
is a row of pieces, each on a partition; pieces too short to matter are no visit of their own.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from smdistributed.modelparallel.decide.schedules.ordering import Segment
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.decide.schedules.simulation import Prediction, Visit, predict
from smdistributed.modelparallel.report.costs import (
    BackwardLevel,
    ForwardLevel,
    Profile,
    Settings,
)
from smdistributed.modelparallel.report.segments import (
    Lists,
    TurnSeconds,
    floor_of,
    lists_of,
    play,
)

__all__ = [
    "Expected",
    "ExpectedRun",
    "expect",
    "expect_again",
    "expect_alike",
    "expect_of_graph",
    "expect_of_profile",
    "expected_runs",
    "visits",
    "with_memory",
]

# Of a microbatch's forward: what takes less is no visit. Handing on a result is such a piece.
_LEAST_SHARE = 0.02


@dataclasses.dataclass(frozen=True)
class Expected:
    """A step as it should be.

    Attributes:
        way: of each microbatch; empty where its segments are known.
        step_s: with the schedule's rules, and nothing else in the way.
        floor_s: no schedule needs less.
        busy_s, bubble: by partition; the bubble is the share of the step in which it waits.
        standing_bytes: by partition, parameters with gradients and optimizer states, and buffers;
            empty if unknown.
        peak_bytes: by partition, at most at a time; empty if unknown. Of segments: what is held of
            microbatches alone.
        sent_bytes: by `(source, dest)` as a text "0-1", bytes per step; empty if unknown.
        graph: the segments of all ranks, where they are known.
        guesses: by segment of the graph, the seconds by which the library orders them.
        lists: what ranks run of them.
        turn_seconds: by partition, those of each entry of its list in one step, for a picture;
            empty where each microbatch takes what the graph says.
    """

    way: tuple[Visit, ...]
    step_s: float
    floor_s: float
    busy_s: tuple[float, ...]
    bubble: tuple[float, ...]
    standing_bytes: tuple[int, ...] = ()
    peak_bytes: tuple[int, ...] = ()
    sent_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    graph: tuple[Segment, ...] = ()
    guesses: tuple[float, ...] = ()
    lists: Lists = ()
    turn_seconds: tuple[tuple[float, ...], ...] = ()


class ExpectedRun(NamedTuple):
    """A stretch of work as it should be, in seconds since the step began."""

    phase: str
    microbatch: int
    begin_s: float
    end_s: float


def visits(pieces: Iterable[tuple[int, float]], back: Mapping[int, float]) -> list[Visit]:
    """A microbatch's way.

    Args:
        pieces: partitions with seconds, in order of the forward.
        back: seconds of the backward, by partition.

    Returns: visits, the first of which is the leader's; all partitions that compute have one.
    """
    only_back = [(each, 0.0) for each, seconds in back.items() if seconds]
    merged = _without_short(_joined([(0, 0.0), *pieces, *only_back]))
    totals: dict[int, float] = {}
    counts: dict[int, int] = {}
    for partition, seconds in merged:
        totals[partition] = totals.get(partition, 0.0) + seconds
        counts[partition] = counts.get(partition, 0) + 1
    way = []
    for partition, seconds in merged:
        total = totals[partition]
        share = seconds / total if total else 1 / counts[partition]
        way.append(Visit(partition, seconds, back.get(partition, 0.0) * share))
    return way


def _joined(pieces: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    return [
        (partition, sum(seconds for _, seconds in group))
        for partition, group in itertools.groupby(pieces, key=lambda piece: piece[0])
    ]


def _without_short(pieces: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Adds what is short to another visit of its partition, the shortest first."""
    least = _LEAST_SHARE * sum(seconds for _, seconds in pieces)
    while True:
        partitions = [partition for partition, _ in pieces]
        short = [
            (seconds, index)
            for index, (partition, seconds) in enumerate(pieces)
            if seconds <= least and partitions.count(partition) > 1 and index > 0
        ]
        if not short:
            return pieces
        seconds, index = min(short)
        partition = partitions[index]
        rest = pieces[:index] + pieces[index + 1 :]
        home = max(
            (at for at, (each, _) in enumerate(rest) if each == partition),
            key=lambda at: rest[at][1],
        )
        rest[home] = (partition, rest[home][1] + seconds)
        pieces = _joined(rest)


def expect(way: Sequence[Visit], settings: Settings) -> Expected:
    """The step in which every microbatch goes that way."""
    predicted = predict(settings.schedule(), way)
    busy = _busy(predicted, settings.partitions)
    makespan = predicted.makespan_s
    return Expected(
        way=tuple(way),
        step_s=makespan,
        floor_s=predicted.floor_s,
        busy_s=busy,
        bubble=tuple(1 - each / makespan if makespan else 0.0 for each in busy),
    )


def expect_of_graph(
    graph: Sequence[Segment],
    guesses: Sequence[float],
    lists: Lists,
    settings: Settings,
    steps: Sequence[TurnSeconds] = (),
) -> Expected:
    """The step in which ranks run these lists.

    Args:
        graph: with the seconds that segments take.
        guesses: by segment, those by which the library has ordered them.
        lists: by partition.
        steps: that ran. The lists are played with the times of each, of which the medians count: a
            segment does not take the same time for each microbatch, and what comes late makes
            others wait, what comes early does not make up for it. None: each microbatch takes what
            the graph says.
    """
    bound = settings.schedule().bound
    floors, lengths, busy, bubbles = [], [], [], []
    for seconds in steps or (None,):
        runs = play(graph, lists, bound, seconds)
        busy.append([sum(run.end_s - run.begin_s for run in own) for own in runs])
        lengths.append(max((own[-1].end_s for own in runs if own), default=0.0))
        bubbles.append([1 - each / lengths[-1] if lengths[-1] else 0.0 for each in busy[-1]])
        floors.append(floor_of(graph, settings.microbatches, settings.partitions, seconds))
    return Expected(
        way=(),
        step_s=statistics.median(lengths),
        floor_s=statistics.median(floors),
        busy_s=tuple(map(statistics.median, zip(*busy, strict=True))),
        bubble=tuple(map(statistics.median, zip(*bubbles, strict=True))),
        graph=tuple(graph),
        guesses=tuple(guesses),
        lists=lists,
    )


def expect_alike(expected: Expected, settings: Settings) -> Expected:
    """The same, if each microbatch took what the graph says: for comparison with what never ran."""
    if not expected.graph:
        return expected
    return expect_of_graph(expected.graph, expected.guesses, expected.lists, settings)


def expect_again(expected: Expected, settings: Settings, factor: int = 1) -> Expected:
    """The same computing under other settings, in pieces that are smaller by a factor."""
    if not expected.graph:
        way = [
            dataclasses.replace(
                visit, forward_s=visit.forward_s / factor, backward_s=visit.backward_s / factor
            )
            for visit in expected.way
        ]
        return expect(way, settings)
    guessed, real = [], []
    for segment, guess in zip(expected.graph, expected.guesses, strict=True):
        guessed.append(dataclasses.replace(segment, seconds=guess))
        real.append(dataclasses.replace(segment, seconds=segment.seconds / factor))
    return expect_of_graph(real, expected.guesses, lists_of(guessed, settings), settings)


def expected_runs(expected: Expected, settings: Settings) -> list[list[ExpectedRun]]:
    """What each rank should do when, by partition."""
    if not expected.graph:
        runs = predict(settings.schedule(), expected.way).runs
        return [
            [
                ExpectedRun(run.task.phase.value, run.task.microbatch, run.begin_s, run.end_s)
                for run in runs.get(partition, ())
            ]
            for partition in range(settings.partitions)
        ]
    phases = {segment.key: segment.phase.value for segment in expected.graph}
    seconds = {
        turn: each
        for own, found in zip(expected.lists, expected.turn_seconds, strict=False)
        for turn, each in zip(own, found, strict=True)
    }
    played = play(expected.graph, expected.lists, settings.schedule().bound, seconds or None)
    return [
        [ExpectedRun(phases[run.segment], run.microbatch, run.begin_s, run.end_s) for run in own]
        for own in played
    ]


def _busy(predicted: Prediction, partitions: int) -> tuple[float, ...]:
    return tuple(
        sum(run.end_s - run.begin_s for run in predicted.runs.get(partition, ()))
        for partition in range(partitions)
    )


def expect_of_profile(
    profile: Profile,
    partition_of: Mapping[str, int],
    settings: Settings,
    states_per_parameter: float,
) -> Expected:
    """A step of a model that has been profiled, in any partition.

    Args:
        profile: of one microbatch.
        partition_of: by path; all holders of the profile are in it.
        states_per_parameter: elements that the optimizer keeps for one of a parameter.
    """
    pieces = _pieces(profile, partition_of)
    back: dict[int, float] = {}
    for path, seconds in profile.backward:
        back[partition_of[path]] = back.get(partition_of[path], 0.0) + seconds
    expected = expect(visits(pieces, back), settings)
    return with_memory(expected, profile, partition_of, settings, states_per_parameter)


def _pieces(profile: Profile, partition_of: Mapping[str, int]) -> list[tuple[int, float]]:
    """A microbatch's forward, in order.

    A module that calls others elsewhere, and does not compute with what they return, does not wait
    for them either: what it does after such a call belongs to what it did before.
    """
    waiting = {
        dest
        for message in profile.messages
        for dest in message.dests
        if partition_of[dest] != partition_of[message.source]
    }
    pieces: list[tuple[int, float]] = []
    for path, seconds in profile.forward:
        place = partition_of[path]
        before = [at for at, (each, _) in enumerate(pieces) if each == place]
        if before and path not in waiting and before[-1] != len(pieces) - 1:
            pieces[before[-1]] = place, pieces[before[-1]][1] + seconds
        else:
            pieces.append((place, seconds))
    return pieces


def with_memory(
    expected: Expected,
    profile: Profile,
    partition_of: Mapping[str, int],
    settings: Settings,
    states_per_parameter: float,
    orders: Mapping[int, Sequence[Task]] | None = None,
) -> Expected:
    """The same with what a profile says of memory and messages.

    Args:
        orders: by partition, what it did one after the other in the step whose memory was measured;
            of those that are not in it, what the schedule leads to.
    """
    runs = predict(settings.schedule(), expected.way).runs
    tasks = {partition: [run.task for run in own] for partition, own in runs.items()}
    tasks |= {partition: list(own) for partition, own in (orders or {}).items() if own}
    standing, peaks = [], []
    sent: dict[str, int] = {}
    for message in profile.messages:
        source = partition_of[message.source]
        for dest in message.crossings(partition_of):
            for one, other, size in (
                (source, dest, message.num_bytes),
                (dest, source, message.returns_bytes),
            ):
                key = f"{one}-{other}"
                sent[key] = sent.get(key, 0) + size * settings.microbatches
    for partition in range(settings.partitions):
        here = [each for each in profile.holders if partition_of[each.path] == partition]
        parameters = sum(each.parameter_bytes for each in here)
        gradients = sum(each.gradient_bytes for each in here)
        states = round(gradients * states_per_parameter)
        fixed = parameters + states + sum(each.buffer_bytes for each in here)
        standing.append(fixed + gradients)
        peaks.append(
            fixed
            + _peak(
                tasks.get(partition, []),
                _Levels.of(
                    profile,
                    partition_of,
                    partition,
                    sum(visit.rank == partition for visit in expected.way),
                ),
                gradients,
            )
        )
    return dataclasses.replace(
        expected, standing_bytes=tuple(standing), peak_bytes=tuple(peaks), sent_bytes=sent
    )


@dataclasses.dataclass
class _Stay:
    """A visit's bytes.

    Attributes:
        kept: from its forward to its backward.
        forward: above what was kept before, at most.
    """

    kept: int
    forward: int

    def go_on(self, following: _Stay) -> None:
        """Both are one visit."""
        self.forward = max(self.forward, self.kept + following.forward)
        self.kept += following.kept


@dataclasses.dataclass(frozen=True)
class _Levels:
    """Of one microbatch on one partition, in bytes.

    Attributes:
        stays: by visit.
        backward: above what is kept, at most.
        first_backward: likewise, gradients of parameters included, which are new then.
    """

    stays: list[_Stay]
    backward: int
    first_backward: int

    @classmethod
    def of(
        cls, profile: Profile, partition_of: Mapping[str, int], partition: int, num_visits: int
    ) -> _Levels:
        """What a profile says of a partition that a microbatch visits so many times."""
        # Of a message both sides have a copy: the receiver keeps its own.
        came = sum(
            message.num_bytes
            for message in profile.messages
            if partition in message.crossings(partition_of)
        )
        returned = sum(
            message.returns_bytes * len(message.crossings(partition_of))
            for message in profile.messages
            if partition_of[message.source] == partition
        )

        def is_here(level: ForwardLevel | BackwardLevel) -> bool:
            return partition_of[level.path] == partition

        stays = []
        for here, group in itertools.groupby(profile.forward_levels, key=is_here):
            levels = list(group)
            if here:
                begin = levels[0].begin
                peak = max(level.peak for level in levels)
                stays.append(_Stay(levels[-1].end - begin, peak - begin))
        while len(stays) > max(1, num_visits):
            least = min(range(1, len(stays)), key=lambda at: abs(stays[at].kept))
            stays[least - 1].go_on(stays.pop(least))
        # To the leader nothing comes before the second visit.
        stays = stays or [_Stay(0, 0)]
        with_messages = stays[partition == 0 and len(stays) > 1]
        with_messages.kept += came
        with_messages.forward += came
        backward = first = new = 0
        for here, going_back in itertools.groupby(profile.backward_levels, key=is_here):
            begins: list[int] = []
            for level in going_back if here else ():
                begins.append(level.begin)
                begin = begins[0]
                backward = max(backward, level.peak - begin)
                first = max(first, new + level.peak_with - begin)
                new += level.gradients
        return cls(stays, backward + returned, first + returned)


def _peak(tasks: Sequence[Task], levels: _Levels, gradients: int) -> int:
    """The most bytes of activations and gradients that a rank has at a time."""
    last = {task.microbatch: index for index, task in enumerate(tasks)}
    kept: dict[int, list[int]] = {}
    held = peak = 0
    has_gradients = False
    for index, task in enumerate(tasks):
        microbatch = task.microbatch
        stays = kept.setdefault(microbatch, [])
        existing = gradients * has_gradients
        if task.phase is Phase.FORWARD:
            stay = levels.stays[min(len(stays), len(levels.stays) - 1)]
            peak = max(peak, held + existing + stay.forward)
            stays.append(stay.kept)
            held += stay.kept
        else:
            above = levels.backward if has_gradients else levels.first_backward
            peak = max(peak, held + existing + above)
            has_gradients = True
        if index == last[microbatch]:
            held -= sum(stays)
            stays.clear()
        elif task.phase is Phase.BACKWARD:
            held -= stays.pop()
    return peak
