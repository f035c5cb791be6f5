# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The order in which each rank runs its segments: always possible, bounded, and good."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smdistributed.modelparallel.decide.schedules import SCHEDULES, schedule_named
from smdistributed.modelparallel.decide.schedules.interleaved import Interleaved
from smdistributed.modelparallel.decide.schedules.ordering import (
    Ordering,
    Segment,
    awaits_room,
    order,
)
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Schedule
from smdistributed.modelparallel.decide.schedules.simple import Simple
from smdistributed.modelparallel.decide.schedules.simulation import Visit, predict
from tests.unit.modelparallel.decide.schedules.graphs import check, random_case, run_lists

ROOT = Path(__file__).resolve().parents[5]


def forward(key: str, rank: int, *inputs: str, seconds: float = 1.0) -> Segment:
    return Segment(key, rank, Phase.FORWARD, inputs, seconds)


def backward(key: str, rank: int, *inputs: str, seconds: float = 1.0) -> Segment:
    return Segment(key, rank, Phase.BACKWARD, inputs, seconds)


def chain(ranks: int, backward_s: float = 1.0) -> list[Segment]:
    """F0 F1 ... B1 B0."""
    forwards = [
        forward(f"F{rank}", rank, *([f"F{rank - 1}"] if rank else [])) for rank in range(ranks)
    ]
    backwards = [
        backward(
            f"B{rank}",
            rank,
            f"F{rank}",
            *([f"B{rank + 1}"] if rank + 1 < ranks else []),
            seconds=backward_s,
        )
        for rank in range(ranks)
    ]
    return forwards + backwards


def names(ordering: Ordering) -> list[str]:
    """By rank, its turns in order: `F.3` is segment F for microbatch 3."""
    return [
        " ".join(f"{turn.segment}.{turn.microbatch}" for turn in ordering.of_rank(rank))
        for rank in ordering.runs
    ]


def test_random_graphs_run_at_any_speed_and_within_the_bound() -> None:
    for seed in range(500):
        schedule, segments, ranks = random_case(seed)
        try:
            check(schedule, segments, order(schedule, segments, ranks))
        except Exception as error:
            error.add_note(f"graph {seed}")
            raise


