# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job as processes of this machine, which they share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from smdistributed.launch.agent.ending import now
from smdistributed.launch.agent.mounts import Step, available_step
from smdistributed.launch.agent.plan import End, HostDirectory, Plan
from smdistributed.launch.agent.start import start_agent
from smdistributed.launch.backends.hosts import HostAgent, Machine
from smdistributed.launch.environment import LOOPBACK, free_port, visible_accelerators
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["ThisMachine"]


class _Agent:
    """A process of this machine."""

    def __init__(self, directory: HostDirectory, process: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self._process = process

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def silent_s(self) -> float:
        return 0.0  # it is a process of this one

    def how_it_ended(self) -> str:
        return (
            f"ended with status {self._process.returncode} (-n: signal n) before its ranks; see"
            f" {self.directory.path / 'agent.log'}."
        )

    def tell_to_end(self, end: End) -> None:
        """It sees the file itself."""

    def terminate(self) -> None:
        if not self.has_ended():
            self._process.terminate()

    def kill(self) -> None:
        if not self.has_ended():
            self._process.kill()  # its guardian ends the ranks

    def wait(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


class ThisMachine:
    """Of one attempt.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._step: Step | None = None
        self._pids: list[int] = []

    def reach(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        is_unwanted: Callable[[], bool],
    ) -> list[Machine]:
        """It is there."""
        num_gpus = visible_accelerators({**os.environ, **environment})
        ports = _free_ports(2 * len(names))
        return [
            Machine(
                LOOPBACK,
                "lo",
                num_gpus,
                (ports[2 * index], ports[2 * index + 1]),
                index,
                len(names),
            )
            for index in range(len(names))
        ]

    def start(self, plan: Plan) -> HostAgent:
        """Starts the agent of a host.

        Raises:
            OSError: it cannot be started.
            SmdistributedError: there is one already.
        """
        if self._step is None:
            self._step, why = available_step(self._job.path)
            self._job.note("opt-ml", now(), step=self._step.name, why=why)
        directory = HostDirectory(self._job.host(plan.host))
        process = start_agent(directory, plan, self._step)
        self._pids.append(process.pid)
        return _Agent(directory, process)

    def own_processes(self) -> list[int]:
        """Of the agents."""
        return self._pids

    def bring(self, *, has_model: bool) -> None:
        """It is there."""

    def close(self) -> None:
        """Nothing is left once the agents have ended."""


def _free_ports(count: int) -> list[int]:
    """Each one another."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
