# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The hosts of a job as nodes of the Slurm job that this process is in.

One step of Slurm's for each attempt, with a task on each node (`node`), whose agents it
starts. Job's process and tasks talk through files of the shared job directory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.version import __version__
from smdistributed.launch.agent.ending import now
from smdistributed.launch.agent.plan import End, HostDirectory, Plan, Report
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.heartbeat import MOST_SILENT_S, Heartbeat
from smdistributed.launch.backends.hosts import HostAgent, Machine, UnreachableError
from smdistributed.launch.backends.slurm.commands import cancel, requeue
from smdistributed.launch.backends.slurm.node import Hello, NodeFiles, Pulse, epoch_s
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["SlurmNodes"]

_LOOK_S = 0.05
# Nodes may boot, and file systems be mounted, before a task runs.
_REACH_S = 300.0
_CLOSE_S = 3.0
_REQUEUE_S = 60.0
_LAST_S = 0.5
_LAST_WORDS = 1000
_LOST_TASK = re.compile(rb"^srun: error: .*: tasks? [0-9,-]+: ", re.MULTILINE)
_NO_NEWS = "cluster configuration lacks support for cpu binding"


class _Directory(HostDirectory):
    """Of a host on a machine with another clock.

    Args:
        path: the folder.
        shift_s: what is to be added to its times.
    """

    def __init__(self, path: Path, shift_s: float) -> None:
        super().__init__(path)
        self._shift_s = shift_s

    def read_report(self) -> Report | None:
        report = super().read_report()
        if report is None:
            return None
        ranks = (
            dataclasses.replace(each, ended_at=each.ended_at + self._shift_s)
            for each in report.ranks
        )
        return dataclasses.replace(report, ranks=tuple(ranks))


class _Agent:
    """Of a node."""

    def __init__(self, directory: HostDirectory, files: NodeFiles, nodes: SlurmNodes) -> None:
        self.directory = directory
        self._files = files
        self._nodes = nodes
        self._alive = Heartbeat(files.alive, is_expected=True)
        self._end: End | None = None
        self._how = ""

    def has_ended(self) -> bool:
        if self._how:
            return True
        if self._end is not None and not self.directory.end_file.exists():
            # A node that began late has taken it for that of the attempt before.
            with contextlib.suppress(OSError):
                self.directory.ask_to_end(self._end)
        is_over = self._nodes.are_over()  # before the look: what was written by then is seen
        self._how = self._files.read_ended() or ""
        if not self._how and is_over:
            self._how = (
                f"is gone: the step of Slurm has ended before it. {self._nodes.last_words()}"
            )
        elif not self._how and self._alive.silent_s() > MOST_SILENT_S:
            self._how = (
                f"gave no sign of life for {MOST_SILENT_S:g} s: its node is down, or its processes"
                f" were killed. {self._nodes.last_words()}"
            )
            self._nodes.has_lost_node = True
        return bool(self._how)

    def silent_s(self) -> float:
        return self._alive.silent_s()

    def how_it_ended(self) -> str:
        return self._how

    def tell_to_end(self, end: End) -> None:
        self._end = end  # it sees the file itself

    def terminate(self) -> None:
        if not self.has_ended():
            self._nodes.signal("TERM")

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._files.kill.touch()

    def wait(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while not self.has_ended():
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)
        return True