def test_processes_with_other_hash_seeds_find_the_same_orders() -> None:
    module = "tests.unit.modelparallel.decide.schedules.graphs"
    digests = {
        subprocess.run(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    (digest,) = digests
    assert len(digest.strip()) == 64


def test_the_check_finds_lists_that_block() -> None:
    schedule = Interleaved(2, 2)
    ordering = order(schedule, chain(2), 2)
    runs = dict(ordering.runs)
    runs[0] = runs[0][2:] + runs[0][:2]  # B0.0 before the F0.0 that it needs by way of rank 1
    with pytest.raises(AssertionError, match=r"ranks wait for each other before \{0: .*'B0'"):
        run_lists(
            schedule,
            chain(2),
            dataclasses.replace(ordering, runs=runs),
            lambda seconds: seconds,
        )


@pytest.mark.parametrize("pipeline", SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("backward_s", [1.0, 2.0])
@pytest.mark.parametrize("active", [1, 2, 6])
def test_a_chain_takes_as_long_as_predicted_with_a_leader(
    pipeline: str, ranks: int, backward_s: float, active: int
) -> None:
    schedule = schedule_named(pipeline, 8, active)
    ordering = order(schedule, chain(ranks, backward_s), ranks)
    predicted = predict(schedule, [Visit(rank, 1.0, backward_s) for rank in range(ranks)])
    assert ordering.makespan_s == predicted.makespan_s
    assert ordering.peak_microbatches == predicted.peak_microbatches
    if active >= 2 * ranks - 1 or pipeline == "simple":
        # (m + p - 1) slots of forward and backward: no schedule of equal stages needs less.
        assert ordering.makespan_s == (8 + ranks - 1) * (1.0 + backward_s)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # The example of the specification, section 3.6.
        (
            Interleaved(4, 2),
            ["F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3", "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3"],
        ),
        (
            Simple(2, 1),
            ["F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1"],
        ),
    ],
)
def test_a_chain_as_a_table(schedule: Schedule, expected: list[str]) -> None:
    assert names(order(schedule, chain(2), 2)) == expected


LOSS_EVERYWHERE = [
    forward("F0", 0),
    forward("F1", 1, "F0"),
    forward("L0", 0, "F1"),  # every rank computes the loss, and the gradient it begins with
    forward("L1", 1, "F1"),
    backward("G0", 0, "L0"),
    backward("G1", 1, "L1"),
    backward("B1", 1, "F1", "G1"),
    backward("B0", 0, "F0", "B1", "G0"),
]

USED_TWICE = [
    forward("F0", 0),
    forward("F1", 1, "F0"),
    forward("F2", 0, "F1"),
    forward("F3", 1, "F2"),
    backward("B3", 1, "F3"),
    backward("B2", 0, "F2", "B3"),
    backward("B1", 1, "F1", "B2"),
    backward("B0", 0, "F0", "B1"),
]

# Each rank begins with something of its own, which the other one needs last.
NO_LEADER = [
    forward("a", 0),
    forward("b", 1),
    forward("c", 1, "b", "a"),
    forward("d", 0, "a", "c"),
    backward("D", 0, "d"),
    backward("C", 1, "c", "D"),
    backward("A", 0, "a", "C"),
    backward("B", 1, "b", "C"),
]

EVALUATION = [forward("F0", 0), forward("F1", 1, "F0"), forward("own", 2)]


@pytest.mark.parametrize("pipeline", SCHEDULES)
@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize(
    "segments",
    [
        pytest.param(LOSS_EVERYWHERE, id="loss-everywhere"),
        pytest.param(USED_TWICE, id="used-twice"),
        pytest.param(NO_LEADER, id="no-leader"),
        pytest.param(EVALUATION, id="evaluation"),
        pytest.param([forward("F", 3)], id="one-segment"),
        pytest.param([backward("B", 0)], id="backward-alone"),
        pytest.param([], id="nothing"),
    ],
)
def test_shapes_of_graphs(segments: list[Segment], active: int, pipeline: str) -> None:
    for microbatches in (1, 2, 7):
        schedule = schedule_named(pipeline, microbatches, active)
        ordering = order(schedule, segments, 5)
        check(schedule, segments, ordering)
        assert ordering.of_rank(4) == ()


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        pytest.param(chain(3), {}, id="chain"),
        pytest.param(LOSS_EVERYWHERE, {}, id="loss-everywhere"),
        pytest.param(USED_TWICE, {}, id="used-twice"),
        pytest.param(EVALUATION, {"F0": (1,)}, id="evaluation"),
        # Nothing of rank 0 is trained: gradients do not come back to it.
        pytest.param([*EVALUATION[:2], backward("B1", 1, "F1")], {"F0": (1,)}, id="frozen"),
        # Rank 1 goes on after rank 0 has what it needs.
        pytest.param([*LOSS_EVERYWHERE, forward("own", 1, "L1")], {"F0": (1,)}, id="own"),
        pytest.param(
            [forward("F0", 0), forward("F1", 1, "F0"), forward("F2", 2, "F0", "F1")],
            {"F0": (1, 2), "F1": (2,)},
            id="two",
        ),
    ],
)
def test_who_has_to_be_told_of_room(
    segments: list[Segment], expected: dict[str, tuple[int, ...]]
) -> None:
    assert awaits_room(segments) == expected
    assert awaits_room(segments[::-1]) == expected


def test_messages_to_a_slow_rank_are_within_the_bound() -> None:
    segments = [forward("F0", 0), forward("F1", 1, "F0", seconds=10.0)]
    ordering = order(Interleaved(8, 2), segments, 2)
    assert [run.begin_s for run in ordering.runs[0]] == [0, 1, 11, 21, 31, 41, 51, 61]
    assert ordering.makespan_s == 81.0, "the slow rank never waits"
    assert order(Simple(8, 2), segments, 2).runs[0][-1].begin_s == 7.0


