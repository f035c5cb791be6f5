# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which libraries are measured, with which settings, and how their ranks are started.

Each library runs as a user would run it on one machine: its defaults, except where this file says
otherwise and why. The settings go into the result file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import child_processes

ENVIRONMENTS_FOLDER = Path(__file__).resolve().parents[1] / ".venvs"
_WORKER = Path(__file__).with_name("worker.py")


class LibraryAbsent(Exception):
    """The library cannot be used here; the text says why and goes into the report."""


@dataclass(frozen=True)
class Library:
    """A library with its settings.

    ``environment`` names a folder under ``benchmarks/.venvs``; ``None`` is the project's own
    environment. ``mpiexec`` holds the launcher's options; ``None`` means that the ranks are started
    directly, with torch's variables. ``is_default`` is False for what answers a question of its
    own: it is measured where a target needs it or the command line names it.
    """

    name: str
    label: str
    adapter: str
    environment: str | None = None
    mpiexec: tuple[str, ...] | None = None
    mpiexec_oversubscribed: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    variables_oversubscribed: dict[str, str] = field(default_factory=dict)
    settings: str = "defaults"
    own: bool = False
    only_oversubscribed: bool = False
    is_default: bool = True

    def find_python(self) -> Path:
        """Interpreter of the library's environment. Raises ``LibraryAbsent``."""
        if self.environment is None:
            return Path(sys.executable)
        python = ENVIRONMENTS_FOLDER / self.environment / "bin" / "python"
        if not python.exists():
            raise LibraryAbsent(
                f"the environment benchmarks/.venvs/{self.environment} is not there; "
                "create it with `python benchmarks/collectives/setup_envs.py`"
            )
        return python

    def commands(self, ranks: int, control: Path) -> list[list[str]]:
        """What to start: one command per rank, or one ``mpiexec``. Raises ``LibraryAbsent``."""
        python = self.find_python()
        worker = [str(python), str(_WORKER), "--adapter", self.adapter, "--control", str(control)]
        if self.mpiexec is None:
            return [worker] * ranks
        options = list(self.mpiexec)
        if is_oversubscribed(ranks):
            options += self.mpiexec_oversubscribed
        launcher = python.with_name("mpiexec")
        return [[str(launcher), "-n", str(ranks), *options, *worker]]

    def variables_of(self, rank: int, ranks: int, port: int) -> dict[str, str]:
        """Environment of one start command; ``rank`` counts the commands."""
        variables = {k: v for k, v in os.environ.items() if k not in _LEFT_BY_LAUNCHERS}
        variables |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if self.environment is not None:
            folder = ENVIRONMENTS_FOLDER / self.environment
            variables["PATH"] = f"{folder / 'bin'}{os.pathsep}{variables.get('PATH', '')}"
            variables["VIRTUAL_ENV"] = str(folder)
        if self.mpiexec is None:
            variables |= child_processes.membership_variables(rank, ranks, port)
        variables |= self.variables
        if is_oversubscribed(ranks):
            variables |= self.variables_oversubscribed
        return variables


_LEFT_BY_LAUNCHERS = frozenset(child_processes.membership_variables(0, 1, 0))


def is_oversubscribed(ranks: int) -> bool:
    """Whether there are more ranks than CPUs, where a rank that spins holds up another."""
    return ranks > len(os.sched_getaffinity(0))


LIBRARIES: Sequence[Library] = (
    Library(
        name="smddp-torch",
        label="smddp (torch, empty_shared)",
        adapter="adapters.smddp_torch:SmddpTorchAdapter",
        settings="defaults; tensors of empty_shared",
        own=True,
    ),
    Library(
        name="smddp-torch-plain",
        label="smddp (torch, plain tensors)",
        adapter="adapters.smddp_torch:SmddpTorchPlainAdapter",
        settings="defaults; ordinary tensors",
        own=True,
    ),
    Library(
        name="smddp-shared",
        label="smddp (engine, shared buffers)",
        adapter="adapters.smddp_direct:SmddpSharedAdapter",
        settings="defaults; buffers from allocate_shared",
        own=True,
    ),
    Library(
        name="smddp-direct",
        label="smddp (engine, staged)",
        adapter="adapters.smddp_direct:SmddpDirectAdapter",
        settings="defaults; ordinary NumPy arrays",
        own=True,
    ),
    Library(
        name="gloo",
        label="Gloo (through torch)",
        adapter="adapters.gloo:GlooAdapter",
    ),
    Library(
        name="openmpi",
        label="Open MPI",
        adapter="adapters.mpi:MpiAdapter",
        environment="openmpi",
        mpiexec=("--allow-run-as-root",),
        mpiexec_oversubscribed=("--map-by", ":OVERSUBSCRIBE"),
        settings="defaults; with more ranks than CPUs --map-by :OVERSUBSCRIBE, which it demands",
    ),
    Library(
        name="mpich",
        label="MPICH",
        adapter="adapters.mpi:MpiAdapter",
        environment="mpich",
        mpiexec=(),
    ),
    Library(
        name="intelmpi",
        label="Intel MPI",
        adapter="adapters.mpi:MpiAdapter",
        environment="intelmpi",
        mpiexec=(),
    ),
    Library(
        name="deepspeed",
        label="DeepSpeed, shared memory",
        adapter="adapters.deepspeed_shm:DeepSpeedShmAdapter",
        settings="defaults; its operation is called directly, without deepspeed.comm around it",
    ),
    # With more ranks than CPUs a user can ask two of the MPIs to give the CPU away while they wait.
    # It helps some sizes and harms others, so both settings are measured. MPICH does it by default.
    Library(
        name="openmpi-yield",
        label="Open MPI, yielding",
        adapter="adapters.mpi:MpiAdapter",
        environment="openmpi",
        mpiexec=("--allow-run-as-root",),
        mpiexec_oversubscribed=(
            "--map-by",
            ":OVERSUBSCRIBE",
            "--mca",
            "mpi_yield_when_idle",
            "1",
        ),
        settings="mpi_yield_when_idle=1, only with more ranks than CPUs",
        only_oversubscribed=True,
    ),
    Library(
        name="intelmpi-yield",
        label="Intel MPI, yielding",
        adapter="adapters.mpi:MpiAdapter",
        environment="intelmpi",
        mpiexec=(),
        variables_oversubscribed={"I_MPI_THREAD_YIELD": "3"},
        settings="I_MPI_THREAD_YIELD=3, only with more ranks than CPUs",
        only_oversubscribed=True,
    ),
    Library(
        name="torch-noop",
        label="torch (a group that does nothing)",
        adapter="adapters.torch_noop:TorchNoopAdapter",
        settings="torch's overhead alone: nothing is reduced, so nothing is verified",
        is_default=False,
    ),
)
FLOOR_VARIANTS = ("staged", "staged_rs", "ideal", "ideal_nt", "memcpy2")
