# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The job's process in a Ray cluster: `python -m ...backends.ray.driver ID CPUS GPUS`.

Ray runs it in the folder of the job's package. One placement group has a bundle for each host, and
an actor in each bundle runs a courier (`launch.courier`).

    python -m ...backends.ray.driver --interrupt ID REASON    from another job: as `interruption`
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError, SmdistributedError
from smdistributed.launch.agent.ending import now
from smdistributed.launch.agent.plan import HostDirectory, Plan
from smdistributed.launch.backends.hosts import HostAgent, Hosts, Machine, UnreachableError
from smdistributed.launch.backends.in_cluster.driver import drive
from smdistributed.launch.backends.ray.surroundings import without_ray
from smdistributed.launch.backends.results import bring_all
from smdistributed.launch.courier.messages import Hello
from smdistributed.launch.courier.mirror import Mirror, MirrorError
from smdistributed.launch.jobs.directory import JobDirectory

__all__ = ["RayHosts", "main"]

# Untyped, as it need not be installed where types are checked.
ray: Any = importlib.import_module("ray")
_groups: Any = importlib.import_module("ray.util.placement_group")
_strategies: Any = importlib.import_module("ray.util.scheduling_strategies")

_NAMESPACE = "smdistributed"
_TICK_S = 1.0
_HELLO_S = 60.0  # it imports this package, perhaps from a slow disk
_MOST_READ = 1 << 20
_LAST_LINES = 5


@ray.remote(max_restarts=0, max_concurrency=4)
class _Actor:
    """Runs a courier on its node. With the actor its pipes close, and the courier ends."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor lives
        address = ray.util.get_node_ip_address()
        command = [sys.executable, "-P", "-m", "smdistributed.launch.courier.host", address]
        environ = without_ray(os.environ, has_gpus=bool(ray.get_gpu_ids()))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
            env=environ,
        )

    def read(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.read(_MOST_READ) or b""

    def write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        rest = memoryview(content)
        while rest:
            rest = rest[self._process.stdin.write(rest) or 0 :]

    def end(self, timeout_s: float) -> str:
        """Waits for the courier. Returns: how it ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        text = " ".join(lines[-_LAST_LINES:]) or "it printed nothing"
        return f"its courier ended with status {self._process.returncode}: {text}"


