# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a Ray Train worker says, if this process is one.

Ray is never imported here: a process in which nobody has imported it is not a Ray worker, and the
import takes seconds and starts threads.

Source: dataparallel specification, section 3.2, row 5.
"""

import sys
from collections.abc import Callable
from typing import Protocol

from smdistributed._common.discovery.membership import Claim

__all__ = ["RayContext", "RayContextFinder", "live_ray_context", "ray_claim"]


class RayContext(Protocol):
    """The part of `ray.train.get_context()` that is read here."""

    def get_world_rank(self) -> int:
        """The global rank."""

    def get_world_size(self) -> int:
        """The number of workers."""

    def get_local_rank(self) -> int:
        """The rank within the host."""

    def get_local_world_size(self) -> int:
        """The number of workers on this host."""

    def get_node_rank(self) -> int:
        """The index of this host."""


RayContextFinder = Callable[[], RayContext | None]


def live_ray_context() -> RayContext | None:
    """Returns the context of the Ray Train worker that this process is, or `None`."""
    if "ray" not in sys.modules:
        return None
    train = sys.modules.get("ray.train")
    get_context = getattr(train, "get_context", None)
    if get_context is None:
        return None
    try:
        context: RayContext = get_context()
        # Outside a worker, some releases return a context whose getters raise or return None.
        inside = isinstance(context.get_world_rank(), int)
    except Exception:
        # What Ray raises here differs between its releases.
        return None
    return context if inside else None


def ray_claim(find_context: RayContextFinder) -> Claim | None:
    """The claim of a live Ray Train context."""
    context = find_context()
    if context is None:
        return None
    return Claim(
        source="ray",
        title="Ray Train",
        rank_name="Ray's world rank",
        size_name="Ray's world size",
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_rank=context.get_local_rank(),
        local_world_size=context.get_local_world_size(),
        node_rank=context.get_node_rank(),
        local_rank_name="Ray's local rank",
        local_size_name="Ray's local world size",
    )