def test_two_levels_do_not_fill_the_bound_with_first_levels() -> None:
    expected = [
        "F0.0 F0.1 F2.0 F2.1 B2.0 B0.0 B2.1 F0.2 B0.1 F2.2 B2.2 B0.2",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B1.0 B3.1 B1.1 F1.2 F3.2 B3.2 B1.2",
    ]
    assert names(order(Interleaved(3, 2), USED_TWICE, 2)) == expected


def test_what_needs_nothing_waits_for_the_bound_of_its_rank() -> None:
    # Rank 1 has something that it could do for all microbatches at once, and keeps of each.
    segments = [
        forward("own", 1),
        forward("F0", 0, seconds=5.0),
        forward("F1", 1, "F0", "own"),
        backward("B1", 1, "F1"),
        backward("B0", 0, "F0", "B1"),
    ]
    ordering = order(Interleaved(4, 2), segments, 2)
    assert ordering.of_rank(1)[:4] == (("own", 0), ("own", 1), ("F1", 0), ("B1", 0))
    assert ordering.peak_microbatches == {0: 2, 1: 2}


def test_of_equally_urgent_segments_the_first_in_the_graph_comes_first() -> None:
    segments = [forward("b", 0), forward("a", 0)]
    assert names(order(Simple(2, 2), segments, 1)) == ["b.0 a.0 b.1 a.1"]
    assert names(order(Simple(2, 2), segments[::-1], 1)) == ["a.0 b.0 a.1 b.1"]


def test_a_backward_comes_first_also_where_it_begins_a_microbatch() -> None:
    segments = [
        forward("X", 1),
        forward("Y", 1),
        backward("B", 0, "X", seconds=10.0),
        forward("F", 0, "Y"),
    ]
    # When B.0 has ended, F.0 and B.1 are ready.
    assert names(order(Interleaved(2, 2), segments, 2)) == ["B.0 B.1 F.0 F.1", "X.0 Y.0 X.1 Y.1"]


def test_an_input_may_be_named_twice() -> None:
    segments = [
        Segment("F0", 0, Phase.FORWARD, kept_bytes=3, message_bytes=((1, 10),)),
        Segment("F1", 1, Phase.FORWARD, ("F0", "F0")),
        Segment("B0", 0, Phase.BACKWARD, ("F1", "F0", "F0")),
    ]
    ordering = order(Interleaved(5, 1), segments, 2)
    assert names(ordering)[1] == "F1.0 F1.1 F1.2 F1.3 F1.4"
    assert ordering.peak_bytes == {0: 3, 1: 10}, "the bytes of a microbatch have gone with it"


def test_segments_that_share_a_state_take_one_microbatch_after_the_other() -> None:
    graph = [forward("F", 0), forward("G", 1, "F"), forward("H", 0, "G")]
    free = order(Simple(2, 2), graph, 2)
    assert names(free)[0] == "F.0 F.1 H.0 H.1"
    graph[0] = dataclasses.replace(graph[0], follows=("H",))
    bound = order(Simple(2, 2), graph, 2)
    assert names(bound) == ["F.0 H.0 F.1 H.1", "G.0 G.1"]
    assert bound.makespan_s == 6.0


