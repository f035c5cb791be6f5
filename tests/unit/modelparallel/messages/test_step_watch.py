# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replicas that run different numbers of steps, over a channel in memory and by a clock to set."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Sequence

import pytest

from smdistributed.modelparallel.messages import step_watch
from smdistributed.modelparallel.messages.step_watch import StepWatch

STALL_S = 30.0


@dataclasses.dataclass
class Arrived:
    """A message."""

    source: int
    header: bytes
    nbytes: int = 0


class Channel:
    """Of one rank; what it posts lies in the lists of the others at once."""

    def __init__(self, rank: int, inboxes: list[deque[Arrived]]) -> None:
        self._rank = rank
        self._inboxes = inboxes

    def next_message(self, timeout_s: float) -> Arrived | None:
        inbox = self._inboxes[self._rank]
        return inbox.popleft() if inbox else None

    def post_message(self, dest: int, header: bytes, segments: Sequence[tuple[int, int]]) -> None:
        assert not segments
        self._inboxes[dest].append(Arrived(self._rank, header))

    def abort(self, reason: str) -> None:
        """Unused."""


class Replicas:
    """The watches of three, and their clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(step_watch.time, "monotonic", lambda: self.now_s)
        inboxes: list[deque[Arrived]] = [deque() for _ in range(3)]
        names = ["rank 0", "rank 2", "rank 4"]
        self.inboxes = inboxes
        self.watches = [
            StepWatch(Channel(rank, inboxes), rank, names, STALL_S, "Count batches.")
            for rank in range(3)
        ]

    def run(self, *steps: int) -> None:
        for watch, count in zip(self.watches, steps, strict=True):
            for _ in range(count):
                watch.step_ended()

    def look_after(self, seconds: float) -> None:
        self.now_s += seconds
        for _ in range(3):  # asked, answered, told
            for watch in self.watches:
                watch.look()


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    return Replicas(monkeypatch)


def test_who_has_run_more_steps_tells_who_has_run_fewer(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    replicas.run(5, 3, 5)
    with caplog.at_level(logging.WARNING, "smdistributed"):
        replicas.look_after(STALL_S - 1)
        assert not caplog.messages
        replicas.look_after(1)
        replicas.look_after(STALL_S)  # once
    assert sorted(caplog.messages) == [
        f"{rank} has run 5 steps, and no other for 30.0 s; rank 2, which has the same partition of"
        " another replica, has run 3. An all-reduce here, as of hvd.allreduce(), waits for that"
        " rank. Count batches."
        for rank in ("rank 0", "rank 4")
    ]


def test_nothing_is_said_while_steps_end_or_where_all_have_run_as_many(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "smdistributed"):
        replicas.look_after(10 * STALL_S)  # before the first step
        assert not any(replicas.inboxes)
        for _ in range(4):
            replicas.run(1, 0, 1)
            replicas.look_after(STALL_S - 1)
            replicas.run(0, 1, 0)
        assert not any(replicas.inboxes)
        replicas.look_after(10 * STALL_S)
    assert not caplog.messages


def test_an_answer_that_comes_after_the_next_step_is_no_news(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = replicas.watches
    replicas.run(2, 1, 2)
    replicas.now_s += STALL_S
    with caplog.at_level(logging.WARNING, "smdistributed"):
        first.look()
        second.look()
        replicas.run(1, 2, 1)
        first.look()
    assert not caplog.messages
