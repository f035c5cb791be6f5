# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_reinit.py run: groups that end in one way or another, one after the other.

A life is that of one group. No pytest here: every rank would import it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from held_resources import resources_of_this_process
from machine_speed import scaled

from tests.multihost.placement import Milestones

# Far away where a timeout is not what is tested.
TIMEOUT_S = scaled(60.0)
SHORT_S = 2.0
COUNT = 300_007


# --- what is left --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Held:
    """What this process holds between two lives.

    Attributes:
        descriptors: how many of each kind.
        threads: of the kernel, Python's and ours.
        ports: that it listens on; each life has others, so only their number is compared.
        regions: mappings of memory without a name (`memfd`).
    """

    descriptors: dict[str, int]
    threads: int
    ports: int
    regions: int

    def is_within(self, other: Held) -> bool:
        """Whether there is nothing of which this one holds more."""
        return (
            Counter(self.descriptors) <= Counter(other.descriptors)
            and self.threads <= other.threads
            and self.ports <= other.ports
            and self.regions <= other.regions
        )


def held_now() -> Held:
    gc.collect()
    kinds: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            kind = re.sub(r"[0-9]+", "N", os.readlink(f"/proc/self/fd/{name}"))
            kinds[kind] = kinds.get(kind, 0) + 1
    return Held(
        kinds,
        len(os.listdir("/proc/self/task")),
        len(resources_of_this_process().ports),
        Path("/proc/self/maps").read_text().count("/memfd:"),
    )


# --- one life ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Life:
    """One life of a group as seen by one rank.

    Attributes:
        rank, world_size: of this process.
        sum: adds an array of `COUNT` ones, or of another number, over all ranks; its first element.
            It may have a timeout of its own.
        abort: ends the group for all, from this rank.
        milestones: of this life alone.
    """

    rank: int
    world_size: int
    sum: Callable[..., float]
    abort: Callable[[], None]
    milestones: Milestones

    def wait_for_others(self, name: str) -> None:
        """Until all other ranks have come to `name`."""
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        folder = Path(self.milestones.folder)
        while not all((folder / f"{name}-{rank}").exists() for rank in others):
            time.sleep(0.01)


def ends_well(life: Life) -> None:
    assert life.sum() == life.world_size


def is_aborted(life: Life) -> None:
    """The last rank aborts while the others wait for it."""
    if life.rank == life.world_size - 1:
        life.abort()
    life.sum()


def disagrees(life: Life) -> None:
    life.sum(COUNT - (life.rank == life.world_size - 1))


def misses_a_rank(life: Life) -> None:
    """The last rank computes until the others have given up."""
    if life.rank == life.world_size - 1:
        life.wait_for_others("told")
    life.sum(timeout_s=SHORT_S)


def is_cut(life: Life) -> None:
    """The test parts the hosts, and joins them again when all ranks know."""
    life.milestones.reach("running", life.rank)
    while True:
        life.sum()


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a life ends, and what is told to the ranks: a part of the text, None for nothing."""

    run: Callable[[Life], None]
    text: str | None


ENDINGS = {
    "well": Ending(ends_well, None),
    "aborted": Ending(is_aborted, "abort"),
    "disagreed": Ending(disagrees, "same sizes"),
    "timed out": Ending(misses_a_rank, ""),
    "cut": Ending(is_cut, "has not answered for some 10 s"),
}


def live(life: Life, name: str) -> None:
    """Live to the end called `name`; whatever other end it comes to is an error."""
    ending = ENDINGS[name]
    assert life.sum() == life.world_size
    # An end overtakes the sum of whoever is slow.
    life.milestones.reach("summed", life.rank)
    life.wait_for_others("summed")
    text = None
    try:
        ending.run(life)
    except Exception as error:
        text = str(error)
    assert (text is None) == (ending.text is None), f"life that ends {name}: {text}"
    assert (ending.text or "") in (text or ""), f"life that ends {name}: {text}"
    life.milestones.reach("told", life.rank)
    life.wait_for_others("told")
    if name == "cut":
        while not Path(life.milestones.folder, "healed").exists():
            time.sleep(0.01)


def milestones_of(folder: str, number: int) -> Milestones:
    """Those of the life with that number; ranks and test make them, whoever comes first."""
    path = Path(folder, f"life-{number}")
    path.mkdir(exist_ok=True)
    return Milestones(str(path))


# --- lives of the engine, and of torch -----------------------------------------------------------


def engine_lives(rank: int, world_size: int, folder: str, endings: Sequence[str]) -> list[Held]:
    from smdistributed import collectives

    held = []
    for number, ending in enumerate(endings):
        comm = collectives.init(timeout_s=TIMEOUT_S)

        def add(count: int = COUNT, timeout_s: float = TIMEOUT_S, comm: Any = comm) -> float:
            array = np.ones(count, np.float32)
            comm.all_reduce(array, timeout_s=timeout_s)
            return float(array[0])

        def abort(comm: Any = comm) -> None:
            comm.abort(f"abort() by rank {rank}")

        live(Life(rank, world_size, add, abort, milestones_of(folder, number)), ending)
        comm.close()
        del comm, add, abort
        held.append(held_now())
    return held


def torch_lives(
    rank: int, world_size: int, folder: str, endings: Sequence[str], one_store: bool
) -> list[Held]:
    """Under torchrun the store belongs to the agent and outlives the groups: `one_store`."""
    import torch
    import torch.distributed as dist

    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

    def add(count: int = COUNT, timeout_s: float = TIMEOUT_S) -> float:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))
        tensor = torch.ones(count)
        dist.all_reduce(tensor)
        return float(tensor[0])

    def abort() -> None:
        dist.group.WORLD.abort()  # type: ignore[union-attr]

    where: dict[str, Any] = {}
    if one_store:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, world_size, rank == 0)
        where = {"store": store, "rank": rank, "world_size": world_size}
    held = []
    for number, ending in enumerate(endings):
        dist.init_process_group("smddp", timeout=timedelta(seconds=TIMEOUT_S), **where)
        life = Life(rank, world_size, add, abort, milestones_of(folder, number))
        live(life, ending)
        dist.destroy_process_group()
        life.milestones.reach("destroyed", rank)
        life.wait_for_others("destroyed")  # or a rank could meet rank 0's old store, as ever
        held.append(held_now())
    return held
