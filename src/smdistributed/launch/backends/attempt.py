# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One attempt of a job on this machine: the agents of its hosts, from their start to their end.

It says how the attempt goes. Whether another one follows is for the job's process to say.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.agent.ending import first_failure
from smdistributed.launch.agent.mounts import MOUNTED, Step, wrapped
from smdistributed.launch.agent.placement import make_views
from smdistributed.launch.agent.plan import End, HostDirectory, Phase, Plan, Report
from smdistributed.launch.agent.strays import reap_strays
from smdistributed.launch.backends.heartbeat import MOST_SILENT_S, Heartbeat
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["Attempt"]

_FAILURE_GRACE_S = 5.0
_END_S = 10.0
# For the last checkpoints, after the ranks have ended.
_SAVE_S = 300.0


class Attempt:
    """The agents of all hosts.

    Args:
        job: its directory.

    Attributes:
        failure: why the attempt has failed, as in the file `failure`; empty if it has not.
        is_ending: the agents were told to end their ranks.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._agents: list[tuple[HostDirectory, subprocess.Popen[bytes]]] = []
        self._heartbeats: list[Heartbeat] = []
        self._silent: set[str] = set()  # hosts whose agents were killed for it
        self._reports: Sequence[Report | None] = ()
        self._have_ended: Sequence[bool] = ()
        self._end_by: float | None = None
        self._looked_at = time.monotonic()
        self._looked_before = self._looked_at
        self._lost = ""  # why an agent is gone, if that came before all else
        self._lost_since = float("inf")
        self.failure = ""
        self.is_ending = False

    def start(self, plan: Plan, step: Step) -> None:
        """Starts the agent of a host, with a clean folder.

        Raises:
            OSError: it cannot be started.
            SmdistributedError: there is one already.
        """
        host = HostDirectory(self._job.host(plan.host))
        if plan.attempt > 1:
            host.renew()
        host.write_plan(plan)
        host.ml.mkdir(mode=0o700, exist_ok=True)
        make_views(host.views, plan.data())
        host.write_names(plan.resources["hosts"], plan.master_address)
        if not host.lock.acquire():
            raise SmdistributedError(f"there is an agent of {host.path} already.")
        lock = host.lock.descriptor
        command = [sys.executable, "-P", "-m", "smdistributed.launch.agent.agent"]
        command += [str(host.path), str(lock)]
        environ = {**os.environ, **({} if step is Step.NONE else {MOUNTED: "1"})}
        with (host.path / "agent.log").open("ab") as output:
            process = subprocess.Popen(
                wrapped(step, host.ml, command, host.views, host.names),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(lock,),
            )
        host.lock.hand_over()
        self._agents.append((host, process))
        self._heartbeats.append(Heartbeat(host.heartbeat))

    def look(self) -> None:
        """Reads what has become of the agents since the last look."""
        self._looked_before, self._looked_at = self._looked_at, time.monotonic()
        self._kill_silent_agents()
        self._have_ended = [process.poll() is not None for _, process in self._agents]
        reap_strays([process.pid for _, process in self._agents])
        self._reports = [host.read_report() for host, _ in self._agents]

    def _kill_silent_agents(self) -> None:
        for (host, process), heartbeat in zip(self._agents, self._heartbeats, strict=True):
            is_silent = heartbeat.silent_s() > MOST_SILENT_S
            if is_silent and host.name not in self._silent and process.poll() is None:
                self._silent.add(host.name)
                process.kill()  # its guardian ends the ranks

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
        for (host, process), report, has_ended in zip(
            self._agents, self._reports, self._have_ended, strict=True
        ):
            if not has_ended or (report is not None and report.phase is Phase.ENDED):
                continue
            if not self._lost and not self.failure:
                self._lost_since = self._looked_before  # it lived then
                self._lost = f"InternalServerError: the agent of host {host.name} " + (
                    f"gave no sign of life for {MOST_SILENT_S:g} s while its ranks ran, and was"
                    " killed: it was stopped, or the machine is overloaded."
                    if host.name in self._silent
                    else f"ended with status {process.returncode} (-n: signal n) before its ranks;"
                    f" see {host.path / 'agent.log'}."
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
            self._agents[0][0].ask_to_end(end)
        except OSError:  # the disk is full, or the directory is gone
            for _, process in self._agents:
                if process.poll() is None:
                    process.terminate()

    def close(self) -> None:
        """No agent is left after it, however the attempt has gone."""
        if any(process.poll() is None for _, process in self._agents):
            with contextlib.suppress(OSError):  # the directory may be gone
                self._agents[0][0].ask_to_end(End("the job's process ends", 0.0))
        for _, process in self._agents:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its guardian ends the ranks
                process.wait()
