# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What this process knows of its job: the one object `smp.state`.

`smp.init()` puts a `Job` into it, which then stays as it is until `smp.reset()`: configuration,
place among the ranks, process groups. The rest of the library adds what it makes later: the model,
the optimizer.

Source: modelparallel specification, sections 0, 2 and 5.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed import ProcessGroup

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.job.state import BaseJob, BaseState

__all__ = ["Job", "ModuleManager", "State", "state"]

StateDict = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(BaseJob):
    """What `smp.init()` has found out and made.

    Attributes:
        device: where this rank's part of the model lives: the GPU of its local rank, or the CPU.
        groups: of each kind, the process group that this rank is in. Kinds with the same members
            share one; `WORLD` is torch's default group. Each can be used by `torch.distributed`.
        message_group: all ranks; its CPU tensors are the engine's (`smddp`), whatever the default
            group is made of. The default group, if that is such a one.
    """

    device: torch.device
    groups: Mapping[GroupKind, ProcessGroup]
    message_group: ProcessGroup

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


class State(BaseState[Job]):
    """The one object of this class is `state`.

    Attributes:
        is_in_body: user code of a step runs on this rank, and not on all those of the pipeline.
        is_adding_up: user code of a step runs, for one of several microbatches or on one of several
            ranks: gradients are those of a part of the batch.
        module_manager: how names of the model's parameters are translated.
        param_index_to_name_tp_group, param_name_to_index_tp_group: lists by tp_rank, or None.
    """

    def __init__(self) -> None:
        super().__init__()
        self._optimizer: weakref.ref[Any] | None = None
        self.is_in_body = False
        self.is_adding_up = False
        self.module_manager = ModuleManager()
        self.param_index_to_name_tp_group: Any = None
        self.param_name_to_index_tp_group: Any = None

    @property
    def optimizer(self) -> Any:
        """What was last passed to `smp.DistributedOptimizer`, if it is still held; or None."""
        return None if self._optimizer is None else self._optimizer()

    @optimizer.setter
    def optimizer(self, optimizer: Any) -> None:
        # Weak: it holds the parameters of a model, which may be gone.
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)

    @property
    def device(self) -> torch.device:
        """Where this rank's part of the model lives: the GPU of its local rank, or the CPU."""
        return self.require("smp.state.device").device

    @property
    def message_group(self) -> ProcessGroup:
        """All ranks; its CPU tensors are the engine's, whatever torch's default group is."""
        return self.require("smp.state.message_group").message_group

    def process_group(self, kind: GroupKind) -> ProcessGroup:
        """This rank's group of a kind, for `torch.distributed`."""
        return self.require("smp.state.process_group()").process_group(kind)

    def cpu_group(self, kind: GroupKind) -> ProcessGroup:
        """As `process_group`, but surely one whose collectives take CPU tensors."""
        return self.require("smp.state.cpu_group()").cpu_group(kind)

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


state = State()
