# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Graphs of segments, and the check that ranks can run their lists, whatever their speed.

    python -m tests.unit.modelparallel.decide.schedules.graphs

prints a digest of the orders of some graphs, which another process must print too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence

from smdistributed.modelparallel.decide.schedules import SCHEDULES, schedule_named
from smdistributed.modelparallel.decide.schedules.ordering import (
    Ordering,
    Segment,
    Turn,
    awaits_room,
    order,
)
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Schedule


def random_case(seed: int) -> tuple[Schedule, list[Segment], int]:
    """A schedule, a graph for it, and the number of ranks."""
    chance = random.Random(seed)
    schedule = schedule_named(
        chance.choice(sorted(SCHEDULES)), chance.randint(1, 16), chance.randint(1, 6)
    )
    ranks = chance.randint(2, 5)
    return schedule, random_graph(chance, ranks), ranks


def random_graph(chance: random.Random, ranks: int) -> list[Segment]:
    """Up to 20 segments, with few or many inputs, in the order of their inputs or in any."""
    num_forwards = chance.randint(1, 12)
    num_backwards = chance.choice([0, chance.randint(1, 8)])
    most_inputs = chance.randint(1, 4)
    segments: list[Segment] = []
    for number in range(num_forwards + num_backwards):
        phase = Phase.FORWARD if number < num_forwards else Phase.BACKWARD
        inputs = chance.sample(segments, min(chance.randint(0, most_inputs), len(segments)))
        segment = Segment(
            key=f"{phase.value}{number}",
            rank=chance.randrange(ranks),
            phase=phase,
            inputs=tuple(each.key for each in inputs),
            seconds=chance.choice([0.0, 1.0, 2.0, chance.uniform(0.1, 3.0)]),
            kept_bytes=chance.randint(0, 100),
        )
        segments.append(segment)
    if chance.random() < 0.5:
        chance.shuffle(segments)
    if chance.random() < 0.5:
        segments = [_following(chance, each, segments) for each in segments]
    return segments


def _following(chance: random.Random, segment: Segment, segments: Sequence[Segment]) -> Segment:
    may_be_followed = [
        each.key
        for each in segments
        if each.rank == segment.rank
        and (segment.phase is Phase.BACKWARD or each.phase is Phase.FORWARD)
    ]
    count = min(chance.randint(0, 2), len(may_be_followed))
    return dataclasses.replace(segment, follows=tuple(chance.sample(may_be_followed, count)))


def check(schedule: Schedule, segments: Sequence[Segment], ordering: Ordering) -> None:
    """What is true of every order."""
    for rank in ordering.runs:
        here = {segment.key: segment for segment in segments if segment.rank == rank}
        turns = ordering.of_rank(rank)
        expected = {Turn(key, each) for key in here for each in range(schedule.microbatches)}
        assert set(turns) == expected, "each segment runs for each microbatch"
        assert len(turns) == len(expected), "once"
        for key in here:
            its = [turn.microbatch for turn in turns if turn.segment == key]
            assert its == sorted(its), f"{key} takes the microbatches in ascending order"
        for key in here:
            for followed in here[key].follows:
                for microbatch in range(1, schedule.microbatches):
                    before = turns.index(Turn(followed, microbatch - 1))
                    assert before < turns.index(Turn(key, microbatch)), f"{key} follows {followed}"
        firsts = list(dict.fromkeys(turn.microbatch for turn in turns))
        assert firsts == sorted(firsts), f"rank {rank} begins them in ascending order"
        if schedule.name == "simple":
            phases = [here[turn.segment].phase for turn in turns]
            assert phases == sorted(phases, key=list(Phase).index), "no forward after a backward"
        most = most_under_way(turns)
        assert most <= schedule.bound
        assert most == ordering.peak_microbatches[rank]
    chance = random.Random(len(segments))
    for speeds in ((1, 1), (0, 1), (0.001, 1000)):
        run_lists(
            schedule, segments, ordering, lambda seconds, s=speeds: seconds * chance.uniform(*s)
        )
    ends = run_lists(schedule, segments, ordering, lambda seconds: seconds)
    runs = list(itertools.chain.from_iterable(ordering.runs.values()))
    assert ends == {run.turn: run.end_s for run in runs}, "what is predicted is what is done"
    assert ordering.makespan_s == max(ends.values(), default=0.0)


