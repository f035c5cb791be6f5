# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The files between a job's process and the agents of its hosts.

    plan.json     what the agent is to do; written before it starts
    report.json   what it does, and how the ranks ended; whole or not there
    lock          held by the agent while it lives
    keeper        held on the machine of the agent by who keeps it there, if the job's process is
                  elsewhere
    reserve       room for the last report, if the disk is full by then
    heartbeat     there while ranks run, and touched by the agent about once a second
    log           what the ranks print, each line with the time
    metrics.jsonl what was found in it
    system_metrics.jsonl   what the host used of the machine
    names         what ranks find at /etc/hosts: the machine's names, and those of all hosts
    channels/     where data lie that the script may not change (`placement`)
    ml/           the layout of `/opt/ml`

They lie in the host's folder. Data that were brought from a store lie in `data/<machine>/` of the
job. Beside the folders of the hosts lies `end.json`: all agents end their ranks when it is there.
Metrics are also in `tensorboard/` of the job, as TensorBoard reads them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdistributed.launch.agent.fetching import on_this_machine
from smdistributed.launch.data.sources import Source
from smdistributed.launch.jobs.files import Lock, write_or_make, write_whole
from smdistributed.launch.points import points_of
from smdistributed.launch.tensorboard import EventFile

__all__ = ["End", "HostDirectory", "Phase", "Plan", "RankEnd", "Report"]


_GRACE_S = 5.0
_RESERVED = 32 << 10


class Phase(enum.StrEnum):
    """What an agent does."""

    PREPARING = "preparing"
    TRAINING = "training"
    ENDED = "ended"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What an agent is to do.

    Attributes:
        host, index: the name, such as `algo-1`, and its place among the hosts.
        num_hosts: in the job.
        processes: on each host.
        is_distributed: the processes are ranks of one job; else each host runs one by itself.
        master_address, master_port: where ranks meet.
        addresses: by name of the host, where the others reach it.
        machine_index, machine_hosts: it is number `machine_index` of so many hosts on its machine.
        resources: of all hosts, as `resourceconfig.json` has them.
        hyperparameters: of the request.
        channels: by name, what the script is told of each.
        sources: by name of the channel, its data; what `Source` has.
        archive: of the script's sources; empty: there is none.
        environment: further variables of the ranks.
        metrics: definitions, each with Name and Regex.
        checkpoints: the folder in which checkpoints are kept; empty: they are not.
        checkpoints_here: where the script writes them, as it sees it.
        intermediate: the folder to which intermediate output goes; empty: it goes nowhere. This
            and `checkpoints` may be `s3://bucket/prefix` instead.
        grace_s: seconds between SIGTERM and SIGKILL when a rank has failed.
        tf_workers: address and port of each host's process, if they are TensorFlow's workers.
        attempt: its number, from 1.
        cpu_shim: the CPU shims are on where GPUs are missing that the instance type names.
        debug_rank: of the job, which has a terminal; None: none has.
        terminal: its path.
        emulate_gpus: the script is told of a GPU for each process of a host.
        s3: how the S3 store is reached that data and results are in; None: they are in none.
        job: its name; empty: that of its directory, which a host elsewhere does not have.
    """

    host: str
    index: int
    num_hosts: int
    processes: int
    is_distributed: bool
    master_address: str
    master_port: int
    addresses: dict[str, str]
    machine_index: int
    machine_hosts: int
    resources: dict[str, Any]
    hyperparameters: dict[str, str]
    channels: dict[str, dict[str, str]]
    sources: dict[str, dict[str, Any]]
    archive: str
    environment: dict[str, str]
    metrics: list[dict[str, str]]
    checkpoints: str = ""
    checkpoints_here: str = "/opt/ml/checkpoints"
    intermediate: str = ""
    grace_s: float = 5.0
    tf_workers: list[str] = dataclasses.field(default_factory=list)
    attempt: int = 1
    cpu_shim: bool = True
    emulate_gpus: bool = False
    debug_rank: int | None = None
    terminal: str = ""
    s3: dict[str, str] | None = None
    job: str = ""

    def data(self) -> dict[str, Source]:
        """By name of the channel, its data."""
        return {name: Source(**each) for name, each in self.sources.items()}


@dataclasses.dataclass(frozen=True)
class RankEnd:
    """How a rank has ended.

    Attributes:
        rank: in the job.
        returncode: its exit status; -n if signal n ended it.
        failed_first: of this host.
        last_lines: that it has printed; of ranks that failed. A report has none.
        ended_at: when; seconds of the monotonic clock of its machine. In the job's directory: of
            the machine of the job's process.
    """

    rank: int
    returncode: int
    failed_first: bool
    last_lines: list[str]
    ended_at: float

    @property
    def status(self) -> int:
        """As a shell tells it: 128 + n if signal n ended the rank."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


