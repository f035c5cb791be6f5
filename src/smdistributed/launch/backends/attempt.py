# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One attempt of a job: the agents of its hosts, from their start to their end.

It says how the attempt goes. Whether another one follows is for the job's process to say.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from smdistributed.launch.agent.ending import first_failure, when_failed
from smdistributed.launch.agent.plan import End, Phase, Plan, Report
from smdistributed.launch.agent.strays import reap_strays
from smdistributed.launch.backends.heartbeat import MOST_SILENT_S, Heartbeat
from smdistributed.launch.backends.hosts import HostAgent, Hosts

__all__ = ["Attempt"]

_FAILURE_GRACE_S = 5.0
_END_S = 10.0
# For the last checkpoints, after the ranks have ended.
_SAVE_S = 300.0
_NEVER = float("inf")


class Attempt:
    """The agents of all hosts.

    Args:
        hosts: brings them up.

    Attributes:
        failure: why the attempt has failed, as in the file `failure`; empty if it has not.
        is_ending: the agents were told to end their ranks.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._agents: list[HostAgent] = []
        self._heartbeats: list[Heartbeat] = []
        self._silent: set[str] = set()  # hosts whose agents were killed for it
        self._alive_at: list[float] = []  # when each was known to live
        self._reports: Sequence[Report | None] = ()
        self._have_ended: Sequence[bool] = ()
        self._end_by: float | None = None
        self._lost = ""  # why an agent is gone, if that came before all else
        self._lost_since = _NEVER
        self.failure = ""
        self.is_ending = False

    def start(self, plan: Plan) -> None:
        """Starts the agent of a host, with a clean folder.

        Raises:
            OSError: it cannot be started.
            SmdistributedError: there is one already.
        """
        agent = self._hosts.start(plan)
        self._agents.append(agent)
        self._alive_at.append(time.monotonic())
        self._heartbeats.append(Heartbeat(agent.directory.heartbeat))

    def look(self) -> None:
        """Reads what has become of the agents since the last look."""
        now = time.monotonic()
        self._kill_silent_agents()
        self._have_ended = [agent.has_ended() for agent in self._agents]
        for index, agent in enumerate(self._agents):
            if not self._have_ended[index]:
                self._alive_at[index] = now - agent.silent_s()
        reap_strays(self._hosts.own_processes())
        self._reports = [agent.directory.read_report() for agent in self._agents]

    def _kill_silent_agents(self) -> None:
        for agent, heartbeat in zip(self._agents, self._heartbeats, strict=True):
            is_silent = heartbeat.silent_s() > MOST_SILENT_S
            name = agent.directory.name
            if is_silent and name not in self._silent and not agent.has_ended():
                self._silent.add(name)
                agent.kill()

    @property
    def is_training(self) -> bool:
        """Whether the ranks of all hosts run, or have run."""
        return all(
            report is not None and (report.phase is Phase.TRAINING or bool(report.ranks))
            for report in self._reports
        )

    @property
    def is_over(self) -> bool:
        """Whether all agents have ended; or had time to, so that what is left of them is killed."""
        return all(self._have_ended) or (
            self._end_by is not None and time.monotonic() > self._end_by
        )

    def judge(self) -> None:
        """Finds out what has failed, as of the last look; all hosts end because of it."""
        failed_at = min(map(when_failed, filter(None, self._reports)), default=_NEVER)
        for agent, report, has_ended, alive_at in zip(
            self._agents, self._reports, self._have_ended, self._alive_at, strict=True
        ):
            if not has_ended or (report is not None and report.phase is Phase.ENDED):
                continue
            # Who is silent is known to be lost long after ranks elsewhere have failed for it.
            is_first = not self.failure or alive_at < failed_at < _NEVER
            if not self._lost and is_first:
                self._lost_since = alive_at
                name = agent.directory.name
                self._lost = f"InternalServerError: the agent of host {name} " + (
                    f"gave no sign of life for {MOST_SILENT_S:g} s while its ranks ran, and was"
                    " killed: it was stopped, or the machine is overloaded."
                    if name in self._silent
                    else agent.how_it_ended()
                )
        # Ranks of other hosts fail because those of a host that was lost are gone.
        failure = first_failure(self._reports, before=self._lost_since)
        self.failure = failure or self._lost or self.failure
        has_failed_rank = any(
            rank.returncode
            for report in self._reports
            if report is not None
            for rank in report.ranks
        )
        if (self.failure or has_failed_rank) and not self.is_ending:
            self.end(End("a rank of the job has failed", _FAILURE_GRACE_S))

    def end(self, end: End) -> None:
        """Has all agents end their ranks."""
        self.is_ending = True
        self._end_by = time.monotonic() + end.grace_s + _SAVE_S
        try:
            self._ask_to_end(end)
        except OSError:  # the disk is full, or the directory is gone
            for agent in self._agents:
                agent.terminate()

    def _ask_to_end(self, end: End) -> None:
        if self._agents:
            self._agents[0].directory.ask_to_end(end)
        for agent in self._agents:
            agent.tell_to_end(end)

    def close(self) -> None:
        """No agent is left after it, however the attempt has gone."""
        if self._end_by is not None and time.monotonic() > self._end_by:
            for agent in self._agents:
                if not agent.has_ended():
                    agent.directory.say(
                        f"it was told to end, and has not ended {_SAVE_S:g} s after its ranks had"
                        " to: what it has not copied of the last checkpoints by now is lost. What"
                        " was kept of them before is there"
                    )
        if not all(agent.has_ended() for agent in self._agents):
            with contextlib.suppress(OSError):  # the directory may be gone
                self._ask_to_end(End("the job's process ends", 0.0))
        for agent in self._agents:
            if not agent.wait(_END_S):
                agent.kill()
                agent.wait(_END_S)
