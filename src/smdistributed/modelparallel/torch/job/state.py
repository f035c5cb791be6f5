# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this process knows of its job: the one object `smp.state`.

`smp.init()` puts a `Job` into it, which then stays as it is until `smp.reset()`: configuration,
place among the ranks, process groups. The rest of the library adds what it makes later: the model,
the optimizer.

Source: modelparallel specification, sections 0, 2 and 5.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed import ProcessGroup

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import Coordinates, GroupKind, Topology
from smdistributed.modelparallel.exceptions import SMPNotInitialized

__all__ = ["Job", "ModuleManager", "State", "state"]

StateDict = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What `smp.init()` has found out and made.

    Attributes:
        config: the parameters with their effective values.
        topology: the mesh of all ranks.
        rank: of this process in the world.
        local_rank: of this process among those of its host.
        local_size: processes of this host.
        device: where this rank's part of the model lives: the GPU of its local rank, or the CPU.
        groups: of each kind, the process group that this rank is in. Kinds with the same members
            share one; `WORLD` is torch's default group. Each can be used by `torch.distributed`.
        message_group: all ranks; its CPU tensors are the engine's (`smddp`), whatever the default
            group is made of. The default group, if that is such a one.
    """

    config: Config
    topology: Topology
    rank: int
    local_rank: int
    local_size: int
    device: torch.device
    groups: Mapping[GroupKind, ProcessGroup]
    message_group: ProcessGroup

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

    def process_group(self, kind: GroupKind) -> ProcessGroup:
        """This rank's group of a kind, for `torch.distributed`."""
        return self.groups[kind]

    def cpu_group(self, kind: GroupKind) -> ProcessGroup:
        """A group of the same members whose collectives take CPU tensors.

        The same as `process_group`, but for all ranks, whose default group may take none.
        """
        group = self.groups[kind]
        return self.message_group if group is self.groups[GroupKind.WORLD] else group


@dataclasses.dataclass
class ModuleManager:
    """What Hugging Face's `save_pretrained` asks about the model.

    Attributes:
        translate_functions: pairs of functions of a full state dictionary, from this library's
            names to Hugging Face's and back. Whoever puts modules with other names into a model
            adds a pair.
    """

    translate_functions: list[
        tuple[Callable[[StateDict], StateDict], Callable[[StateDict], StateDict]]
    ] = dataclasses.field(default_factory=list)


class State:
    """The one object of this class is `state`.

    What `smp.init()` has found is read-only, and raises `SMPNotInitialized` before it. The other
    attributes are set by whoever makes what they name.

    Attributes:
        model: the `DistributedModel`, or None.
        is_in_body: user code of a step runs on this rank, and not on all those of the pipeline.
        is_adding_up: user code of a step runs, for one of several microbatches or on one of several
            ranks: gradients are those of a part of the batch.
        module_manager: how names of the model's parameters are translated.
        param_index_to_name_tp_group, param_name_to_index_tp_group: lists by tp_rank, or None.
    """

    def __init__(self) -> None:
        self._job: Job | None = None
        self._leaving = contextlib.ExitStack()
        self.model: Any = None
        self._optimizer: weakref.ref[Any] | None = None
        self.is_in_body = False
        self.is_adding_up = False
        self.module_manager = ModuleManager()
        self.param_index_to_name_tp_group: Any = None
        self.param_name_to_index_tp_group: Any = None

    @property
    def initialized(self) -> bool:
        """Whether `smp.init()` has run, and no `smp.reset()` since."""
        return self._job is not None

    @property
    def optimizer(self) -> Any:
        """What was last passed to `smp.DistributedOptimizer`, if it is still held; or None."""
        return None if self._optimizer is None else self._optimizer()

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        # Weak: it holds the parameters of a model, which may be gone.
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)

    @property
    def job(self) -> Job:
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

    @property
    def device(self) -> torch.device:
        """Where this rank's part of the model lives: the GPU of its local rank, or the CPU."""
        return self.require("smp.state.device").device

    @property
    def message_group(self) -> ProcessGroup:
        """All ranks; its CPU tensors are the engine's, whatever torch's default group is."""
        return self.require("smp.state.message_group").message_group

    def members(self, kind: GroupKind) -> tuple[int, ...]:
        """World ranks of this rank's group of a kind, ascending."""
        return self.require("smp.state.members()").members(kind)

    def rank_in(self, kind: GroupKind) -> int:
        """The position of this rank in its group of a kind."""
        return self.require("smp.state.rank_in()").rank_in(kind)

    def size_of(self, kind: GroupKind) -> int:
        """Members of a group of a kind."""
        return self.require("smp.state.size_of()").size_of(kind)

    def process_group(self, kind: GroupKind) -> ProcessGroup:
        """This rank's group of a kind, for `torch.distributed`."""
        return self.require("smp.state.process_group()").process_group(kind)

    def cpu_group(self, kind: GroupKind) -> ProcessGroup:
        """As `process_group`, but surely one whose collectives take CPU tensors."""
        return self.require("smp.state.cpu_group()").cpu_group(kind)

    def require(self, what: str) -> Job:
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

    def require_outside_of_body(self, what: str) -> Job:
        """The job, for what all ranks of a pipeline must call; `what` is that, for the message.

        Raises:
            SMPNotInitialized: there is none yet.
            RuntimeError: user code of a step runs, which the others do not run.
        """
        job = self.require(what)
        if self.is_in_body:
            raise RuntimeError(
                f"{what} was called inside of a step; expected a call outside of it, on all ranks:"
                " several partitions share a step, and its function runs on one rank of them, which"
                " would wait for the others forever. Move the call out of the function that is"
                " decorated with @smp.step, or into model.register_post_step_hook()."
            )
        return job

    def enter(self, job: Job, leaving: contextlib.ExitStack) -> None:
        """Take up what `smp.init()` has made; `leaving` ends it, when `reset` is called."""
        self._job = job
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


state = State()