class SlurmNodes:
    """Of one attempt.

    Args:
        job: its directory.
        needs_others: a node was lost in the attempt before: this one is to have others.

    Attributes:
        has_lost_node: a node gives no sign of life.
    """

    def __init__(self, job: JobDirectory, *, needs_others: bool = False) -> None:
        self._job = job
        self._needs_others = needs_others
        self.has_lost_node = False
        self._folder = _new_folder(job)
        self._nodes: list[NodeFiles] = []
        self._hosts: dict[str, tuple[NodeFiles, Hello]] = {}
        self._srun: subprocess.Popen[bytes] | None = None
        self._step = ""
        self._log = self._folder / "srun.log"
        self._pulse = Pulse(self._folder / "alive", [self._folder, job.path, job.path / "hosts"])

    def reach(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        is_unwanted: Callable[[], bool],
    ) -> list[Machine]:
        """A task on each node says what the node is.

        Raises:
            ConfigurationError: a node has another version of this package, or an address of
                another.
            UnreachableError: the step does not start, or a node says nothing.
        """
        if self._needs_others:
            _start_again_elsewhere(is_unwanted)
            return []
        self._pulse.begin()
        self._nodes = [NodeFiles(self._folder, index) for index in range(len(names))]
        self._srun = self._started(len(names), environment)
        until = time.monotonic() + _REACH_S
        while None in (said := [each.read_hello() for each in self._nodes]):
            if is_unwanted():
                return []
            if self.are_over() or self._has_lost_task():
                raise UnreachableError(
                    f"a task of {len(names)} nodes ended before it began. {self.last_words()}"
                )
            if time.monotonic() > until:
                silent = [index for index, each in enumerate(said) if each is None]
                raise UnreachableError(
                    f"nodes {silent} of {len(names)} said nothing for {_REACH_S:g} s; expected a"
                    f" task on each. {self.last_words()}"
                )
            time.sleep(_LOOK_S)
        nodes = [each for each in said if each is not None]
        self._step = nodes[0].step
        self._hosts = dict(zip(names, zip(self._nodes, nodes, strict=True), strict=True))
        self._require_fit(nodes)
        for name, each in zip(names, nodes, strict=True):
            details = {"node": each.name, "address": each.address, "gpus": each.num_gpus}
            self._job.note("host", now(), host=name, step=each.step, **details)
        return [
            Machine(each.address, each.interface, each.num_gpus, (each.ports[0], each.ports[1]))
            for each in nodes
        ]

    def _started(self, count: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        gpus = environment.get("CUDA_VISIBLE_DEVICES")
        with self._log.open("ab") as output:
            return subprocess.Popen(
                [
                    "srun",
                    "--overlap",  # with what Slurm believes of the attempt before
                    f"--nodes={count}",
                    f"--ntasks={count}",
                    "--ntasks-per-node=1",
                    "--kill-on-bad-exit=0",
                    "--wait=0",
                    "--no-kill",
                    "--export=ALL",
                    "--input=none",
                    "--unbuffered",
                    "--label",
                    "--mpi=none",
                    "--cpu-bind=none",
                    "--chdir=/",
                    *(sys.executable, "-P", "-m", "smdistributed.launch.backends.slurm.node"),
                    *(str(self._job.path), str(self._folder)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus})},
            )

    def _require_fit(self, nodes: Sequence[Hello]) -> None:
        """Refuses what would go wrong later, and not say so."""
        for each in nodes:
            if each.version != __version__:
                raise ConfigurationError(
                    f"node {each.name} has version {each.version} of this package, and the job's"
                    f" process {__version__}; expected one. Install it on a file system that all"
                    " nodes share."
                )
        addresses = {each.address for each in nodes}
        if len({each.boot for each in nodes}) > 1 and len(addresses) < len(nodes):
            names = ", ".join(f"{each.name} {each.address}" for each in nodes)
            raise ConfigurationError(
                f"nodes have these addresses: {names}; expected one of its own for each, by which"
                " the others reach it. Ask who runs the cluster: NodeAddr of slurm.conf, or a name"
                " of the node in /etc/hosts that stands beside 127.0.0.1."
            )

    def start(self, plan: Plan) -> HostAgent:
        """Has the node of a host start its agent.

        Raises:
            OSError: its files cannot be written.
        """
        files, hello = self._hosts[plan.host]
        directory = _Directory(self._job.host(plan.host), hello.epoch_s - epoch_s())
        directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if plan.attempt > 1:
            directory.renew()  # else the last report would be taken for one of this attempt
        files.write_plan(plan)
        return _Agent(directory, files, self)

    def are_over(self) -> bool:
        """Whether the step of Slurm is."""
        return self._srun is None or self._srun.poll() is not None

    def _has_lost_task(self) -> bool:
        """Whether srun has said so; it goes on with the others."""
        try:
            return _LOST_TASK.search(self._log.read_bytes()) is not None
        except OSError:
            return False

    def last_words(self) -> str:
        """What srun and the tasks have printed, at the end."""
        with contextlib.suppress(OSError):
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            text = "\n".join(each for each in lines if not each.endswith(_NO_NEWS)).strip()
            if text:
                return f"srun said: {' '.join(text[-_LAST_WORDS:].split())}"
        return "srun said nothing."

    def signal(self, name: str) -> None:
        """Has Slurm send a signal to all processes of the step."""
        if self._step:
            with contextlib.suppress(BackendError):
                cancel(self._step, f"--signal={name}", most_s=_CLOSE_S)

    def own_processes(self) -> list[int]:
        """Of srun."""
        return [] if self._srun is None else [self._srun.pid]

    def bring(self, *, has_model: bool) -> None:
        """It is there: the job's directory is shared."""

    def close(self) -> None:
        """Ends the step. Nothing of it is left on its nodes, as far as Slurm can reach them."""
        self._pulse.end()
        if self._srun is None:
            return
        if not self._step:  # no task has said its number
            self._srun.terminate()
        elif not self._has_ended_within(_LAST_S):
            self.signal("KILL")
        if not self._has_ended_within(_LAST_S):
            self._srun.kill()
            self._srun.wait()

    def _has_ended_within(self, seconds: float) -> bool:
        assert self._srun is not None
        try:
            self._srun.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _start_again_elsewhere(is_unwanted: Callable[[], bool]) -> None:
    """Has Slurm end this job, and start it again once it knows itself which nodes are down.

    Raises:
        UnreachableError: Slurm does not do so.
    """
    try:
        requeue(os.environ["SLURM_JOB_ID"])
    except BackendError as error:
        raise UnreachableError(f"a node is lost, and no other one was given: {error}") from None
    until = time.monotonic() + _REQUEUE_S
    while not is_unwanted():  # as soon as the signal has come
        if time.monotonic() > until:
            raise UnreachableError("a node is lost, and Slurm did not start the job again.")
        time.sleep(_LOOK_S)


def _new_folder(job: JobDirectory) -> Path:
    """For the files of an attempt: no other one ever has the same."""
    above = job.path / "nodes"
    above.mkdir(mode=0o700, exist_ok=True)
    number = 1 + max((int(each.name) for each in above.iterdir()), default=0)
    folder = above / str(number)
    folder.mkdir(mode=0o700)
    return folder
