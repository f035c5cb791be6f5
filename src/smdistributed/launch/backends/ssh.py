# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Machines of one's own as a backend: whoever can log in there by SSH can run jobs there.

A job's process runs here, as with the local backend, and holds a connection to each machine, on
which a courier runs (`launch.courier`). Once a connection is lost the courier ends what runs there.

Source: launch specification, section 11.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence

from smdistributed._common.errors import (
    ConfigurationError,
)
from smdistributed.launch.agent.ending import now
from smdistributed.launch.agent.plan import HostDirectory, Plan
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.hosts import HostAgent, Machine, UnreachableError
from smdistributed.launch.backends.local import LocalBackend
from smdistributed.launch.backends.plans import hosts_of
from smdistributed.launch.backends.results import bring_all
from smdistributed.launch.backends.ssh_settings import SshSettings
from smdistributed.launch.courier.links import ProcessLink
from smdistributed.launch.courier.messages import Hello
from smdistributed.launch.courier.mirror import Mirror, MirrorError
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["SshBackend", "SshHosts", "reachable"]

_REACH_S = 9.0
"""For all machines together: with what comes before, an answer within 10 s."""
_PATIENCE_S = 3.0
"""Other machines are asked in the place of those that have not answered by then."""
_LOOK_S = 0.05


class _Asked:
    """A machine that was asked for a courier."""

    def __init__(self, settings: SshSettings, machine: str) -> None:
        self.machine = machine
        self.hello: Hello | None = None
        self.mirror: Mirror | None = None
        self.problem = ""
        try:
            self.mirror = Mirror(machine, ProcessLink(settings.courier(machine)))
        except OSError as error:
            self.problem = f"{machine} cannot be reached: {settings.command[0]!r}: {error}"

    def wait(self, until: float) -> None:
        """Waits for its answer."""
        if self.mirror is None:
            return
        try:
            self.hello = self.mirror.hello(max(0.1, until - time.monotonic()))
        except MirrorError as error:
            self.problem = str(error)
            self.drop()

    def drop(self) -> None:
        """It is not needed."""
        if self.mirror is not None:
            self.mirror.kill()
            self.mirror.close()


def _connected(
    settings: SshSettings, count: int, is_unwanted: Callable[[], bool] = lambda: False
) -> tuple[list[tuple[Mirror, Hello]], dict[str, str]]:
    """Couriers on the first machines that answer.

    Args:
        settings: name the machines.
        count: how many are needed. The others are asked when one of these has failed, or is slow.
        is_unwanted: asked now and then; once it says so, no more answers are waited for.

    Returns: `count` of them, or fewer; and by machine why others are left out.
    """
    began = time.monotonic()
    until = began + _REACH_S
    left = list(settings.hosts)
    asked: dict[_Asked, concurrent.futures.Future[None]] = {}
    with concurrent.futures.ThreadPoolExecutor(len(left)) as pool:
        while True:
            answered = [each for each in asked if each.hello is not None]
            waiting = [each for each, future in asked.items() if not future.done()]
            is_patient = time.monotonic() - began < _PATIENCE_S
            num_missing = count - len(answered) - (len(waiting) if is_patient else 0)
            for machine in left[: max(0, num_missing)]:
                each = _Asked(settings, machine)
                asked[each] = pool.submit(each.wait, until)
                waiting.append(each)
            left = left[max(0, num_missing) :]
            if len(answered) >= count or not waiting or is_unwanted():
                break
            concurrent.futures.wait(
                [asked[each] for each in waiting], _LOOK_S, concurrent.futures.FIRST_COMPLETED
            )
        for each in waiting:
            if each.mirror is not None:
                each.mirror.kill()  # nobody waits for it
    good = sorted(
        (each for each in asked if each.hello is not None),
        key=lambda each: settings.hosts.index(each.machine),
    )
    for each in good[count:]:
        each.drop()
    found = [
        (each.mirror, each.hello) for each in good[:count] if each.mirror and each.hello is not None
    ]
    return found, {each.machine: each.problem for each in asked if each.problem}


def reachable(settings: SshSettings) -> dict[str, Hello | str]:
    """What each machine says of itself, or why it cannot be reached."""
    found, problems = _connected(settings, len(settings.hosts))
    said: dict[str, Hello | str] = dict(problems)
    for mirror, hello in found:
        mirror.close()
        said[mirror.machine] = hello
    return {machine: said.get(machine, "it has not answered in time") for machine in settings.hosts}


class SshBackend(LocalBackend):
    """Runs jobs on machines that can be logged in to."""

    name = "ssh"

    def require(self, job: JobDirectory) -> None:
        """There have to be as many machines as hosts, which answer.

        Raises:
            BackendError: not so.
            ConfigurationError: the settings are wrong.
        """
        _require_machines(job)


def _require_machines(job: JobDirectory) -> None:
    record = job.read()
    settings = SshSettings.of(Home(job.path.parent.parent))
    count = len(hosts_of(record))
    if count > len(settings.hosts):
        raise BackendError(
            f"job {job.name!r} asks for {count} hosts, and ssh.hosts names"
            f" {len(settings.hosts)} machines; expected as many, or more. Add machines there, or"
            " ask for fewer hosts."
        )
    found, problems = _connected(settings, count)
    for mirror, _ in found:
        mirror.close()
    if len(found) < count:
        raise BackendError(_told(settings, problems))


def _told(settings: SshSettings, problems: Mapping[str, str]) -> str:
    texts = "; ".join(problems.values()) or "no machine has answered in time"
    machine = next(iter(problems), settings.hosts[0])
    return f"{texts}. Try by hand: {settings.trial(machine)}"


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
            ConfigurationError: the settings name too few, now.
            UnreachableError: too few of them are there.
        """
        settings = self._settings
        if len(names) > len(settings.hosts):
            raise ConfigurationError(
                f"the job has {len(names)} hosts, and ssh.hosts names {len(settings.hosts)}"
                " machines by now; expected as many, or more."
            )
        found, problems = _connected(settings, len(names), is_unwanted)
        self._free = dict(zip(names, (mirror for mirror, _ in found), strict=False))
        if len(found) < len(names):
            raise UnreachableError(_told(settings, problems))
        for why in problems.values():
            self._job.note("host-left-out", now(), why=why)
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
            SmdistributedError: as of `bring_all`.
        """
        bring_all(self._begun, has_model=has_model)

    def close(self) -> None:
        """Ends the couriers."""
        for mirror in (*self._free.values(), *self._begun):
            mirror.close()
