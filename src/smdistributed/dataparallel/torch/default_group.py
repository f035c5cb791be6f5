# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`group.WORLD` of the legacy modules, what their `group` arguments mean, and who shares a host.

The sentinel is our own: torch's `group.WORLD` is None until the default group exists, and default
arguments are evaluated when a module is imported.

Source: dataparallel specification, section 5.1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from smdistributed._common.discovery import Membership, discover
from smdistributed._common.discovery.variables import read_int
from smdistributed.dataparallel.engine_errors import documented_errors
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPNotInitialized
from smdistributed.dataparallel.torch.compilation import keep_from_compiler

__all__ = [
    "WORLD",
    "World",
    "group",
    "local_rank",
    "local_size",
    "require_initialized",
    "resolve_group",
]


class World:
    """The default group, whichever it will be at the time of a call."""

    def __repr__(self) -> str:
        return "group.WORLD"

    def __reduce__(self) -> str:
        return "WORLD"  # copies and unpickled ones are the sentinel itself


WORLD = World()


class group:  # noqa: N801 -- published name
    """Namespace of the one documented group: `group.WORLD`, all processes of the job."""

    WORLD = WORLD


def require_initialized(name: str) -> None:
    """Raise `SMDDPNotInitialized` unless torch's default group exists; `name` is who needs it."""
    if not dist.is_initialized():
        raise SMDDPNotInitialized(
            f"{name} was used before the process group exists; it needs one. Call"
            " smdistributed.dataparallel.torch.distributed.init_process_group() first, or"
            " torch.distributed.init_process_group(backend='smddp')."
        )


@keep_from_compiler
def local_rank(group: Any = None) -> int:
    """Rank of this process among those on its host; torch's default group exists.

    What the launcher says about this very process counts. Where rank and world size are arguments
    of `init_process_group`, no launcher speaks of it, and a group of ours knows its hosts.

    Args:
        group: one of all ranks to ask; None is the default group.

    Raises:
        SMDDPConfigInvalid: neither a launcher nor the group can tell.
    """
    membership, ranks = _told_of_this_process(), _ranks_of_this_host(group)
    if membership is not None and membership.local_rank is not None:
        return membership.local_rank
    return ranks.index(dist.get_rank()) if ranks else _set_by_hand("LOCAL_RANK")


@keep_from_compiler
def local_size() -> int:
    """Number of processes on this host, as `local_rank`."""
    membership, ranks = _told_of_this_process(), _ranks_of_this_host()
    if membership is not None and membership.local_world_size is not None:
        return membership.local_world_size
    return len(ranks) if ranks else _set_by_hand("LOCAL_WORLD_SIZE")


def _told_of_this_process() -> Membership | None:
    """What the launcher says, if it means this process of this group."""
    with documented_errors():
        found = discover()
    is_meant = (found.rank, found.world_size) == (dist.get_rank(), dist.get_world_size())
    return found if is_meant and found.source != "none" else None


def _ranks_of_this_host(group: Any = None) -> Sequence[int]:
    """As the group, or the default group, knows them; empty if it is of another backend."""
    if dist.get_world_size() == 1:
        return [0]
    asked: Any = dist.distributed_c10d._get_default_group() if group is None else group
    return getattr(asked, "ranks_of_this_host", ())


def _set_by_hand(name: str) -> int:
    with documented_errors():
        number = read_int(os.environ, name)
    if number is None:
        raise SMDDPConfigInvalid(
            f"{name} is not set, and the default group, whose backend is {dist.get_backend()!r},"
            " does not know which ranks share a host; expected one of both to tell. Set"
            f" {name}, or make the group with backend 'smddp'."
        )
    return number


def resolve_group(given: Any) -> Any:
    """Returns what torch's functions take for a `group` argument: a group, or None for the default.

    Args:
        given: `group.WORLD`, None, a torch process group, or what `torch.distributed.new_group`
            returns on ranks outside of the group (which torch's functions then ignore).

    Raises:
        SMDDPConfigInvalid: (a ValueError) it is anything else.
    """
    if given is None or given is WORLD:
        return None
    if isinstance(given, ProcessGroup) or given is dist.GroupMember.NON_GROUP_MEMBER:
        return given
    raise SMDDPConfigInvalid(
        "process groups other than group.WORLD must be torch process groups, but this is"
        f" {given!r}. Pass group.WORLD, or what torch.distributed.new_group() returns."
    )
