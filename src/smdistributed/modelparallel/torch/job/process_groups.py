# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch's default group and the groups of the mesh: how they are made, by which backend, and ended.

torch wants every rank to make all groups in one order, those of other ranks too. Kinds with the
same members share one group: with tensor parallelism of degree 1, for example, MP is PP, DP is RDP,
and TP is each rank alone.

Source: modelparallel specification, sections 1.2 (`ddp_dist_backend`, `ddp_port`) and 2.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed import ProcessGroup

from smdistributed._common.discovery import Membership
from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind, Topology
from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["MeshGroups", "check_adoptable", "make_default_group", "make_mesh_groups"]

_OURS = "smddp"
# Sources that count processes and not hosts.
_WITHOUT_A_COUNT = ("none", "sagemaker")


@dataclasses.dataclass(frozen=True)
class MeshGroups:
    """This rank's group of each kind, and the group that carries messages between all ranks."""

    by_kind: Mapping[GroupKind, ProcessGroup]
    message_group: ProcessGroup


def check_adoptable(membership: Membership) -> None:
    """Whether torch's default group, which somebody else has made, is this job's.

    Raises:
        ConfigError: it holds another number of ranks than the launcher has started.
    """
    size = dist.get_world_size()
    if membership.source not in _WITHOUT_A_COUNT and membership.world_size != size:
        raise ConfigError(
            f"torch's default process group has {size} ranks, and this job has"
            f" {membership.world_size} processes; expected the same number. Make the group with all"
            " processes of the job, or leave it to smp.init()."
        )


def make_default_group(
    config: Config, membership: Membership, leaving: contextlib.ExitStack
) -> None:
    """Make torch's default group; blocks until all ranks have met.

    Args:
        config: chooses backend and port.
        membership: which rank of which job this process is; its variables are in the environment.
        leaving: is told how to end the group.

    Raises:
        ConfigurationError: nothing tells where the ranks meet.
        SMDDPTimeoutError, SMDDPPeerLost: they did not all meet; torch's `DistStoreError` or
            `DistNetworkError` where they did not even reach rank 0's address.
    """
    dist.init_process_group(_backend(config, membership), **_meeting(config, membership))
    leaving.callback(_end_default_group, dist.distributed_c10d._get_default_group())


def make_mesh_groups(topology: Topology, leaving: contextlib.ExitStack) -> MeshGroups:
    """Make the groups of the mesh out of torch's default group; a collective of all ranks.

    Args:
        topology: the mesh.
        leaving: is told how to end each group.
    """
    default = dist.distributed_c10d._get_default_group()
    rank = dist.get_rank()
    timeout = _timeout_of(default)
    on_cpu = _cpu_backend(default)
    message_group = default
    if on_cpu != _OURS:  # whose connections, unlike others, know that the peer is of this job
        everyone = list(range(topology.size))
        message_group = _make(everyone, "messages", timeout, f"cpu:{_OURS}", leaving)
    # Somebody may have made the default group for CUDA tensors only; otherwise, its own backend.
    backend = None if on_cpu else f"cpu:{_OURS},{dist.get_backend_config()}"
    made: dict[tuple[int, ...], Any] = {tuple(range(topology.size)): default}
    for kind in GroupKind:
        for members in topology.groups(kind):
            if members not in made:
                made[members] = _make(members, kind.name.lower(), timeout, backend, leaving)
    by_kind = {kind: made[topology.members(kind, rank)] for kind in GroupKind}
    # After this no rank reads from the store any more, so the one that serves it may end.
    dist.barrier(group=message_group)
    return MeshGroups(by_kind, message_group)


def _backend(config: Config, membership: Membership) -> str:
    chosen = config.ddp_dist_backend
    if chosen == "nccl":
        if torch.cuda.is_available() and dist.is_nccl_available():
            return f"cpu:{_OURS},cuda:nccl"
        if membership.rank == 0:
            get_logger().warning(
                "ddp_dist_backend is 'nccl', but there is no CUDA device here; expected one for"
                " each rank. Goes on as with 'auto', which is what to set for both."
            )
        return _OURS
    return _OURS if chosen == "auto" else chosen


def _meeting(config: Config, membership: Membership) -> dict[str, Any]:
    """Where the ranks meet, as arguments of `init_process_group`."""
    rank, size = membership.rank, membership.world_size
    if membership.source == "none":
        return {"store": HashStore(), "rank": 0, "world_size": 1}
    host, _ = membership.require_master()
    if not config.ddp_port:
        return {}  # as the environment says
    # Not `tcp://`: torchrun makes torch look for a server of the launcher's at that address.
    store = TCPStore(
        host,
        config.ddp_port,
        size,
        is_master=rank == 0,
        timeout=timedelta(seconds=process_settings().timeout_s),
        wait_for_workers=False,
    )
    return {"store": store, "rank": rank, "world_size": size}


def _make(
    members: Sequence[int],
    name: str,
    timeout: timedelta | None,
    backend: str | None,
    leaving: contextlib.ExitStack,
) -> Any:
    group = dist.new_group(list(members), timeout, backend, group_desc=f"smp:{name}")
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        leaving.callback(_end_group, group)
    return group


def _end_group(group: ProcessGroup) -> None:
    # The user may have ended it, or all of them, before.
    if group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


def _end_default_group(group: ProcessGroup) -> None:
    if dist.is_initialized() and dist.distributed_c10d._get_default_group() is group:
        dist.destroy_process_group()


def _cpu_backend(group: ProcessGroup) -> str | None:
    """What moves the group's CPU tensors, if anything does."""
    try:
        return str(group._get_backend(torch.device("cpu")).name())
    except RuntimeError:
        return None


def _timeout_of(group: ProcessGroup) -> timedelta | None:
    """That of the group's operations, for the groups made of it; None is the backend's default."""
    for device in group._device_types:
        backend: Any = group._get_backend(device)
        timeout = getattr(getattr(backend, "options", None), "_timeout", None)
        if isinstance(timeout, timedelta):
            return timeout
    return None
