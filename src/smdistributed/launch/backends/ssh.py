# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Machines of one's own as a backend: whoever can log in there by SSH can run jobs there.

A job's process runs here, as with the local backend, and holds a connection to each machine, on
which a courier runs (`launch.courier`). Once a connection is lost the courier ends what runs there.

    [ssh]
    hosts = ["gpu-1", "gpu-2"]        # as `ssh` knows them; in the order of the job's hosts
    python = "/opt/train/bin/python"  # which has this package; as it is called there
    shared = ["/mnt/data"]            # folders that the machines have at the same path
    command = ["ssh"]                 # with options of one's own

    [ssh.addresses]                   # where the machines reach one another, if not as `ssh` does
    gpu-1 = "10.0.0.1"

Source: launch specification, section 11.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import ipaddress
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.ending import end_job, now
from smdistributed.launch.agent.plan import HostDirectory, Plan
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.hosts import HostAgent, Machine, UnreachableError
from smdistributed.launch.backends.local import LocalBackend
from smdistributed.launch.backends.plans import hosts_of
from smdistributed.launch.courier.links import ProcessLink
from smdistributed.launch.courier.messages import Hello
from smdistributed.launch.courier.mirror import Mirror, MirrorError
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["SshBackend", "SshHosts", "SshSettings"]

_REACH_S = 10.0
# Beside what a user's own configuration says; nobody is there to type a password.
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=8"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
_COURIER = ("-P", "-m", "smdistributed.launch.courier.host")


@dataclasses.dataclass(frozen=True)
class SshSettings:
    """What the table `ssh` of the settings says.

    Attributes:
        hosts: machines, as `ssh` knows them.
        python: with this package, as it is called there.
        shared: folders that the machines have at the same path as this one.
        command: of the client.
        addresses: by machine, at which the others reach it.
    """

    hosts: tuple[str, ...]
    python: str = "python3"
    shared: tuple[Path, ...] = ()
    command: tuple[str, ...] = ("ssh",)
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, home: Home) -> SshSettings:
        """Reads them.

        Raises:
            ConfigurationError: they are wrong, or name no machine; says which key.
        """
        settings = Settings.of(home)
        table = dict(settings.tables["ssh"])
        found: dict[str, Any] = {}
        for key in ("hosts", "shared", "command"):
            if key in table:
                found[key] = tuple(_texts(settings.file, key, table.pop(key)))
        if "python" in table:
            (found["python"],) = _texts(settings.file, "python", [table.pop("python")])
        addresses = table.pop("addresses", {})
        if not isinstance(addresses, dict):
            raise _wrong(settings.file, "addresses", addresses, "a table of addresses by machine")
        for host, address in addresses.items():
            _require_address(settings.file, host, address)
        if table:
            key = next(iter(table))
            raise ConfigurationError(
                f"ssh.{key} in {settings.file} is a key that nobody knows; expected hosts, python,"
                " shared, command and addresses. Remove it, or correct its name."
            )
        if not found.get("hosts"):
            raise ConfigurationError(
                f"the backend 'ssh' has no machines: {settings.file} has no ssh.hosts; expected"
                ' there, under [ssh], a line such as hosts = ["gpu-1", "gpu-2"]. Add it.'
            )
        for host in found["hosts"]:
            if host.startswith("-") or not host:
                raise _wrong(settings.file, "hosts", host, "names as ssh takes them")
        found["shared"] = tuple(Path(each) for each in found.get("shared", ()))
        return cls(**found, addresses=addresses)

    def courier(self, host: str) -> list[str]:
        """The command that runs a courier on a machine, on the standard input and output."""
        python = " ".join(map(shlex.quote, (self.python, *_COURIER)))
        return [*self.command, *_OPTIONS, "--", host, f"exec {python}"]


