# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A node of a cluster with a shared job directory: `python -m ...slurm.node JOB FOLDER`.

A scheduler starts one on each node. Job's process and nodes talk through files, in a folder of the
attempt, since nothing else need reach from one to the other:

    N.hello       what the node is: address, GPUs, free ports
    N.plan        what the agent of its host is to do; written by the job's process
    N.alive       touched by the node about once a second
    N.kill        the job's process wants the agent killed
    N.ended       the agent's exit status
    alive         touched by the job's process about once a second

A reader tells by its own clock whether a file still changes: clocks of machines differ, and locks
do not reach from one to another on every file system.

Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from smdistributed._common.version import __version__
from smdistributed.launch.agent.mounts import available_step
from smdistributed.launch.agent.plan import HostDirectory, Plan
from smdistributed.launch.agent.start import start_agent
from smdistributed.launch.backends.heartbeat import MOST_SILENT_S, Heartbeat
from smdistributed.launch.courier.network import interface_of
from smdistributed.launch.environment import LOOPBACK, free_port, visible_accelerators
from smdistributed.launch.jobs.files import write_whole
from smdistributed.launch.orphans import adopt_orphans

__all__ = ["Hello", "NodeFiles", "Pulse", "epoch_s", "main"]

_PULSE_S = 1.0
_LOOK_S = 0.1
_ORPHAN_S = 20.0
_INTERFACE = "eth0"  # the contract's word, if none is found
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True)
class Hello:
    """What a node is.

    Attributes:
        name: of the machine.
        boot: another one on each machine, whatever it is called.
        address: at which other nodes reach it.
        interface: of the network, which has that address.
        epoch_s: when its monotonic clock was 0; seconds since the epoch.
        num_gpus: that its processes see.
        ports: two that are free.
        version: of this package.
        step: of the scheduler, such as `17.0`.
    """

    name: str
    boot: str
    address: str
    interface: str
    epoch_s: float
    num_gpus: int
    ports: list[int]
    version: str
    step: str


class NodeFiles:
    """The files of one node.

    Args:
        folder: of the attempt.
        index: the number of the node, from 0.
    """

    def __init__(self, folder: Path, index: int) -> None:
        self.job_alive = folder / "alive"
        self.alive = folder / f"{index}.alive"
        self.kill = folder / f"{index}.kill"
        self._hello = folder / f"{index}.hello"
        self._plan = folder / f"{index}.plan"
        self._ended = folder / f"{index}.ended"

    def write_hello(self, hello: Hello) -> None:
        """Says what the node is."""
        write_whole(self._hello, json.dumps(dataclasses.asdict(hello)).encode())

    def read_hello(self) -> Hello | None:
        """What the node is; None if it has not said so."""
        try:
            return Hello(**json.loads(self._hello.read_bytes()))
        except FileNotFoundError:
            return None

    def write_plan(self, plan: Plan) -> None:
        """Has the node start its agent."""
        write_whole(self._plan, json.dumps(dataclasses.asdict(plan)).encode())

    def read_plan(self) -> Plan | None:
        """What its agent is to do; None if nobody has said so."""
        try:
            return Plan(**json.loads(self._plan.read_bytes()))
        except FileNotFoundError:
            return None

    def write_ended(self, how: str) -> None:
        """Says what became of the agent, in words that go on after 'the agent of host algo-1'."""
        write_whole(self._ended, how.encode())

    def read_ended(self) -> str | None:
        """What became of the agent; None if it is not over."""
        try:
            return self._ended.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