def most_under_way(turns: Sequence[Turn]) -> int:
    """Of microbatches that have begun in a list and not ended: all that it keeps is theirs."""
    last = {turn.microbatch: place for place, turn in enumerate(turns)}
    under_way: set[int] = set()
    most = 0
    for place, turn in enumerate(turns):
        under_way.add(turn.microbatch)
        most = max(most, len(under_way))
        if last[turn.microbatch] == place:
            under_way.remove(turn.microbatch)
    return most


def run_lists(
    schedule: Schedule,
    segments: Sequence[Segment],
    ordering: Ordering,
    seconds_of: Callable[[float], float],
) -> dict[Turn, float]:
    """When each turn ends where each rank runs its list in order, and waits for what it is told.

    Args:
        seconds_of: how long a turn takes, given the seconds of its segment.

    Raises:
        AssertionError: the ranks wait for each other, or one holds too much.
    """
    room = awaits_room(segments)
    by_key = {segment.key: segment for segment in segments}
    lists = {rank: list(ordering.of_rank(rank)) for rank in ordering.runs}
    last = {(rank, turn.microbatch): turn for rank, turns in lists.items() for turn in turns}
    free_at = dict.fromkeys(lists, 0.0)
    places = dict.fromkeys(lists, 0)
    begins: dict[Turn, float] = {}
    ends: dict[Turn, float] = {}
    moved = True
    while moved:
        moved = False
        for rank, turns in lists.items():
            while places[rank] < len(turns):
                turn = turns[places[rank]]
                segment = by_key[turn.segment]
                awaited = [Turn(key, turn.microbatch) for key in segment.inputs]
                before = turn.microbatch - schedule.bound
                if before >= 0:
                    awaited += [last[other, before] for other in room.get(turn.segment, ())]
                if not all(each in ends for each in awaited):
                    break
                begins[turn] = max([free_at[rank], *(ends[each] for each in awaited)])
                ends[turn] = free_at[rank] = begins[turn] + seconds_of(segment.seconds)
                places[rank] += 1
                moved = True
    waiting = {rank: turns[places[rank] :][:1] for rank, turns in lists.items()}
    assert not any(waiting.values()), f"ranks wait for each other before {waiting}"
    for rank in lists:
        most = most_held(rank, by_key, begins, ends)
        assert most <= schedule.bound, f"rank {rank} holds {most} with messages that wait"
    return ends


def most_held(
    rank: int,
    by_key: Mapping[str, Segment],
    begins: Mapping[Turn, float],
    ends: Mapping[Turn, float],
) -> int:
    """Of microbatches under way on a rank, or of which a message has come."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for turn, end_s in ends.items():
        segment = by_key[turn.segment]
        if segment.rank != rank:
            continue
        come = [ends[Turn(key, turn.microbatch)] for key in segment.inputs]
        first[turn.microbatch] = min([first.get(turn.microbatch, begins[turn]), *come])
        last[turn.microbatch] = max(last.get(turn.microbatch, end_s), end_s)
    # What ends at a time has gone before something comes at the same time.
    changes = sorted([(at, 1) for at in first.values()] + [(at, -1) for at in last.values()])
    return max(itertools.accumulate(change for _, change in changes), default=0)


def _digest(num_graphs: int) -> str:
    orders = (order(*random_case(seed)) for seed in range(num_graphs))
    return hashlib.sha256("".join(repr(each) for each in orders).encode()).hexdigest()


if __name__ == "__main__":
    print(_digest(50))
