# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The libraries of the collectives' benchmark, with their ranks on test hosts.

Each runs with its defaults. Exceptions, with their reasons:

- Gloo asks the resolver for the address of the host's own name, and test hosts have no resolver:
  ``GLOO_SOCKET_IFNAME`` names the interface.
- Open MPI's launcher reaches the other hosts with a remote shell: ours enters a namespace
  (``host_shell.sh``). Components are those for a cluster without special hardware: TCP between
  hosts, shared memory inside, both over the one interface there is. Ranks are not bound to
  processors: each host's launcher would take the same ones. With more ranks than processors it is
  measured a second time with ranks that yield while they wait: the hosts share the processors, so
  the launcher, which sees enough of them on every host, does not arrange for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from shared import LIBRARIES, Host, Library, WorkerGroup, is_oversubscribed

MEASURED = ("smddp-direct", "smddp-torch", "gloo", "openmpi", "openmpi-yield")
_EITHER = ("openmpi", "openmpi-yield")
_SHELL = Path(__file__).with_name("host_shell.sh")
_OPEN_MPI_OPTIONS = (
    *("--mca", "pml", "ob1"),
    *("--mca", "btl", "self,sm,tcp"),
    *("--mca", "btl_tcp_if_include", "eth0"),
    *("--prtemca", "prte_if_include", "eth0"),
    *("--bind-to", "none"),
)
_OPEN_MPI_SETTINGS = "TCP between hosts, shared memory inside (pml ob1), not bound to processors"
_SETTINGS = {
    "smddp-direct": "defaults; NumPy arrays",
    "gloo": "defaults; GLOO_SOCKET_IFNAME=eth0",
    "openmpi": _OPEN_MPI_SETTINGS,
    "openmpi-yield": f"{_OPEN_MPI_SETTINGS}; mpi_yield_when_idle=1, with more ranks than CPUs",
}


@dataclass(frozen=True)
class HostLibrary(Library):
    """A library whose ranks are started on ``hosts``, ``ranks_per_host`` on each."""

    hosts: tuple[Host, ...] = ()
    ranks_per_host: int = 1

    def commands(self, ranks: int, control: Path) -> list[list[str]]:
        """What to start: one command per rank on its host, or one ``mpiexec`` on the first."""
        plain = super().commands(ranks, control)
        if self.mpiexec is None:
            return [self._host_of(rank).command(command) for rank, command in enumerate(plain)]
        launcher, n, count, *rest = plain[0]
        slots = ",".join(f"{host.address}:{self.ranks_per_host}" for host in self.hosts)
        options = ["--host", slots, "--prtemca", "plm_ssh_agent", str(_SHELL), *_OPEN_MPI_OPTIONS]
        return [self.hosts[0].command([launcher, n, count, *options, *rest])]

    def variables_of(self, rank: int, ranks: int, port: int) -> dict[str, str]:
        """Environment of one start command; ``rank`` counts the commands."""
        variables = super().variables_of(rank, ranks, port)
        if self.mpiexec is not None:
            holders = (f"{host.address}={host.inside.pid}" for host in self.hosts)
            return variables | {"SMD_TEST_HOSTS": " ".join(holders)}
        return variables | {
            "LOCAL_RANK": str(rank % self.ranks_per_host),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "GROUP_RANK": str(rank // self.ranks_per_host),
            "MASTER_ADDR": self.hosts[0].address,
            "GLOO_SOCKET_IFNAME": "eth0",
        }

    def _host_of(self, rank: int) -> Host:
        return self.hosts[rank // self.ranks_per_host]


class HostGroup(WorkerGroup):
    """Running ranks on hosts. A call of 100 MiB may take seconds, and a command is some calls."""

    command_deadline_s = 240.0


def on_hosts(names: Sequence[str], hosts: Sequence[Host], ranks_per_host: int) -> list[HostLibrary]:
    """Those of ``MEASURED`` with these names, on ``hosts``, unless they need more ranks."""
    ranks = len(hosts) * ranks_per_host
    known = {library.name: library for library in LIBRARIES}
    placed = []
    for name in names:
        # More ranks than CPUs: ranks of Open MPI that never yield take seconds for a call, as each
        # waits for the other's slice. They believe to have their hosts to themselves.
        if name in _EITHER and (name == "openmpi-yield") != is_oversubscribed(ranks):
            continue
        own = {field.name: getattr(known[name], field.name) for field in fields(Library)}
        own["settings"] = _SETTINGS.get(name, known[name].settings)
        placed.append(HostLibrary(**own, hosts=tuple(hosts), ranks_per_host=ranks_per_host))
    return placed
