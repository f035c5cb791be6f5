# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for messages, on a channel that a test feeds, by a clock that it sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from smdistributed.modelparallel.messages import waiting
from smdistributed.modelparallel.messages.waiting import Wait


class Late(Exception):
    """What a wait raises here."""


@dataclasses.dataclass
class Arrived:
    """A message."""

    source: int = 0
    header: bytes = b""
    nbytes: int = 0


class Channel:
    """Brings a message at a time; nobody sleeps."""

    def __init__(self, arrives_s: Sequence[float] = ()) -> None:
        self.now_s = 100.0
        self.asked: list[float] = []
        self._arrives = [100.0 + each for each in arrives_s]

    def next_message(self, timeout_s: float) -> Arrived | None:
        self.asked.append(timeout_s)
        if self._arrives and self._arrives[0] <= self.now_s + timeout_s:
            self.now_s = max(self.now_s, self._arrives.pop(0))
            return Arrived()
        self.now_s += timeout_s
        return None

    def post_message(self, dest: int, header: bytes, segments: Sequence[tuple[int, int]]) -> None:
        """Unused."""

    def abort(self, reason: str) -> None:
        """Unused."""


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Channel:
    made = Channel()
    monkeypatch.setattr(waiting.time, "monotonic", lambda: made.now_s)
    return made


def test_the_limit_is_for_all_messages_of_a_wait_together(channel: Channel) -> None:
    channel._arrives = [104.0, 108.0]
    wait = Wait(lambda: "x of rank 1", 10.0, Late)
    wait.next_message(channel)
    wait.next_message(channel)
    words = r"nothing has come for 10 s; expected x of rank 1\. .*with SMDDP_TIMEOUT_SECONDS\.$"
    with pytest.raises(Late, match=words):
        wait.next_message(channel)
    assert channel.now_s == 110.0
    assert max(channel.asked) <= 5.0


def test_there_is_no_limit_where_nothing_is_expected(channel: Channel) -> None:
    channel._arrives = [1000.0]
    Wait(lambda: "", 10.0, Late).next_message(channel)
    assert len(channel.asked) < 200, "it does not look all the time"


def test_a_long_wait_is_told_of_once(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Late):
        Wait(lambda: "x of rank 1", 100.0, Late).next_message(channel)
    assert [record.getMessage() for record in caplog.records] == [
        "nothing has come for 30 s; expected x of rank 1"
    ]


@pytest.mark.parametrize(("stall_s", "told"), [(12.0, [(15.0, "x of rank 1")]), (0.0, [])])
def test_who_waits_may_say_when_and_how(
    channel: Channel, stall_s: float, told: list[tuple[float, str]]
) -> None:
    found: list[tuple[float, str]] = []

    def tell(waited_s: float, awaited: str) -> None:
        found.append((waited_s, awaited))

    with pytest.raises(Late):
        Wait(lambda: "x of rank 1", 100.0, Late, stall_s=stall_s, tell=tell).next_message(channel)
    assert found == told


def test_something_else_may_end_it(channel: Channel) -> None:
    def look() -> None:
        if channel.now_s > 101.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Wait(lambda: "x", 100.0, Late, 0.5, look).next_message(channel)
    assert channel.now_s == 101.5
