# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an attempt makes of agents that are lost, and of those that do not end in time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from smdistributed.launch.agent.plan import End, HostDirectory, Phase, Plan, RankEnd, Report
from smdistributed.launch.backends import attempt as attempts


class Agent:
    """Of a host; ends when it is killed or lost, or by itself when it is told to."""

    def __init__(self, directory: HostDirectory, ends: bool) -> None:
        self.directory = directory
        self._ends = ends
        self._has_ended = False
        self.silent_since = 0.0

    def has_ended(self) -> bool:
        return self._has_ended

    def silent_s(self) -> float:
        return time.monotonic() - self.silent_since if self.silent_since else 0.0

    def how_it_ended(self) -> str:
        return "is lost"

    def tell_to_end(self, end: End) -> None:
        self._has_ended |= self._ends

    def kill(self) -> None:
        self._has_ended = True

    def wait(self, timeout_s: float) -> bool:
        return self._has_ended


class Hosts:
    def __init__(self, agents: list[Agent]) -> None:
        self._agents = iter(agents)

    def start(self, plan: Any) -> Agent:
        return next(self._agents)

    def own_processes(self) -> list[int]:
        return []


def made(tmp_path: Path, *ends: bool) -> tuple[attempts.Attempt, list[Agent]]:
    """An attempt of hosts that end, or do not, when they are told to."""
    agents = []
    for number, each in enumerate(ends, 1):
        directory = HostDirectory(tmp_path / "hosts" / f"algo-{number}")
        directory.path.mkdir(parents=True)
        directory.log.touch()
        agents.append(Agent(directory, each))
    hosts: Any = Hosts(agents)
    plan: Any = Plan
    tried = attempts.Attempt(hosts)
    for _ in agents:
        tried.start(plan)
    return tried, agents


def fail(agent: Agent, failed_at: float, text: str = "RuntimeError: it is wrong") -> None:
    rank = RankEnd(0, 1, True, [], failed_at)
    agent.directory.write_report(Report(Phase.ENDED, text, (rank,)))


def looked(tried: attempts.Attempt) -> str:
    tried.look()
    tried.judge()
    return tried.failure


@pytest.mark.parametrize("seconds", [0.5, 5.0])
def test_ranks_that_fail_for_a_silent_host_are_not_the_reason(
    seconds: float, tmp_path: Path
) -> None:
    """They know it before anybody else does. Such a job may be tried again; theirs may not."""
    tried, (here, gone) = made(tmp_path, True, False)
    now = time.monotonic()
    gone.silent_since = now - seconds
    fail(here, now - seconds / 2)
    assert looked(tried) == "RuntimeError: it is wrong"  # as far as is known
    assert tried.is_ending
    gone.kill()
    assert looked(tried) == "InternalServerError: the agent of host algo-2 is lost"
    assert tried.is_over


def test_a_host_that_is_lost_after_a_rank_has_failed_is_not_the_reason(tmp_path: Path) -> None:
    tried, (here, gone) = made(tmp_path, True, False)
    fail(here, time.monotonic() - 1)
    assert looked(tried) == "RuntimeError: it is wrong"
    gone.kill()
    assert looked(tried) == "RuntimeError: it is wrong"


def test_what_was_asked_for_wrongly_stays_the_reason(tmp_path: Path) -> None:
    """No rank has failed; another attempt would find the same."""
    tried, (here, gone) = made(tmp_path, True, False)
    gone.silent_since = time.monotonic() - 5
    here.directory.write_report(Report(Phase.ENDED, "ClientError: no such channel", ()))
    assert looked(tried) == "ClientError: no such channel"
    gone.kill()
    assert looked(tried) == "ClientError: no such channel"


def test_a_host_that_does_not_end_in_time_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last checkpoints may not be in the store: that must not go without a word."""
    tried, agents = made(tmp_path, True, False)
    monkeypatch.setattr(attempts, "_SAVE_S", -0.001)
    tried.end(End("it is stopped", 0.0))
    tried.look()
    assert tried.is_over
    tried.close()
    assert agents[0].directory.log.read_text() == ""
    assert "algo-2: it was told to end" in agents[1].directory.log.read_text()
    assert agents[1].has_ended()
