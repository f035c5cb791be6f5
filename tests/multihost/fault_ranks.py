# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of the fault table run: work until somebody strikes, and what they heard then.

No pytest here: every rank would import it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from held_resources import write_resources
from machine_speed import scaled

from tests.multihost.placement import Milestones

COUNT = 1 << 20  # float32; 4 MiB, so that a fault comes in the middle of an operation
CHECKPOINT_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "03_gpt" / "checkpoint.py"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the ranks of one job do.

    Attributes:
        folder: shared by ranks and test, for pids, milestones and signs.
        timeout_s: of every operation; the group may take longer to form.
        victim: the rank that is struck.
        is_idle: the victim calls nothing after the first sum, until the sign `go on` is given; the
            others wait for it.
        forks: the victim has a forked child that outlives it, as workers of a DataLoader do.
        leave: how the victim leaves when the sign `leave` is given; "" for not at all.
        tokens: by rank, SMDDP_TOKEN; None for none. Empty: all ranks have the environment's.
        limit: a key of `LIMITS` that applies to the victim from before it joins.
    """

    folder: str
    timeout_s: float = 60.0
    victim: int = 3
    is_idle: bool = False
    forks: bool = False
    leave: str = ""
    tokens: tuple[str | None, ...] = ()
    limit: str = ""

    def has_sign(self, name: str) -> bool:
        return Path(self.folder, name).exists()


@dataclasses.dataclass(frozen=True)
class Told:
    """What a rank heard, and when by the clock that all processes share.

    Attributes:
        error: class of the exception; "" if the rank came to the end of its work.
        text: of the exception.
        at_s: `time.monotonic()`.
    """

    error: str
    text: str
    at_s: float


def hear(work: Callable[[], object]) -> Told:
    """What a rank hears while it works: the package's errors, or that the disk is full."""
    from smdistributed._common.errors import SmdistributedError

    try:
        work()
    except SmdistributedError as error:
        return Told(type(error).__name__, str(error), time.monotonic())
    except (OSError, RuntimeError) as error:
        # torch.save puts an error of its own on top of the file's.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        return Told(type(cause).__name__, str(cause), time.monotonic())
    return Told("", "", time.monotonic())


# --- sums without end ----------------------------------------------------------------------------


def _leaves_in_order() -> None:
    sys.exit(0)


def _raises() -> None:
    raise ValueError("a bad sample")  # goes through `with`, which closes the group


def _crashes() -> None:
    os._exit(1)  # nothing is closed, as by abort() or a fault in C++ code


LEAVES = {"sys.exit(0)": _leaves_in_order, "exception": _raises, "os._exit(1)": _crashes}


def _few_descriptors() -> None:
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, hard))


def _no_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))


LIMITS = {"descriptors": _few_descriptors, "size of files": _no_files}


def adds(rank: int, world_size: int, plan: Plan) -> Told:
    """Add arrays until something happens, or until the sign `stop` is given."""
    from smdistributed import collectives

    if plan.limit and rank == plan.victim:
        LIMITS[plan.limit]()
    milestones = Milestones(plan.folder)

    def work() -> None:
        # Who has no descriptors left may not even come to the first operation.
        limit_s = plan.timeout_s if plan.limit else max(plan.timeout_s, scaled(30.0))
        with collectives.init(timeout_s=limit_s) as comm:
            array = np.ones(COUNT, np.float32)
            comm.all_reduce(array)
            _show_itself(rank, plan)
            milestones.reach("running", rank)
            while True:
                if rank == plan.victim:
                    _be_the_victim(plan)
                array[:] = 1
                array[-1] = rank == 0 and plan.has_sign("stop")
                comm.all_reduce(array, timeout_s=plan.timeout_s)
                if not (array[:-1] == world_size).all():
                    raise AssertionError(f"a wrong sum: {array[:-1].min()} to {array[:-1].max()}")
                if array[-1] != 0:
                    return

    told = hear(work)
    milestones.reach("told", rank)
    return told


def _show_itself(rank: int, plan: Plan) -> None:
    Path(plan.folder, f"pid-{rank}").write_text(str(os.getpid()))
    if plan.limit != "size of files":
        write_resources(rank, plan.folder)
    if plan.forks and rank == plan.victim and os.fork() == 0:
        time.sleep(600)  # ended with the process group of its rank
        os._exit(0)


def _be_the_victim(plan: Plan) -> None:
    while plan.is_idle and not plan.has_sign("go on"):
        time.sleep(0.05)
    if plan.leave and plan.has_sign("leave"):
        LEAVES[plan.leave]()


# --- the start of a job --------------------------------------------------------------------------


def joins(rank: int, world_size: int, plan: Plan) -> Told:
    """Make a group as torch scripts do, with a token of this rank's own."""
    Path(plan.folder, f"pid-{rank}").write_text(str(os.getpid()))
    token = plan.tokens[rank]
    if token is None:
        del os.environ["SMDDP_TOKEN"]
    else:
        os.environ["SMDDP_TOKEN"] = token  # read when the package is imported

    import torch.distributed as dist

    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    def work() -> None:
        dist.init_process_group("smddp", timeout=timedelta(seconds=plan.timeout_s))
        dist.destroy_process_group()

    Milestones(plan.folder).reach("running", rank)
    return hear(work)


# --- a disk that is full -------------------------------------------------------------------------


def saves(rank: int, world_size: int, plan: Plan) -> Told:
    """Train; the victim writes checkpoints as examples/03_gpt does, to a disk that gets full.

    The victim looks at what is on the disk after the failure: the last whole checkpoint, no other
    file. (The disk is a tmpfs in a mount namespace of its own, gone with the process.)
    """
    import torch

    from smdistributed import collectives

    disk = Path(plan.folder, "disk")
    if rank == plan.victim:
        disk.mkdir()
        _mount_small_disk(disk)
    checkpoint = _checkpoint_example()
    milestones = Milestones(plan.folder)

    def work() -> None:
        with collectives.init(timeout_s=plan.timeout_s) as comm:
            weights = np.ones(100_000, np.float32)
            _show_itself(rank, plan)
            milestones.reach("running", rank)
            while not plan.has_sign("leave"):
                time.sleep(0.01)
            for step in range(1, 50):
                comm.all_reduce(weights)
                if rank == plan.victim:
                    # More to save with every step, until it does not fit.
                    history = torch.zeros(step, 100_000)
                    state = {"step": step, "history": history, "options": {}}
                    checkpoint.save(state, disk / "checkpoint.pt")

    told = hear(work)
    if rank == plan.victim:
        names = sorted(path.name for path in disk.iterdir())
        if names != ["checkpoint.pt"]:
            raise AssertionError(f"on the full disk are {names}")
        state = checkpoint.load(disk / "checkpoint.pt", torch.device("cpu"), expected={})
        if state["history"].shape[0] != state["step"]:
            raise AssertionError("the checkpoint on the full disk is not whole")
    milestones.reach("told", rank)
    return told


def _mount_small_disk(folder: Path) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    new_mounts, recursive_private = 0x00020000, 0x4000 | 0x40000
    if libc.unshare(new_mounts) != 0 or libc.mount(b"none", b"/", None, recursive_private, None):
        raise OSError(ctypes.get_errno(), "no mount namespace")
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=4m") != 0:
        raise OSError(ctypes.get_errno(), "no tmpfs")


def _checkpoint_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("checkpoint", CHECKPOINT_EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
