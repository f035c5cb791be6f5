# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ray on machines within this one, for tests and to try it: `ray start` on each, real daemons.

    with ray() as cluster:
        JobSubmissionClient(cluster.address).submit_job(entrypoint="python -V")
        cluster.machines["host-1"].power_off()      # gone, and nobody was told
        cluster.kill_raylet("host-1")

Nodes share no temporary files, no home and no shared memory with this machine, nor with each other
(`hosts.py`), and none of the variables that this process has. `ray stop` is never called: it ends
whatever Ray it finds.

For people: `make ray-here`, or `python -m tests.clusters.ray --nodes 2`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.clusters.hosts import hosts_network, machines_of
from tests.clusters.hosts import why_not as why_no_hosts
from tests.clusters.machine import Machine, NoMachine, folder_of_its_own
from tests.multihost.hosts import Host

# Beside this interpreter, which the cluster has as well.
_RAY = Path(sys.executable).parent / "ray"
_GCS_PORT = 6379
_DASHBOARD_PORT = 8265
_OBJECT_STORE_BYTES = 100_000_000  # about the least that Ray takes
# On an idle machine it takes 8 s, and 35 s where much else runs.
_START_S = 120.0
_LOOK_S = 0.1


def why_not() -> str | None:
    """Why Ray cannot be started here, in words; None if it can."""
    if not _RAY.exists():
        return "ray not found; make env-clusters installs it"
    return why_no_hosts("ip", "unshare")


@dataclasses.dataclass(frozen=True)
class Ray:
    """A cluster that runs.

    Attributes:
        address: of its Jobs API and dashboard, as a URL.
        gcs_address: that `ray start --address=` takes.
        machines: by name, `host-0` (the head) and so on: the processes.
        links: by name: the network.
        folder: `NAME.log` of each: what `ray start` has printed there.
    """

    address: str
    gcs_address: str
    machines: Mapping[str, Machine]
    links: Mapping[str, Host]
    folder: Path

    def nodes_alive(self) -> int:
        """How many nodes the cluster believes in; 0 if it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.address}/api/v0/nodes", timeout=10) as answer:
                nodes = json.load(answer)["data"]["result"]["result"]
        except (OSError, ValueError):
            return 0
        return sum(each["state"] == "ALIVE" for each in nodes)

    def wait_for_nodes(self, number: int) -> None:
        """Until so many nodes are alive.

        Raises:
            NoMachine: they are not, in time; says what `ray start` has printed.
        """
        until = time.monotonic() + _START_S
        while (found := self.nodes_alive()) != number:
            if time.monotonic() > until:
                raise NoMachine(
                    f"of Ray's nodes {found} are alive after {_START_S:g} s, expected"
                    f" {number}.\n{self.logs()}"
                )
            time.sleep(_LOOK_S)

    def kill_raylet(self, name: str) -> None:
        """Ends the process that is the node, by SIGKILL; its workers notice."""
        for pid in self.machines[name].processes("raylet/raylet"):
            os.kill(pid, signal.SIGKILL)

    def start_node(self, name: str) -> subprocess.Popen[bytes]:
        """`ray start` on a machine that is no node, or no more; ends when it is one."""
        options = [f"--address={self.gcs_address}"]
        return _ray_start(self.machines[name], self.links[name], options, self._log(name))

    def logs(self) -> str:
        """What `ray start` has printed."""
        return "\n".join(
            f"--- {name}\n{self._log(name).read_text(errors='replace')[-3000:]}"
            for name in self.machines
        )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@contextlib.contextmanager
def ray(
    nodes: int = 2,
    *,
    cpus: int = 2,
    gpus: int = 0,
    hidden: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
) -> Iterator[Ray]:
    """A cluster of its own, reachable from here; on leaving, nothing of it is left.

    Args:
        nodes: how many.
        cpus: of each node, whatever the machine has.
        gpus: of each node that Ray believes in; no device belongs to them.
        hidden: more folders that are empty there, beside temporary ones and the home directory.
        environ: more variables of the daemons, such as settings of Ray's (`RAY_...`).

    Raises:
        NoMachine: it does not start; ask `why_not()` before.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_of_its_own("smd-ray"))
        (folder / "there").mkdir()
        _, links = stack.enter_context(hosts_network(nodes))
        machines = stack.enter_context(
            machines_of(links, "", folder=folder / "there", logs=folder, hidden=hidden)
        )
        head, *others = links
        address = links[head].address
        cluster = Ray(
            f"http://{address}:{_DASHBOARD_PORT}",
            f"{address}:{_GCS_PORT}",
            machines,
            links,
            folder,
        )
        shared = [f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
        started = {
            head: _ray_start(
                machines[head],
                links[head],
                [
                    *("--head", f"--port={_GCS_PORT}", *shared),
                    *("--include-dashboard=true", f"--dashboard-host={address}"),
                    f"--dashboard-port={_DASHBOARD_PORT}",
                    # Nobody scales this cluster; it saves a process and seconds.
                    "--no-monitor",
                ],
                folder / f"{head}.log",
                environ,
            )
        }
        _wait_for_port(machines[head], started[head], cluster)
        for name in others:
            options = [f"--address={cluster.gcs_address}", *shared]
            log = folder / f"{name}.log"
            started[name] = _ray_start(machines[name], links[name], options, log, environ)
        for name, process in started.items():
            if process.wait(_START_S) != 0:
                raise NoMachine(f"`ray start` has failed on {name}.\n{cluster.logs()}")
        cluster.wait_for_nodes(nodes)
        yield cluster


def _ray_start(
    machine: Machine,
    link: Host,
    options: Sequence[str],
    log: Path,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """The command, which ends when the node's daemons run.

    They have the variables that a login would give them, and none of this process: the machine of a
    cluster knows nothing of who sends it jobs.
    """
    command = [str(_RAY), "start", f"--node-ip-address={link.address}", "--disable-usage-stats"]
    command += [f"--object-store-memory={_OBJECT_STORE_BYTES}", *options]
    variables = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        **(environ or {}),
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            machine.command(command),
            cwd="/",
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )


def _wait_for_port(machine: Machine, head: subprocess.Popen[bytes], cluster: Ray) -> None:
    """Until nodes may join; the dashboard takes longer."""
    look = machine.command(["ss", "-Hltn", f"sport = :{_GCS_PORT}"])
    until = time.monotonic() + _START_S
    while not subprocess.run(look, check=True, capture_output=True).stdout:
        if head.poll() not in (None, 0) or time.monotonic() > until:
            raise NoMachine(f"the head of Ray does not start.\n{cluster.logs()}")
        time.sleep(_LOOK_S)


def main() -> int:
    """Ray for a person, until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="make ray-here", description="A real Ray on this machine, to try it. Needs root."
    )
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="2 if not given")
    parser.add_argument("--cpus", type=int, default=2, metavar="N", help="of each node (2)")
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"Ray cannot be started here: {reason}.", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    print("Ray starts; it takes 10 to 40 seconds.", flush=True)
    with contextlib.suppress(KeyboardInterrupt), ray(options.nodes, cpus=options.cpus) as cluster:
        print(f"Ray runs with {options.nodes} nodes. In another terminal:\n")
        print(f"    export RAY_ADDRESS={cluster.address}\n")
        print(f"Its dashboard is {cluster.address}, to be seen on this machine.")
        print("Ctrl-C here ends it, with its jobs; nothing of it is left then.", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
