# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""When an agent counts as silent, and when nobody could have heard it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smdistributed.launch.backends.heartbeat import MOST_SILENT_S, Heartbeat

LOOK_S = 0.5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def looked(heartbeat: Heartbeat, clock: Clock, seconds: float, step: float = LOOK_S) -> float:
    """How silent it was after looks for so many seconds."""
    silent = heartbeat.silent_s()
    for _ in range(round(seconds / step)):
        clock.now += step
        silent = heartbeat.silent_s()
    return silent


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "heartbeat"
    path.touch()
    return path


def test_an_agent_that_touches_nothing_is_silent(file: Path, clock: Clock) -> None:
    heartbeat = Heartbeat(file, clock)
    assert looked(heartbeat, clock, 10) == pytest.approx(10)
    assert looked(heartbeat, clock, 6) > MOST_SILENT_S


def test_each_touch_is_a_sign_of_life(file: Path, clock: Clock) -> None:
    heartbeat = Heartbeat(file, clock)
    for second in range(30):
        os.utime(file, (second, second))  # whatever the wall clock says, also an earlier time
        assert looked(heartbeat, clock, 1) <= 1


def test_time_in_which_nobody_looked_does_not_count(file: Path, clock: Clock) -> None:
    """This process was stopped, or the machine: the agent has had no chance either."""
    heartbeat = Heartbeat(file, clock)
    looked(heartbeat, clock, 5)
    clock.now += 3600
    assert heartbeat.silent_s() <= 6 + LOOK_S


def test_nothing_is_expected_where_no_ranks_run(file: Path, clock: Clock) -> None:
    file.unlink()
    heartbeat = Heartbeat(file, clock)
    assert looked(heartbeat, clock, 100) == 0
    file.touch()
    assert looked(heartbeat, clock, 5) <= 5


def test_a_disk_that_takes_no_touch_is_no_agents_fault(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    heartbeat = Heartbeat(file, clock)
    monkeypatch.setattr(os, "utime", full)
    assert looked(heartbeat, clock, 100) == 0
    monkeypatch.undo()
    assert looked(heartbeat, clock, 5) < MOST_SILENT_S, "it has time now"