def _texts(file: Path, key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(type(each) is str for each in value):
        expected = "text" if key == "python" else "a list of texts"
        raise _wrong(file, key, value, expected)
    return value


def _require_address(file: Path, host: str, address: Any) -> None:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise _wrong(file, f"addresses.{host}", address, "an IP address") from None


def _wrong(file: Path, key: str, value: Any, expected: str) -> ConfigurationError:
    return ConfigurationError(f"ssh.{key} in {file} is {value!r:.200}; expected {expected}.")


def _connected(
    settings: SshSettings, machines: Sequence[str], count: int
) -> tuple[list[tuple[Mirror, Hello]], list[MirrorError]]:
    """Couriers on the first machines that can be reached, all asked at one time.

    Returns: `count` of them, or fewer; and why the others cannot be.
    """
    found: list[tuple[Mirror, Hello]] = []
    problems: list[MirrorError] = []
    until = time.monotonic() + _REACH_S

    def connect(machine: str) -> tuple[Mirror, Hello] | MirrorError:
        mirror = Mirror(machine, ProcessLink(settings.courier(machine)))
        try:
            return mirror, mirror.hello(max(0.1, until - time.monotonic()))
        except MirrorError as error:
            mirror.close()
            return error

    left = list(machines)
    with concurrent.futures.ThreadPoolExecutor(max(1, count)) as pool:
        while left and len(found) < count and time.monotonic() < until:
            asked, left = left[: count - len(found)], left[count - len(found) :]
            for outcome in pool.map(connect, asked):
                if isinstance(outcome, MirrorError):
                    problems.append(outcome)
                else:
                    found.append(outcome)
    return found, problems


class SshBackend(LocalBackend):
    """Runs jobs on machines that can be logged in to."""

    name = "ssh"

    def submit(self, job: JobDirectory) -> None:
        """Starts a job, once it is known that its machines are there.

        Raises:
            OSError: as of `LocalBackend`.
            BackendError: there are not enough machines, or they cannot be reached.
            ConfigurationError: the settings are wrong.
        """
        try:
            _require_machines(job)
        except SmdistributedError as error:
            end_job(job, [], f"ClientError: {error}")
            job.lock.release()
            raise
        super().submit(job)


def _require_machines(job: JobDirectory) -> None:
    settings = SshSettings.of(Home(job.path.parent.parent))
    count = len(hosts_of(job.read()))
    if count > len(settings.hosts):
        raise BackendError(
            f"job {job.name!r} asks for {count} hosts, and ssh.hosts names"
            f" {len(settings.hosts)} machines; expected as many, or more."
        )
    found, problems = _connected(settings, settings.hosts, count)
    for mirror, _ in found:
        mirror.close()
    if len(found) < count:
        raise BackendError(_told(settings, problems))


def _told(settings: SshSettings, problems: Sequence[MirrorError]) -> str:
    command = shlex.join([*settings.command, "-o", "BatchMode=yes", settings.hosts[0]])
    probe = f"{command} {shlex.quote(settings.python)} -c 'import smdistributed'"
    texts = "; ".join(map(str, problems)) or "no machine has answered in time"
    return f"{texts}. Try by hand: {probe}"


class SshHosts:
    """Of one attempt.

    Args:
        job: its directory.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job = job
        self._settings = SshSettings.of(Home(job.path.parent.parent))
        self._free: dict[str, Mirror] = {}
        self._begun: list[Mirror] = []

    def reach(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        is_unwanted: Callable[[], bool],
    ) -> list[Machine]:
        """Connects to the first machines that can be reached.

        Raises:
            UnreachableError: there are too few of them.
        """
        settings = self._settings
        found, problems = _connected(settings, settings.hosts, len(names))
        self._free = dict(zip(names, (mirror for mirror, _ in found), strict=False))
        if len(found) < len(names):
            raise UnreachableError(_told(settings, problems))
        for error in problems:
            self._job.note("host-left-out", now(), why=str(error))
        machines = []
        for name, (mirror, hello) in zip(names, found, strict=True):
            address = settings.addresses.get(mirror.machine, hello.address)
            self._job.note(
                "host",
                now(),
                host=name,
                machine=mirror.machine,
                address=address,
                opt_ml=hello.opt_ml,
            )
            first, second = hello.ports
            interface = hello.interface or "eth0"
            machines.append(Machine(address, interface, hello.num_gpus, (first, second)))
        return machines

    def start(self, plan: Plan) -> HostAgent:
        """Has the agent of a host start, once its data have come there.

        Raises:
            OSError: the job's directory cannot be written.
        """
        mirror = self._free.pop(plan.host)
        self._begun.append(mirror)
        directory = HostDirectory(self._job.host(plan.host))
        mirror.begin(directory, plan, self._job.path / "token", self._settings.shared)
        return mirror

    def own_processes(self) -> list[int]:
        """Of the connections."""
        return [pid for each in (*self._free.values(), *self._begun) for pid in each.pids()]

    def bring(self, *, has_model: bool) -> None:
        """Brings the results of all hosts.

        Raises:
            SmdistributedError: some are lost.
        """
        names = [*(["model"] if has_model else []), "output", "checkpoints"]
        problems = []
        for mirror in self._begun:
            try:
                mirror.bring(names)
            except SmdistributedError as error:
                problems.append(str(error))
        if problems:
            raise MirrorError("; ".join(problems))

    def close(self) -> None:
        """Ends the couriers."""
        for mirror in (*self._free.values(), *self._begun):
            mirror.close()
