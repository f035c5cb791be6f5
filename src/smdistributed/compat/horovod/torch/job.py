# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who takes part: `init`, `shutdown`, ranks and sizes, the timeline.

The ranks talk over one group of backend `smddp`. If torch's default group is of that backend it is
used; if the script has made a default group of another backend, one of ours is made beside it; and
if there is none, `init` makes it. `shutdown` ends only what `init` has made.

Source: Horovod's public API; see docs/horovod.md.
"""

# torch's distributed functions have no types of their own.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from smdistributed._common.discovery import discover
from smdistributed.compat.horovod import common
from smdistributed.dataparallel.engine_errors import documented_errors
from smdistributed.dataparallel.profiler import stop_profiler
from smdistributed.dataparallel.torch.default_group import local_rank as rank_on_host
from smdistributed.dataparallel.torch.process_group import BACKEND_NAME, ProcessGroupSmddp
from smdistributed.dataparallel.torch.registration import register

__all__ = [
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "require_group",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class _Origin(enum.Enum):
    """Whose the group is."""

    SCRIPT = enum.auto()  # torch's default group, which the script made
    DEFAULT = enum.auto()  # torch's default group, which `init` made
    BESIDE = enum.auto()  # made by `init` beside a default group of another backend


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where this process is among all."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool


@dataclasses.dataclass(frozen=True)
class _Job:
    """What `init` has set up; `default` is torch's default group of that time."""

    group: ProcessGroupSmddp
    default: Any
    origin: _Origin
    place: _Place


_job: _Job | None = None
# Of the first default group that `init` made: the ranks meet there again after a `shutdown`, as
# rank 0 serves it until the process ends.
_store: Store | None = None
_generation = 0


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Meet the other ranks, under whatever launcher; a second call does nothing. Blocks.

    A process that no launcher started is a job of one rank.

    Args:
        comm: None or an empty list: all ranks.
        process_sets: None or an empty list.

    Raises:
        SMDDPUnsupported: another `comm` or `process_sets`.
        SMDDPConfigInvalid: an environment variable has a value that cannot work.
        SMDDPTimeoutError, SMDDPPeerLost: the ranks did not all meet.
    """
    global _job
    instead = "Use torch.distributed.new_group() for collectives among some of the ranks."
    common.require_all_ranks_in_init(comm, process_sets, instead)
    if _current() is not None:
        return
    register()
    group, origin = _find_or_make_group()
    default = dist.distributed_c10d._get_default_group()
    _job = _Job(group, default, origin, _find_place(group))


def _find_or_make_group() -> tuple[ProcessGroupSmddp, _Origin]:
    if not dist.is_initialized():
        _make_default_group()
        return _as_ours(dist.distributed_c10d._get_default_group()), _Origin.DEFAULT
    default: Any = dist.distributed_c10d._get_default_group()
    cpu = torch.device("cpu")
    if isinstance(default, ProcessGroupSmddp) and default._get_backend(cpu) is default:
        return default, _Origin.SCRIPT
    return _as_ours(dist.new_group(backend=BACKEND_NAME)), _Origin.BESIDE


def _as_ours(group: Any) -> ProcessGroupSmddp:
    assert isinstance(group, ProcessGroupSmddp)
    return group


def _make_default_group() -> None:
    global _store, _generation
    with documented_errors():
        found = discover()
    if found.source == "none":
        dist.init_process_group(BACKEND_NAME, store=HashStore(), rank=0, world_size=1)
        return
    if _store is None:
        dist.init_process_group(BACKEND_NAME)
        _store = dist.distributed_c10d._get_default_store()
        return
    _generation += 1  # the same on all ranks: each has called `shutdown` and `init` as often
    store = PrefixStore(f"init {_generation}", _store)
    ranks: Any = {"rank": found.rank, "world_size": found.world_size}
    dist.init_process_group(BACKEND_NAME, store=store, **ranks)


def _find_place(group: ProcessGroupSmddp) -> _Place:
    """A collective: which ranks share a host, and who has this rank's number on other hosts."""
    mine = [rank_on_host(group), len(group.ranks_of_this_host)]
    row = torch.tensor(mine, dtype=torch.int64, device="cpu")
    rows = torch.empty(group.size(), 2, dtype=torch.int64, device="cpu")
    group.all_gather_single(rows, row).wait()
    return _place_of(group.rank(), rows.tolist())


def _place_of(rank: int, table: Sequence[Sequence[int]]) -> _Place:
    """Of the ranks' (local rank, local size)."""
    local_rank, local_size = table[rank]
    peers = [peer for peer, (local, _) in enumerate(table) if local == local_rank]
    return _Place(
        local_rank=local_rank,
        local_size=local_size,
        cross_rank=peers.index(rank),
        cross_size=len(peers),
        is_homogeneous=len({size for _, size in table}) == 1,
    )


def _current() -> _Job | None:
    """The job, unless there is none or the script has ended torch's default group."""
    if _job is None or not dist.is_initialized():
        return None
    return _job if dist.distributed_c10d._get_default_group() is _job.default else None


def _require_job(caller: str) -> _Job:
    job = _current()
    if job is None:
        raise common.not_initialized(caller)
    return job


def require_group(caller: str) -> ProcessGroupSmddp:
    """The group of all ranks; raises `SMDDPNotInitialized` before `init()`."""
    return _require_job(caller).group


def shutdown() -> None:
    """End what `init` has set up, and forget it; does nothing before `init`.

    A process group that the script made stays. `init` may be called again.
    """
    global _job
    job, _job = _current(), None
    if job is None or job.origin is _Origin.SCRIPT:
        return
    dist.destroy_process_group(job.group if job.origin is _Origin.BESIDE else None)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since."""
    return _current() is not None


def size() -> int:
    """Number of ranks. Raises `SMDDPNotInitialized` (a ValueError too) before `init()`."""
    return _require_job("size").group.size()


def rank() -> int:
    """Number of this process, from 0. Raises `SMDDPNotInitialized` before `init()`."""
    return _require_job("rank").group.rank()


def local_size() -> int:
    """Number of ranks on this host. Raises `SMDDPNotInitialized` before `init()`."""
    return _require_job("local_size").place.local_size


def local_rank() -> int:
    """Number of this process on its host. Raises `SMDDPNotInitialized` before `init()`."""
    return _require_job("local_rank").place.local_rank


def cross_size() -> int:
    """Number of hosts with this local rank. Raises `SMDDPNotInitialized` before `init()`."""
    return _require_job("cross_size").place.cross_size


def cross_rank() -> int:
    """Number of this host among those. Raises `SMDDPNotInitialized` before `init()`."""
    return _require_job("cross_rank").place.cross_rank


def is_homogeneous() -> bool:
    """Whether all hosts have equally many ranks. Raises `SMDDPNotInitialized` before `init()`."""
    return _require_job("is_homogeneous").place.is_homogeneous


global_process_set = common.ProcessSet.of_all(rank, size)


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Start to record this rank's operations; `stop_timeline` writes them.

    Args:
        file_path: every rank writes a file of its own: `timeline.json` becomes `timeline.3.json`.
        mark_cycles: False; there are no cycles here.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPError: a timeline is being recorded already.
    """
    _require_job("start_timeline")
    common.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """Write what `start_timeline` began. Raises `SMDDPNotInitialized` before `init()`."""
    _require_job("stop_timeline")
    stop_profiler()