class _Link:
    """To the courier of an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._why = ""

    def pids(self) -> list[int]:
        return []

    def read(self) -> bytes:
        try:
            content: bytes = ray.get(self._actor.read.remote())
        except ray.exceptions.RayError as error:
            self._why = f"its actor is gone: {str(error).splitlines()[0]}"
            return b""
        if not content and not self._why:
            self._why = self._how_it_ended()
        return content

    def _how_it_ended(self) -> str:
        try:
            return str(ray.get(self._actor.end.remote(_TICK_S)))
        except ray.exceptions.RayError as error:
            return f"its actor is gone: {str(error).splitlines()[0]}"

    def write(self, content: bytes) -> None:
        try:
            ray.get(self._actor.write.remote(content))
        except ray.exceptions.RayError as error:
            raise OSError(str(error).splitlines()[0]) from None

    def why_closed(self) -> str:
        return self._why or "its actor is gone"

    def cut(self) -> None:
        with contextlib.suppress(Exception):
            ray.kill(self._actor)

    def end(self, timeout_s: float) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.end.remote(timeout_s), timeout=2 * timeout_s)
        self.cut()

    def free(self) -> None:
        self.cut()


class RayHosts:
    """Of one attempt.

    Args:
        job: its directory here.
        bundle: resources of each host.
    """

    def __init__(self, job: JobDirectory, bundle: Mapping[str, float]) -> None:
        self._job = job
        self._bundle = dict(bundle)
        self._group: Any = None
        self._mirrors: dict[str, Mirror] = {}
        self._begun: list[Mirror] = []

    def reach(
        self,
        names: Sequence[str],
        environment: Mapping[str, str],
        is_unwanted: Callable[[], bool],
    ) -> list[Machine]:
        """Has a placement group made, and couriers in it. Hosts are in the order of addresses.

        Raises:
            ConfigurationError: the cluster can never have so many.
            UnreachableError: a courier does not begin.
        """
        if not self._make_group(len(names), is_unwanted):
            return []
        actors = [self._actor(index) for index in range(len(names))]
        mirrors = [Mirror(f"bundle {index}", _Link(actor)) for index, actor in enumerate(actors)]
        self._mirrors = dict(zip(names, mirrors, strict=True))  # so that all are closed
        try:
            met = [(mirror, mirror.hello(_HELLO_S)) for mirror in mirrors]
        except MirrorError as error:
            raise UnreachableError(str(error)) from None
        met.sort(key=lambda each: (ipaddress.ip_address(each[1].address), each[1].folder))
        self._mirrors = {name: mirror for name, (mirror, _) in zip(names, met, strict=True)}
        for name, (mirror, hello) in zip(names, met, strict=True):
            mirror.machine = f"node {hello.address}"
            self._job.note("host", now(), host=name, machine=hello.name, address=hello.address)
        return _machines([hello for _, hello in met])

    def _make_group(self, count: int, is_unwanted: Callable[[], bool]) -> bool:
        """A bundle for each host, on nodes of their own if there are so many.

        Returns: whether it has room now; else it is not wanted any more.
        """
        for strategy in ("STRICT_SPREAD", "PACK"):
            self._group = _groups.placement_group([self._bundle] * count, strategy=strategy)
            while not self._group.wait(_TICK_S):
                if is_unwanted():
                    return False
                found = _groups.placement_group_table(self._group)
                if found["stats"]["scheduling_state"] == "INFEASIBLE":
                    break
            else:
                return True
            _groups.remove_placement_group(self._group)
            if strategy == "STRICT_SPREAD":
                self._job.note("hosts-share-nodes", now(), hosts=count)
        self._group = None
        nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        there = [{name: each.get(name, 0) for name in ("CPU", "GPU")} for each in nodes]
        raise ConfigurationError(
            f"the job asks for {count} hosts with {self._bundle} each, and the cluster has no room"
            f" for them even if nothing else runs: its nodes have {there}; expected as much."
        )

    def _actor(self, index: int) -> Any:
        strategy = _strategies.PlacementGroupSchedulingStrategy(self._group, index)
        cpus, gpus = self._bundle.get("CPU", 0), self._bundle.get("GPU", 0)
        actor: Any = _Actor
        options = actor.options(
            num_cpus=cpus,
            num_gpus=gpus,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {"RAY_worker_niceness": "0"}},
        )
        return options.remote()

    def start(self, plan: Plan) -> HostAgent:
        """Has the agent of a host start, once its data have come there.

        Raises:
            OSError: the job's directory cannot be written.
        """
        mirror = self._mirrors[plan.host]
        directory = HostDirectory(self._job.host(plan.host))
        mirror.begin(directory, plan, self._job.path / "token")
        self._begun.append(mirror)
        return mirror

    def own_processes(self) -> list[int]:
        """Actors are no processes of this one."""
        return []

    def bring(self, *, has_model: bool) -> None:
        """Brings the results of all hosts.

        Raises:
            SmdistributedError: as of `bring_all`.
        """
        bring_all(self._begun, has_model=has_model)

    def close(self) -> None:
        """Ends the couriers, and takes the placement group away."""
        for mirror in self._mirrors.values():
            mirror.close()
        if self._group is not None:
            with contextlib.suppress(Exception):
                _groups.remove_placement_group(self._group)


def _machines(hellos: Sequence[Hello]) -> list[Machine]:
    addresses = [each.address for each in hellos]
    machines = []
    for place, hello in enumerate(hellos):
        index = addresses[:place].count(hello.address)
        # GPUs are each bundle's own already.
        count = 1 if hello.num_gpus else addresses.count(hello.address)
        first, second = hello.ports
        machines.append(
            Machine(
                hello.address,
                hello.interface or "eth0",
                hello.num_gpus,
                (first, second),
                index if count > 1 else 0,
                count,
            )
        )
    return machines


@ray.remote(num_cpus=0)
class _Ear:
    """Hears in the cluster what is asked of a job."""

    def __init__(self) -> None:
        self._reason = ""

    def interrupt(self, reason: str) -> None:
        self._reason = reason

    def asked(self) -> str:
        reason, self._reason = self._reason, ""
        return reason


def _listen(ear: Any, job: JobDirectory) -> None:
    while True:
        try:
            reason = ray.get(ear.asked.remote())
        except ray.exceptions.RayError:
            return
        if reason:
            with contextlib.suppress(SmdistributedError):
                job.ask_to_interrupt(reason)
        time.sleep(_TICK_S)


def _ear_of(submission_id: str) -> str:
    """Its name. Jobs of one name, of two users, are two jobs of Ray's."""
    return f"smd-{submission_id}"


def main() -> int:
    """Runs the job of the package in this folder."""
    ray.init(address="auto", namespace=_NAMESPACE, log_to_driver=False)
    if sys.argv[1] == "--interrupt":
        ear = ray.get_actor(_ear_of(sys.argv[2]))
        ray.get(ear.interrupt.remote(sys.argv[3]))
        return 0
    _, submission_id, cpus, gpus = sys.argv
    given = {"CPU": int(cpus), "GPU": int(gpus)}
    bundle = {name: float(number) for name, number in given.items() if number}

    def hosts_of(job: JobDirectory) -> Callable[[], Hosts]:
        kind: Any = _Ear
        ear = kind.options(name=_ear_of(submission_id)).remote()
        threading.Thread(target=_listen, args=(ear, job), daemon=True).start()
        return lambda: RayHosts(job, bundle)

    drive(Path.cwd(), hosts_of)
    return 0


if __name__ == "__main__":
    sys.exit(main())
