# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`group.WORLD` of the legacy modules, and what their `group` arguments mean.

The sentinel is our own: torch's `group.WORLD` is None until the default group exists, and default
arguments are evaluated when a module is imported.

Source: dataparallel specification, section 5.1.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPNotInitialized

__all__ = ["WORLD", "World", "group", "require_initialized", "resolve_group"]


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