@dataclasses.dataclass(frozen=True)
class Report:
    """What an agent does, and how it ended.

    Attributes:
        phase: what it does.
        failure: what stands in the file `failure`; empty if nothing failed here.
        ranks: that have ended.
    """

    phase: Phase
    failure: str = ""
    ranks: tuple[RankEnd, ...] = ()

    @staticmethod
    def of(document: Any) -> Report:
        """What was written, also by another machine.

        Raises:
            LookupError, TypeError, ValueError: it is none.
        """
        ranks = [RankEnd(**each) for each in document["ranks"]]
        return Report(
            Phase(document["phase"]),
            str(document["failure"]),
            tuple(
                RankEnd(
                    int(rank.rank),
                    int(rank.returncode),
                    bool(rank.failed_first),
                    [str(line) for line in rank.last_lines],
                    float(rank.ended_at),
                )
                for rank in ranks
            ),
        )


@dataclasses.dataclass(frozen=True)
class End:
    """All agents are to end their ranks.

    Attributes:
        why: in words.
        grace_s: seconds between SIGTERM and SIGKILL.
    """

    why: str
    grace_s: float


class HostDirectory:
    """The folder of a host.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ml = path / "ml"
        self.views = path / "channels"
        # Machines may share the job's directory, and not each other's locks.
        self.data = path.parent.parent / "data" / socket.gethostname()
        self.names = path / "names"
        self.log = path / "log"
        self.metrics = path / "metrics.jsonl"
        self.system_metrics = path / "system_metrics.jsonl"
        self.packages = path / "packages"
        self.heartbeat = path / "heartbeat"
        self.lock = Lock(path / "lock")
        self.end_file = path.parent / "end.json"
        self._keeper = path / "keeper"
        self.keeper = Lock(self._keeper)
        self._plan = path / "plan.json"
        self._report = path / "report.json"
        self._reserve = path / "reserve"

    @property
    def name(self) -> str:
        """Of the host."""
        return self.path.name

    def sources(self, plan: Plan) -> dict[str, Source]:
        """By name of the channel, its data as they are here once the agent has brought them."""
        return on_this_machine(plan.data(), self.data)

    def event_file(self) -> EventFile:
        """For TensorBoard: beside the folders of all hosts, which hold much else."""
        job = self.path.parent.parent
        counted = [point.name for point in points_of(job) if point.host == self.name]
        return EventFile(job / "tensorboard" / self.name, self.name, counted)

    def is_kept(self) -> bool | None:
        """Whether somebody keeps the agent on its machine; None if that was never said."""
        return self.keeper.is_held_elsewhere() if self._keeper.exists() else None

    def renew(self) -> None:
        """Takes away what an earlier attempt has left, but for what was logged.

        Raises:
            OSError: it cannot be taken away.
        """
        for file in (self.end_file, self._report, self.heartbeat):
            file.unlink(missing_ok=True)
        old = tempfile.mkdtemp(prefix=".old-", dir=self.path)
        for folder in (self.ml, self.packages):
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, os.path.join(old, folder.name))
        # What the script has made unreadable stays there, and is in nobody's way.
        shutil.rmtree(old, ignore_errors=True)

    def write_names(self, addresses: Mapping[str, str]) -> None:
        """Makes the file in which the names of all hosts stand, beside those of the machine.

        Args:
            addresses: by name of the host.
        """
        try:
            machine = Path("/etc/hosts").read_bytes()
        except OSError:
            machine = b""
        lines = [f"{address} {name}\n".encode() for name, address in addresses.items()]
        self.names.write_bytes(machine.rstrip(b"\n") + b"\n" + b"".join(lines))

    def write_plan(self, plan: Plan) -> None:
        """Tells the agent what to do."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(self._plan, plan)
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(bytes(_RESERVED))

    def read_plan(self) -> Plan:
        """What the agent is to do."""
        return Plan(**json.loads(self._plan.read_bytes()))

    def write_report(self, report: Report) -> None:
        """Tells what the agent does."""
        _write(self._report, report)

    def give_room(self) -> None:
        """Gives back what was kept on the disk for the last report."""
        with contextlib.suppress(OSError):
            self._reserve.unlink(missing_ok=True)

    def report_bytes(self) -> bytes:
        """The file of the report, for another folder of the host.

        Raises:
            OSError: it is not there.
        """
        return self._report.read_bytes()

    def read_report(self) -> Report | None:
        """What the agent does; None if it has not begun."""
        try:
            document = json.loads(self.report_bytes())
        except FileNotFoundError:
            return None
        return Report.of(document)

    def say(self, text: str) -> None:
        """A line in the log of the host that is none of its ranks': what the user should know."""
        time = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with (
            contextlib.suppress(OSError),
            self.log.open("a", encoding="utf-8", errors="replace") as file,
        ):
            file.write(f"{time} {self.name}: {text}\n")

    def ask_to_end(self, end: End) -> None:
        """Has all agents of the job end their ranks."""
        write_or_make(self.end_file, json.dumps(dataclasses.asdict(end)).encode())

    def asked_to_end(self) -> End | None:
        """Whether and how agents are to end their ranks."""
        try:
            return End(**json.loads(self.end_file.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # the disk was full
            return End("", _GRACE_S)


def _write(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(dataclasses.asdict(value), indent=1).encode())
