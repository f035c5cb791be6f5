# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a profile leads to: ways, memory and messages of small made-up models."""

from __future__ import annotations

import dataclasses

import pytest

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.decide.schedules.simulation import Visit
from smdistributed.modelparallel.report.costs import (
    BackwardLevel,
    ForwardLevel,
    Holder,
    Message,
    Piece,
    Profile,
)
from smdistributed.modelparallel.report.expectation import (
    expect_of_profile,
    visits,
    with_memory,
)
from tests.unit.modelparallel.report.synthetic import settings

# Each keeps 10 bytes more than the one before; gradients of parameters are 4 bytes each.
PROFILE = Profile(
    holders=(
        Holder("main", 0, 0, 0, 0),
        Holder("main/a", 1, 4, 4, 1),
        Holder("main/b", 1, 4, 4, 0),
    ),
    forward=(Piece("main/a", 1.0), Piece("main/b", 2.0)),
    backward=(Piece("main/b", 4.0), Piece("main/a", 2.0)),
    forward_levels=(ForwardLevel("main/a", 0, 15, 10), ForwardLevel("main/b", 10, 40, 30)),
    backward_levels=(
        BackwardLevel("main/b", 30, 33, 35, 4),
        BackwardLevel("main/a", 10, 12, 16, 4),
    ),
    messages=(Message("main", ("main/a",), 3, 0), Message("main/a", ("main/b",), 5, 5)),
)


def test_partitions_that_follow_each_other() -> None:
    places = {"main": 0, "main/a": 0, "main/b": 1}
    found = expect_of_profile(PROFILE, places, settings(4), states_per_parameter=2)
    assert found.way == (Visit(0, 1.0, 2.0), Visit(1, 2.0, 4.0))
    assert found.step_s == pytest.approx(1.0 + 4 * 6.0 + 2.0)
    assert found.busy_s == (12.0, 24.0)
    assert found.bubble == pytest.approx((1 - 12 / 27, 1 - 24 / 27))
    # Parameter, gradient, two states; and a buffer.
    assert found.standing_bytes == (4 * 4 + 1, 4 * 4)
    assert found.sent_bytes == {"0-1": 4 * 5, "1-0": 4 * 5}
    # Rank 1 has one microbatch at a time: its copy of what came (5), what it keeps (20), and, in
    # its backward, 3 more and the gradient. In its forward 30 and the copy; later gradients exist.
    assert found.peak_bytes[1] == 4 * 3 + 4 + 35
    # Rank 0 keeps four of ten bytes before the first backward pass, which needs 6 with gradients
    # and the gradient that came back (5).
    assert found.peak_bytes[0] == 4 * 3 + 1 + 4 * 10 + 6 + 5


def test_memory_of_the_order_in_which_a_rank_has_worked() -> None:
    places = {"main": 0, "main/a": 0, "main/b": 1}
    chosen = settings(4)
    planned = expect_of_profile(PROFILE, places, chosen, states_per_parameter=2)
    phases = (Phase.FORWARD, Phase.BACKWARD)
    in_turn = [Task(phase, microbatch) for microbatch in range(4) for phase in phases]
    found = with_memory(planned, PROFILE, places, chosen, 2, {0: in_turn, 1: []})
    # One microbatch at a time, so that the forward of the second one, with all gradients there,
    # needs 15; the first backward pass 6 above the 10 kept, and 5 that came back.
    assert found.peak_bytes[0] == 4 * 3 + 1 + 10 + 6 + 5
    assert found.peak_bytes[1] == planned.peak_bytes[1]  # not told of: as the schedule has it


def test_one_partition_sends_nothing() -> None:
    places = dict.fromkeys(("main", "main/a", "main/b"), 0)
    found = expect_of_profile(PROFILE, places, settings(2, partitions=1), 0)
    assert found.sent_bytes == {}
    assert found.bubble == (0.0,)


def test_who_only_passes_results_on_does_not_wait_for_them() -> None:
    calls = dataclasses.replace(
        PROFILE,
        forward=(*PROFILE.forward, Piece("main", 1.0)),
        forward_levels=(*PROFILE.forward_levels, ForwardLevel("main", 30, 30, 30)),
    )
    places = {"main": 0, "main/a": 0, "main/b": 1}
    assert expect_of_profile(calls, places, settings(4), 2).way[0] == Visit(0, 2.0, 2.0)
    looks = dataclasses.replace(
        calls, messages=(*calls.messages, Message("main/b", ("main",), 5, 5))
    )
    ranks = [visit.rank for visit in expect_of_profile(looks, places, settings(4), 2).way]
    assert ranks == [0, 1, 0]


def test_a_leader_that_is_visited_twice_keeps_each_visit_from_its_own_time() -> None:
    again = dataclasses.replace(
        PROFILE,
        forward=(*PROFILE.forward, Piece("main", 1.0)),
        forward_levels=(*PROFILE.forward_levels, ForwardLevel("main", 30, 31, 31)),
        messages=(*PROFILE.messages, Message("main/b", ("main",), 5, 5)),
    )
    places = {"main": 0, "main/a": 0, "main/b": 1}
    chosen = settings(4)
    planned = expect_of_profile(again, places, chosen, 0)
    assert [visit.rank for visit in planned.way] == [0, 1, 0]
    starts = [Task(Phase.FORWARD, each) for each in range(4)]
    others = [
        Task(phase, each)
        for each in range(4)
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD)
    ]
    found = with_memory(planned, again, places, chosen, 0, {0: [*starts, *others]})
    # The first visits of all microbatches (10 each), and the second one of the first: 1, and 5 that
    # came. The first way back needs 6 with gradients, and 5 come back to it.
    assert found.peak_bytes[0] == 4 + 1 + 4 * 10 + (1 + 5) + 6 + 5


def test_a_message_goes_to_each_partition_once() -> None:
    message = Message("main", ("main/a", "main/b", "main/c"), 8, 8)
    assert message.crossings({"main": 0, "main/a": 1, "main/b": 1, "main/c": 0}) == {1}


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(0, 1.0), (1, 1.0)], [0, 1]),
        ([(1, 1.0)], [0, 1]),  # the leader begins, whoever computes
        ([(0, 1.0), (1, 1.0), (0, 0.001), (1, 1.0)], [0, 1]),
        ([(0, 1.0), (1, 1.0), (0, 0.5), (1, 1.0)], [0, 1, 0, 1]),
    ],
)
def test_short_pieces_are_no_visits(pieces: list[tuple[int, float]], expected: list[int]) -> None:
    back = {1: 6.0}
    way = visits(pieces, back)
    assert [visit.rank for visit in way] == expected
    assert sum(visit.forward_s for visit in way) == pytest.approx(sum(s for _, s in pieces))
    assert sum(visit.backward_s for visit in way) == pytest.approx(6.0)
