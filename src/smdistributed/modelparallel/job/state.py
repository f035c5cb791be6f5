# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a process knows of its job, whatever its framework: the bases of `Job` and of `smp.state`.

Source: modelparallel specification, sections 0, 2 and 5.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import Coordinates, GroupKind, Topology
from smdistributed.modelparallel.exceptions import SMPNotInitialized

__all__ = ["BaseJob", "BaseState"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseJob:
    """What `smp.init()` has found out.

    Attributes:
        config: the parameters with their effective values.
        topology: the mesh of all ranks.
        rank: of this process in the world.
        local_rank: of this process among those of its host.
        local_size: processes of this host.
    """

    config: Config
    topology: Topology
    rank: int
    local_rank: int
    local_size: int

    @property
    def size(self) -> int:
        """The world size."""
        return self.topology.size

    @property
    def coordinates(self) -> Coordinates:
        """Where this rank is in the mesh."""
        return self.topology.coordinates(self.rank)

    def members(self, kind: GroupKind) -> tuple[int, ...]:
        """World ranks of this rank's group of a kind, ascending."""
        return self.topology.members(kind, self.rank)

    def rank_in(self, kind: GroupKind) -> int:
        """The position of this rank in its group of a kind."""
        return self.topology.rank_in(kind, self.rank)

    def size_of(self, kind: GroupKind) -> int:
        """Members of a group of a kind."""
        return self.topology.size_of(kind)

    @property
    def has_pipeline(self) -> bool:
        """Whether the model is cut into partitions, which are on several ranks."""
        return self.size_of(GroupKind.PP) > 1

    @property
    def holds_whole_model(self) -> bool:
        """Whether every parameter of the model is on this rank."""
        # Tensor parallelism, which would divide parameters, must ask for the MP group here.
        return self.size_of(GroupKind.PP) == 1


JobT = TypeVar("JobT", bound=BaseJob)


class BaseState(Generic[JobT]):
    """What `smp.init()` has found is read-only, and raises `SMPNotInitialized` before it.

    The other attributes are set by whoever makes what they name.

    Attributes:
        model: the `DistributedModel`, or None.
    """

    def __init__(self) -> None:
        self._job: JobT | None = None
        self._process_id = 0
        self._leaving = contextlib.ExitStack()
        self.model: Any = None

    @property
    def initialized(self) -> bool:
        """Whether `smp.init()` has run, and no `smp.reset()` since."""
        return self._job is not None

    @property
    def job(self) -> JobT:
        """All that `smp.init()` has made."""
        return self.require("smp.state.job")

    @property
    def cfg(self) -> Config:
        """The parameters, as attributes; names that nobody knows raise AttributeError."""
        return self.require("smp.state.cfg").config

    @property
    def topology(self) -> Topology:
        """The mesh of all ranks."""
        return self.require("smp.state.topology").topology

    @property
    def rank(self) -> int:
        """Of this process in the world."""
        return self.require("smp.state.rank").rank

    @property
    def size(self) -> int:
        """The world size."""
        return self.require("smp.state.size").size

    @property
    def local_rank(self) -> int:
        """Of this process among those of its host."""
        return self.require("smp.state.local_rank").local_rank

    @property
    def local_size(self) -> int:
        """Processes of this host."""
        return self.require("smp.state.local_size").local_size

    @property
    def coordinates(self) -> Coordinates:
        """Where this rank is in the mesh."""
        return self.require("smp.state.coordinates").coordinates

    def members(self, kind: GroupKind) -> tuple[int, ...]:
        """World ranks of this rank's group of a kind, ascending."""
        return self.require("smp.state.members()").members(kind)

    def rank_in(self, kind: GroupKind) -> int:
        """The position of this rank in its group of a kind."""
        return self.require("smp.state.rank_in()").rank_in(kind)

    def size_of(self, kind: GroupKind) -> int:
        """Members of a group of a kind."""
        return self.require("smp.state.size_of()").size_of(kind)

    def require(self, what: str) -> JobT:
        """The job; `what` is who needs it, for the message.

        Raises:
            SMPNotInitialized: there is none yet.
        """
        if self._job is None:
            raise SMPNotInitialized(
                f"{what} was used before smp.init(); expected the ranks and groups that it makes."
                " Call smp.init(config) first, at the start of the script, on every rank."
            )
        return self._job

    def enter(self, job: JobT, leaving: contextlib.ExitStack) -> None:
        """Take up what `smp.init()` has made; `leaving` ends it, when `reset` is called."""
        self._job = job
        self._process_id = os.getpid()
        self._leaving = leaving

    def call_at_reset(self, callback: Callable[[], None]) -> None:
        """Let `reset` call this while the groups still exist; the last one registered comes first.

        It must not wait long for other ranks: they may be gone. What it raises, `reset` raises
        after it has done all else.
        """
        self._leaving.callback(callback)

    def reset(self) -> None:
        """End what `smp.init()` and others have begun, and forget all, as at the process's start.

        Without `smp.init()` it only forgets. Not a collective.
        """
        try:
            self._leaving.close()
        finally:
            self.__dict__.clear()
            self.__init__()  # type: ignore[misc] # the same class, a new beginning

    def reset_at_exit(self) -> None:
        """`reset` at the end of the process; not in a forked child, which has made nothing."""
        # After an error other ranks may be gone or hang, and some backends would wait for them.
        has_failed = getattr(sys, "last_value", None) is not None
        if not self.initialized or has_failed or os.getpid() != self._process_id:
            return
        try:
            self.reset()
        except Exception:
            get_logger().debug("could not leave the job in order", exc_info=True)
