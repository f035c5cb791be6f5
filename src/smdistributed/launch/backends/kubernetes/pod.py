# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What runs in each pod of a job: `python -m smdistributed.launch.backends.kubernetes.pod`.

The pod of the first host runs the job's process (`in_cluster.driver`), and a courier for that host.
Those of the others bring couriers to it over the network (`courier.sockets`), until it says that
the job is over. What they need lies in the files of a Secret: the package, how to find the first
pod, and the secret that they know one another by.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smdistributed.launch.agent.ending import now
from smdistributed.launch.agent.plan import HostDirectory, Plan
from smdistributed.launch.backends.hosts import HostAgent, Hosts, Machine, UnreachableError
from smdistributed.launch.backends.in_cluster.driver import drive
from smdistributed.launch.backends.kubernetes.manifests import FILES
from smdistributed.launch.backends.results import bring_all
from smdistributed.launch.courier.caller import call
from smdistributed.launch.courier.links import ProcessLink
from smdistributed.launch.courier.mirror import Mirror, MirrorError
from smdistributed.launch.courier.sockets import Door
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["PodHosts", "main"]

# Images are pulled, and nodes are made ready; the job's own limits may be shorter.
_COME_S = 900.0
_HELLO_S = 60.0
_PATIENCE_S = 900.0
_DISMISS_S = 30.0
_LOST = 3  # exit status


class PodHosts:
    """Of one attempt.

    Args:
        job: its directory, in the first pod.
        door: where couriers of the other pods come.
        address: of this pod.
    """

    def __init__(self, job: JobDirectory, door: Door, address: str) -> None:
        self._job = job
        self._door = door
        self._address = address
        self._mirrors: list[Mirror] = []
        self._begun: list[Mirror] = []

    def reach(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        is_unwanted: Callable[[], bool],
    ) -> list[Machine]:
        """Waits for the couriers of all pods.

        Raises:
            UnreachableError: one does not come, or does not begin.
        """
        command = [sys.executable, "-P", "-m", "smdistributed.launch.courier.host", self._address]
        self._mirrors = [Mirror("pod 0", ProcessLink(command))]
        try:
            for number in range(1, len(names)):
                link = self._door.take(number, _COME_S, is_unwanted)
                self._mirrors.append(Mirror(f"pod {number}", link))
            hellos = [mirror.hello(_HELLO_S) for mirror in self._mirrors]
        except TimeoutError as error:
            if is_unwanted():
                return []
            raise UnreachableError(f"pod {len(self._mirrors)} cannot be reached: {error}") from None
        except MirrorError as error:
            raise UnreachableError(str(error)) from None
        machines = []
        for name, hello in zip(names, hellos, strict=True):
            self._job.note("host", now(), host=name, machine=hello.name, address=hello.address)
            first, second = hello.ports
            interface = hello.interface or "eth0"
            machines.append(Machine(hello.address, interface, hello.num_gpus, (first, second)))
        return machines

    def start(self, plan: Plan) -> HostAgent:
        """Has the agent of a host start, once its data have come there.

        Raises:
            OSError: the job's directory cannot be written.
        """
        mirror = self._mirrors[plan.index]
        directory = HostDirectory(self._job.host(plan.host))
        mirror.begin(directory, plan, self._job.path / "token")
        self._begun.append(mirror)
        return mirror

    def own_processes(self) -> list[int]:
        """Of the courier in this pod."""
        return [pid for each in self._mirrors for pid in each.pids()]

    def bring(self, *, has_model: bool) -> None:
        """Brings the results of all hosts.

        Raises:
            SmdistributedError: as of `bring_all`.
        """
        bring_all(self._begun, has_model=has_model)

    def close(self) -> None:
        """Ends the couriers. Those of the other pods come again."""
        for mirror in self._mirrors:
            mirror.close()


def _lead(about: Mapping[str, object], secret: bytes, address: str) -> int:
    """The first pod."""
    hosts, port = int(str(about["hosts"])), int(str(about["port"]))
    door = Door(address, port, secret)
    try:
        with tempfile.TemporaryDirectory(prefix="smd-") as folder:
            with zipfile.ZipFile(FILES / "package.zip") as package:
                package.extractall(folder)

            def hosts_of(job: JobDirectory) -> Callable[[], Hosts]:
                return lambda: PodHosts(job, door, address)

            drive(Path(folder), hosts_of)
    finally:
        door.close(set(range(1, hosts)), _DISMISS_S)
    return 0


def _follow(about: Mapping[str, object], secret: bytes, address: str, number: int) -> int:
    """The other pods."""
    # The first pod has the ranks end, which have their time; a courier ends with its connection.
    # Without one nobody is waited for any more.
    is_unwanted = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: is_unwanted.set())
    last = ""

    def say(text: str) -> None:
        nonlocal last
        if text != last:
            print(text, flush=True)
            last = text

    host, port = str(about["first"]), int(str(about["port"]))
    is_over = call(host, port, number, secret, address, _PATIENCE_S, say, is_unwanted.is_set)
    return 0 if is_over else _LOST


def main() -> int:
    """Runs what this pod is for."""
    # The first process of a container hears no signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    about = json.loads(Path(FILES / "about.json").read_bytes())
    secret = bytes.fromhex(Path(FILES / "secret").read_text())
    address = os.environ["SMD_POD_IP"]
    number = int(os.environ["JOB_COMPLETION_INDEX"])
    if number == 0:
        return _lead(about, secret, address)
    return _follow(about, secret, address, number)


if __name__ == "__main__":
    sys.exit(main())
