# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose states are spread over the replicas of a partition.

Gradients are the same on all replicas, so one of them is enough to update a parameter: its owner,
who alone has a state for it, and broadcasts the result. Who owns what, and the broadcasts, are
those of torch's `ZeroRedundancyOptimizer`: the largest parameters first, each to whom has least.

That optimizer is made to call the user's, which for the time of its step holds what is owned here
and nothing else. So the user's stays what LR schedulers and scripts hold, its options count, and so
do its class, hooks, and whatever else it has; its state is that of this rank's parameters, under
the same indices as ever.

Cost: each parameter crosses once more, by a broadcast. Memory: states of about 1/n of a partition
on each of n replicas, the largest parameter more or less.

Source: modelparallel specification, section 6.6.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from smdistributed._common.errors import UnsupportedError
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.masters import model_parameter_of

__all__ = ["Shards", "is_sharded", "parameters_of", "shard"]

_WHOLE = "_smp_whole_parameters"


def is_sharded(job: Job) -> bool:
    """Whether states are spread over several ranks."""
    return job.config.shard_optimizer_state and job.size_of(GroupKind.DP) > 1


def shard(optimizer: Any, job: Job, placement: Placement) -> Shards | None:
    """Spreads the state of an optimizer over the data parallel group; None if there is no other.

    Args:
        optimizer: of parameters of the model, or of masters of them.
        job: what this process knows of the others.
        placement: where the model's parameters are.
    """
    if not is_sharded(job):
        return None
    here = {id(parameter) for _, parameter in placement.local_parameters()}
    return Shards(optimizer, job.process_group(GroupKind.DP), here)


def parameters_of(optimizer: Any) -> list[Tensor]:
    """All of them, by index; also within a step that updates those owned here."""
    whole: list[Tensor] | None = getattr(optimizer, _WHOLE, None)
    if whole is not None:
        return whole
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class Shards:
    """Of one optimizer: which parameters this rank updates.

    Args:
        optimizer: torch's, or like it. Its groups may change between steps, on all ranks alike.
        group: the ranks with the same parameters and gradients.
        here: `id`s of the parameters that they have; others each rank updates for itself.
    """

    def __init__(self, optimizer: Any, group: ProcessGroup, here: Collection[int]) -> None:
        self._optimizer = optimizer
        self._group = group
        self._here = here
        # By model parameter, in the order in which they came, together or later.
        self._known: list[list[int]] = []
        self._shared: list[list[Tensor]] = []
        self._zero: Any = None
        self._step: Callable[[], Any] | None = None

    def step(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the optimizer's own `step` for what is owned here; a collective of the group.

        A closure is called once, before.
        """
        args, kwargs, result = _after_closure(args, kwargs)
        zero = self._sharded()
        if zero is None:
            returned = step(*args, **kwargs)
        else:
            self._step = lambda: step(*args, **kwargs)
            try:
                returned = zero.step()
            finally:
                self._step = None
        return returned if result is None else result

    def others(self) -> set[int]:
        """`id`s of parameters whose state is on another rank of the group."""
        zero = self._sharded()
        if zero is None:
            return set()
        own = {id(each) for group in zero.optim.param_groups for each in group["params"]}
        return {id(each) for each in self._flat() if id(each) not in own}

    def _flat(self) -> list[Tensor]:
        return [parameter for batch in self._shared for parameter in batch]

    def _sharded(self) -> Any:
        """torch's, of what is trained now; None if nothing is.

        Made anew when that has changed. What was there before keeps its owner: they are chosen list
        by list, by size, and what is new makes a list of its own.
        """
        known = {identity for batch in self._known for identity in batch}
        now: dict[int, Tensor] = {}
        for group in self._optimizer.param_groups:
            for each in group["params"]:
                identity = id(model_parameter_of(each))
                if identity in self._here and (each.requires_grad or identity in known):
                    now[identity] = each
        new = [identity for identity in now if identity not in known]
        if new:
            self._known.append(new)
        shared = [[now[each] for each in batch if each in now] for batch in self._known]
        if self._zero is not None and _ids(shared) == _ids(self._shared):
            return self._zero
        self._shared = shared
        parameters = self._flat()
        self._zero = None
        if not parameters:
            return None
        kinds = sorted({str(each.dtype).removeprefix("torch.") for each in parameters})
        if len(kinds) > 1:
            raise UnsupportedError(
                f"shard_optimizer_state with parameters of {' and '.join(kinds)}; expected one"
                " dtype, as torch's ZeroRedundancyOptimizer does. Convert them, or train in 16 bits"
                " with fp16 or bf16 in the configuration, or leave shard_optimizer_state out."
            )
        from torch.distributed.optim import ZeroRedundancyOptimizer  # slow; few need it

        made: Any = lambda groups: _Own(groups, self._update)  # noqa: E731 -- in place of a class
        groups = [{"params": batch} for batch in shared]
        self._zero = ZeroRedundancyOptimizer(groups, made, process_group=self._group)
        return self._zero

    def _update(self) -> Any:
        """What torch takes for the step of the optimizer of this rank's shard."""
        assert self._step is not None
        others = self.others()
        if len(others) == len(self._flat()) and not isinstance(
            self._optimizer, torch.optim.Optimizer
        ):
            return None  # torch's find that out themselves
        with _without(self._optimizer, others):
            return self._step()


def _ids(batches: list[list[Tensor]]) -> list[list[int]]:
    return [[id(each) for each in batch] for batch in batches]


class _Own:
    """What torch takes for the optimizer of this rank's shard."""

    def __init__(self, param_groups: list[dict[str, Any]], step: Callable[[], Any]) -> None:
        self.param_groups = param_groups
        self.step = step


@contextlib.contextmanager
def _without(optimizer: Any, others: Collection[int]) -> Iterator[None]:
    """In this block the optimizer has none of these parameters."""
    held = [group["params"] for group in optimizer.param_groups]
    setattr(optimizer, _WHOLE, [parameter for group in held for parameter in group])
    try:
        for group, whole in zip(optimizer.param_groups, held, strict=True):
            group["params"] = [each for each in whole if id(each) not in others]
        yield
    finally:
        for group, whole in zip(optimizer.param_groups, held, strict=True):
            group["params"] = whole
        delattr(optimizer, _WHOLE)


def _after_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """The arguments of `step` without the closure, and what that has returned.

    It runs first, or it would see a part of the groups, and `zero_grad` would leave gradients.
    """
    if args and callable(args[0]):
        closure, args = args[0], (None, *args[1:])
    elif callable(kwargs.get("closure")):
        closure, kwargs = kwargs["closure"], {**kwargs, "closure": None}
    else:
        return args, kwargs, None
    with torch.enable_grad():
        return args, kwargs, closure()
