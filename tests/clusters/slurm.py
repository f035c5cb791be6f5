# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Slurm on this machine, for tests and to try it: real daemons, as root, without munge.

    with slurm() as cluster:
        cluster.run("srun", "-N2", "true")
        subprocess.run(["sbatch", "job.sh"], env={**os.environ, **cluster.environ})

slurmctld and each slurmd have a machine of their own (`machine.py`), so nodes do not see each
other's processes, and names such as `n1` resolve nowhere. Network and files are this machine's.

For people: `make slurm-here`, or `python -m tests.clusters.slurm --nodes 2`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.clusters.machine import Machine, NoMachine, folder_of_its_own, machine
from tests.clusters.machine import why_not as why_no_machine

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "unshare")
_START_S = 30.0
_LOOK_S = 0.02
# Below those that the kernel gives to connections.
_PORTS = range(20000, 32000)

_CONF = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire={cred_expire}
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait}
SlurmdTimeout={slurmd_timeout}
SchedulerParameters=batch_sched_delay=0,sched_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
"""
_NODE = "NodeName={name} NodeAddr=127.0.0.1 NodeHostname={name} Port={port} CPUs={cpus}"
_PARTITION = "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"


def why_not() -> str | None:
    """Why Slurm cannot be started here, in words; None if it can."""
    return why_no_machine(*_PROGRAMS)


@dataclasses.dataclass(frozen=True)
class Slurm:
    """A cluster that runs.

    Attributes:
        conf: its `slurm.conf`.
        nodes: by name.
        controller: the machine of slurmctld.
    """

    conf: Path
    nodes: Mapping[str, Machine]
    controller: Machine

    @property
    def environ(self) -> dict[str, str]:
        """What commands of Slurm must have, to find it."""
        return {"SLURM_CONF": str(self.conf)}

    def run(self, *command: str) -> str:
        """What a command prints that knows the cluster."""
        return subprocess.run(
            command,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **self.environ},
        ).stdout

    def jobs(self) -> list[dict[str, Any]]:
        """Those that pend or run, as `squeue --json` tells of them."""
        known: list[dict[str, Any]] = json.loads(self.run("squeue", "--json"))["jobs"]
        ended = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
        return [each for each in known if each["job_state"] not in ended]

    def logs(self) -> str:
        """The last lines of all daemons."""
        return "\n".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}"
            for file in sorted(self.conf.parent.glob("*.log"))
        )


@contextlib.contextmanager
def slurm(
    nodes: int = 2,
    *,
    cpus: int = 4,
    gpus: int = 0,
    kill_wait_s: int = 5,
    requeue_s: int = 5,
    slurmd_timeout_s: int = 300,
    lines: str = "",
) -> Iterator[Slurm]:
    """A cluster of its own, with free ports; on leaving, nothing of it is left.

    Args:
        nodes: how many; they are n1, n2 and so on.
        cpus: of each node, whatever the machine has.
        gpus: of each node that Slurm believes in; no device belongs to them.
        kill_wait_s: seconds between SIGTERM and SIGKILL of `scancel`.
        requeue_s: about how long a job that was requeued waits. Sites have 120.
        slurmd_timeout_s: when a node that does not answer is down.
        lines: more of slurm.conf, such as partitions.

    Raises:
        NoMachine: it does not start; ask `why_not()` before.
    """
    names = [f"n{number}" for number in range(1, nodes + 1)]
    port, *ports = _free_ports(1 + nodes)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_of_its_own("smd-slurm"))
        conf = folder / "slurm.conf"
        conf.write_text(
            _CONF.format(
                host=socket.gethostname(),
                port=port,
                folder=folder,
                kill_wait=kill_wait_s,
                cred_expire=requeue_s,
                slurmd_timeout=slurmd_timeout_s,
            )
            + ("GresTypes=gpu\n" if gpus else "")
            + "".join(
                _NODE.format(name=name, port=each, cpus=cpus)
                + (f" Gres=gpu:{gpus}\n" if gpus else "\n")
                for name, each in zip(names, ports, strict=True)
            )
            + f"{_PARTITION}\n{lines}\n"
        )
        if gpus:
            for number in range(gpus):
                (folder / f"gpu{number}").touch()
            files = f"{folder}/gpu[0-{gpus - 1}]"
            (folder / "gres.conf").write_text(f"Name=gpu File={files} Count={gpus}\n")
        for each in ("state", *(f"spool-{name}" for name in names)):
            (folder / each).mkdir()
        log = folder / "start.log"
        controller = stack.enter_context(
            machine(socket.gethostname(), 'slurmctld -f "$1" >&2', str(conf), log=log)
        )
        made = {
            name: stack.enter_context(
                machine(name, 'slurmd -f "$1" -N "$2" >&2', str(conf), name, log=log)
            )
            for name in names
        }
        cluster = Slurm(conf, made, controller)
        _wait_until_idle(cluster)
        yield cluster


def _wait_until_idle(cluster: Slurm) -> None:
    until = time.monotonic() + _START_S
    said = ""
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.CalledProcessError):
            said = cluster.run("sinfo", "--noheader", "--Node", "--format=%N %t", "-p", "all")
            if said.split().count("idle") == len(cluster.nodes):
                return
        time.sleep(_LOOK_S)
    raise NoMachine(f"Slurm did not start in {_START_S:g} s: {said!r}\n{cluster.logs()}")


def _free_ports(count: int) -> list[int]:
    """Of TCP, which nobody listens on."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("", port))
            found.append(port)
            if len(found) == count:
                return found
    raise NoMachine(f"no {count} ports of {_PORTS} are free.")


def main() -> int:
    """Slurm for a person, until Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="make slurm-here", description="A real Slurm on this machine, to try it. Needs root."
    )
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="2 if not given")
    parser.add_argument("--cpus", type=int, default=4, metavar="N", help="of each node (4)")
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"Slurm cannot be started here: {reason}.", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), slurm(options.nodes, cpus=options.cpus) as cluster:
        print(f"Slurm runs with the nodes {', '.join(cluster.nodes)}. In another terminal:\n")
        print(f"    export SLURM_CONF={cluster.conf}\n")
        print("Ctrl-C here ends it, with its jobs; nothing of it is left then.", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