class Pulse:
    """Touches a file about once a second, on a thread of its own, until it is ended.

    It lists folders, too: over NFS what others have made there may be unseen for a minute, unless
    somebody asks.

    Args:
        file: in a folder that is there.
        folders: in which files of others are awaited.
    """

    def __init__(self, file: Path, folders: Sequence[Path]) -> None:
        self._file = file
        self._folders = folders
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def begin(self) -> None:
        """Touches it from now on."""
        self._touch()
        self._thread.start()

    def end(self) -> None:
        """Touches it no more."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(2 * _PULSE_S)

    def _beat(self) -> None:
        while not self._is_over.wait(_PULSE_S):
            self._touch()

    def _touch(self) -> None:
        with contextlib.suppress(OSError):  # the disk is full, or the folder is gone
            self._file.touch()
        for folder in self._folders:
            with contextlib.suppress(OSError):
                os.listdir(folder)


class Node:
    """This node.

    Args:
        job: the job's directory.
        folder: of the attempt.
        index: of the node.
        peer: an address of the node with the job's process; empty: nobody knows it.
    """

    def __init__(self, job: Path, folder: Path, index: int, peer: str) -> None:
        self._job = job
        self._files = NodeFiles(folder, index)
        self._peer = peer
        self._job_process = Heartbeat(self._files.job_alive, is_expected=True)
        self._pulse = Pulse(self._files.alive, [folder, job, job / "hosts"])
        self._is_told_to_end = False
        self._step_daemon = os.getppid()

    def run(self) -> int:
        """Does all of it. Returns: the status of this process."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        adopt_orphans()  # ranks of an agent that was killed
        self._pulse.begin()
        address = _own_address(self._peer)
        self._files.write_hello(
            Hello(
                socket.gethostname(),
                _BOOT.read_text().strip(),
                address,
                interface_of(address) or _INTERFACE,
                epoch_s(),
                visible_accelerators(os.environ),
                _two_ports(),
                __version__,
                f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}",
            )
        )
        try:
            while (plan := self._files.read_plan()) is None:
                if self._is_told_to_end or self._is_left_alone():
                    return 1
                time.sleep(_LOOK_S)
            return self._run_agent(plan)
        finally:
            self._pulse.end()

    def _run_agent(self, plan: Plan) -> int:
        host = HostDirectory(self._job / "hosts" / plan.host)
        host.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        step, _ = available_step(host.path)
        if not host.keeper.acquire():
            raise SystemExit(f"there is a process already that keeps {host.path}.")
        process = start_agent(host, plan, step)
        try:
            while process.poll() is None:
                if self._is_told_to_end:
                    self._is_told_to_end = False
                    with contextlib.suppress(OSError):
                        process.send_signal(signal.SIGTERM)
                if self._files.kill.exists():
                    process.kill()  # its guardian ends the ranks
                if self._is_left_alone():
                    host.keeper.release()  # the agent ends its ranks, when it sees that
                    self._end(process)
                time.sleep(_LOOK_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            host.keeper.release()
        how = f"ended with status {process.returncode} (-n: signal n) before its ranks; see"
        with contextlib.suppress(OSError):
            self._files.write_ended(f"{how} {host.path / 'agent.log'}.")
        return 0 if process.returncode == 0 else 1

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ORPHAN_S)

    def _is_left_alone(self) -> bool:
        # Without the daemon of its step Slurm reaches this process no more, and counts it as over.
        is_orphan = os.getppid() != self._step_daemon
        return is_orphan or self._job_process.silent_s() > MOST_SILENT_S

    def _note_signal(self, number: int, frame: object) -> None:
        self._is_told_to_end = True


def epoch_s() -> float:
    """When this machine's monotonic clock was 0; seconds since the epoch."""
    return time.time() - time.monotonic()


def _two_ports() -> list[int]:
    first = free_port()
    while (second := free_port()) == first:
        pass
    return [first, second]


def _own_address(peer: str) -> str:
    """The address by which this machine reaches another one: by it others reach this one, too."""
    try:
        family, _, _, _, where = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    except (OSError, IndexError):
        return LOOPBACK


def main() -> int:
    """Runs the node: arguments are the job's directory and the attempt's folder."""
    job, folder = Path(sys.argv[1]), Path(sys.argv[2])
    index = int(os.environ["SLURM_NODEID"])
    if not folder.is_dir():
        print(
            f"{folder} is not there on {socket.gethostname()}; expected the job's directory on a"
            " file system that all nodes share, at the same place. Set SMD_HOME to such a place.",
            file=sys.stderr,
        )
        return 1
    return Node(job, folder, index, os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "")).run()


if __name__ == "__main__":
    sys.exit(main())