def test_bytes_are_kept_until_the_last_segment_that_needs_them() -> None:
    segments = [
        Segment("F0", 0, Phase.FORWARD, kept_bytes=1, message_bytes=((1, 10),)),
        Segment("F1", 1, Phase.FORWARD, ("F0",), kept_bytes=100),
        Segment("L1", 1, Phase.FORWARD, ("F1",), kept_bytes=1000),  # nothing needs it
        Segment("B1", 1, Phase.BACKWARD, ("F1", "F0"), message_bytes=((0, 5),)),
        Segment("B0", 0, Phase.BACKWARD, ("F0", "B1"), seconds=0.5),
    ]
    one = order(Simple(1, 1), segments, 2)
    assert one.peak_bytes == {0: 1 + 5, 1: 10 + 100 + 1000}
    # Both messages have come, and both microbatches are kept, when L1 runs for the second time.
    two = order(Simple(2, 1), segments, 2)
    assert two.peak_bytes == {0: 2 * 1 + 5, 1: 2 * (10 + 100) + 1000}


@pytest.mark.parametrize("pipeline", SCHEDULES)
def test_a_large_step_is_ordered_fast(pipeline: str) -> None:
    segments = [*chain(8), *(forward(f"L{rank}", rank, "F7") for rank in range(8))]
    segments += [backward(f"G{rank}", rank, f"L{rank}") for rank in range(8)]
    schedule = schedule_named(pipeline, 64, 10)
    begin = time.process_time()
    order(schedule, segments, 8)
    assert time.process_time() - begin < 0.2


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([forward("F", 0), forward("F", 1)], r"two segments have the key 'F'.*own key"),
        ([forward("F", 2)], r"'F' names rank 2; expected 0 to 1"),
        ([forward("F", -1)], r"'F' names rank -1; expected 0 to 1"),
        ([forward("F", 0, "X")], r"'F' needs 'X', which is no segment"),
        ([forward("F", 0, "B"), backward("B", 0)], r"'F' is a forward and needs 'B'.*backward"),
        ([forward("F", 0, "F")], r"circle: F <- F"),
        ([forward("F", 0, "G"), forward("G", 1, "F")], r"circle: \w <- \w <- \w.*two segments"),
        ([forward("F", 0, seconds=-1.0)], r"'F' takes -1.0 s; expected a number from 0 on"),
        ([forward("F", 0, seconds=float("nan"))], r"'F' takes nan s"),
        ([forward("F", 0, seconds=float("inf"))], r"'F' takes inf s"),
        ([Segment("F", 0, Phase.FORWARD, kept_bytes=-1)], r"'F' keeps or sends -1 bytes"),
        (
            [Segment("F", 0, Phase.FORWARD, message_bytes=((0, 4),))],
            r"'F' of rank 0 has messages to ranks \[0\]; expected each other rank at most once",
        ),
        (
            [Segment("F", 0, Phase.FORWARD, message_bytes=((1, 4), (1, 4)))],
            r"ranks \[1, 1\]; expected each other rank at most once",
        ),
        (
            [Segment("F", 0, Phase.FORWARD, message_bytes=((1, 4),))],
            r"'F' sends 4 bytes to rank 1, where no segment has it as an input",
        ),
        (
            [Segment("F", 0, Phase.FORWARD, follows=("G",)), forward("G", 1)],
            r"'F' of rank 0 follows 'G', which is no segment there",
        ),
        (
            [Segment("F", 0, Phase.FORWARD, follows=("B",)), backward("B", 0)],
            r"'F' is a forward and follows 'B', which is a backward",
        ),
    ],
)
def test_what_is_no_graph_is_refused(segments: list[Segment], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order(Simple(2, 2), segments, 2)


def test_a_schedule_that_begins_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"let 0 of 8 turns run.*active_microbatches 1 or more"):
        order(Interleaved(2, 0), chain(2), 2)


@pytest.mark.parametrize("pipeline", SCHEDULES)
def test_no_microbatches_are_no_turns(pipeline: str) -> None:
    ordering = order(schedule_named(pipeline, 0, 1), chain(2), 2)
    assert ordering == Ordering({0: (), 1: ()}, 0.0, {0: 0, 1: 0}, {0: 0, 1: 0})


def test_a_rank_that_does_not_exist_has_no_turns() -> None:
    with pytest.raises(KeyError):
        order(Simple(1, 1), chain(2), 2).of_rank(-1)
