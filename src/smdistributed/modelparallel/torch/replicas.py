# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data parallelism of one partition: its gradients, averaged over the replicas once per step.

It is torch's DDP, around this rank's parameters instead of around a module: its forward pass, which
computes nothing, arms it. DDP then reduces each bucket as soon as every parameter in it has got its
gradient in the backward pass that follows; so it is armed just before the last backward pass of a
step on this rank. What that pass does not reach is told afterwards to be ready.

While the pipeline runs, no rank may wait for its replicas: another rank of its pipeline may wait
for it, and theirs for others, in a circle. DDP waits in two places. At the end of the pass that
completes its last bucket: so the last bucket holds one number that no pass reaches, until the step
is over. And where it arranges its buckets anew, after the first step: that is called for at the end
of the step, before it would come to it by itself.

Source: modelparallel specification, sections 3.9 and 3.10.
"""

# torch's functions of autograd have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel

from smdistributed.modelparallel.torch.placement import Placement

__all__ = ["Replicas"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)


class Replicas:
    """Of one partition.

    Args:
        placement: what is here.
        group: the ranks that hold the same.
        device: where it is.
        broadcast_buffers: also at the start of each step in training mode.
        bucket_cap_mb, gradient_as_bucket_view: as of torch's DDP.

    Making it is a collective of the group: parameters and buffers become those of its first rank.
    """

    def __init__(
        self,
        placement: Placement,
        group: ProcessGroup,
        device: torch.device,
        *,
        broadcast_buffers: bool,
        bucket_cap_mb: float,
        gradient_as_bucket_view: bool,
    ) -> None:
        self._group = group
        self._placement = placement
        self._broadcasts_buffers = broadcast_buffers
        part = _Part(placement)
        self._parameters = [p for p in part.parameters() if p.requires_grad]
        if self._parameters:
            self._parameters.append(part.add_last())
        self._root = dist.get_global_rank(group, 0)
        self._ddp: DistributedDataParallel | None = None
        self._is_armed = False
        self._is_joining = False
        self._pending: set[nn.Parameter] = set()
        frozen = [p for p in part.parameters() if not p.requires_grad]
        for tensor in (*frozen, *(buffer for _, buffer in placement.local_buffers())):
            dist.broadcast(tensor.data, self._root, group=group)
        if self._parameters:
            self._ddp = DistributedDataParallel(
                part,
                device_ids=[device] if device.type == "cuda" else None,
                process_group=group,
                bucket_cap_mb=bucket_cap_mb,
                gradient_as_bucket_view=gradient_as_bucket_view,
            )
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(self._note_ready)

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """torch's; None if nothing here is trained."""
        return self._ddp

    def sync_buffers(self) -> None:
        """At the start of a step: those of the group's first rank, on all.

        Not in a join: who has no more batches takes part in DDP's collectives alone.
        """
        if self._broadcasts_buffers and not self._is_joining:
            for _, buffer in self._placement.local_buffers():  # forward passes may replace them
                dist.broadcast(buffer, self._root, group=self._group)

    def arm(self) -> None:
        """The next backward pass is the last of the step: buckets are reduced on the way."""
        if self._ddp is None or self._is_armed:
            return
        self._is_armed = True
        self._pending = set(self._parameters)
        with torch.enable_grad():
            self._ddp()

    def finish(self) -> None:
        """After the last backward pass: waits until all gradients are averages."""
        if self._ddp is None:
            return
        self.arm()
        used = [parameter.grad is not None for parameter in self._parameters[:-1]]
        # In an order that is the same on all ranks; a set has none.
        rest = [p for p in self._parameters if p in self._pending]
        if rest:
            dummy = torch.zeros((), requires_grad=True)
            with torch.enable_grad():
                torch.autograd.backward(_Touch.apply(dummy, not all(used), *rest))
        self._ddp.reducer._rebuild_buckets()
        self._pending.clear()
        self._is_armed = False
        self._forget_unused(used)

    def _forget_unused(self, used: list[bool]) -> None:
        """What no replica has used has no gradient, as without replicas, instead of zeros.

        The number that is reduced last tells all replicas whether one of them has such.
        """
        last = self._parameters[-1]
        is_complete = last.grad is None or not bool(last.grad)
        last.grad = None
        if is_complete or self._is_joining:  # who has left a join has none to tell of
            return
        anywhere = torch.tensor(used, dtype=torch.uint8, device=last.device)
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self._group)
        for parameter, is_used in zip(self._parameters, anywhere.tolist(), strict=False):
            if not is_used:
                parameter.grad = None

    def forget_step(self) -> None:
        """The step has failed."""
        self._pending.clear()
        self._is_armed = False

    def _note_ready(self, parameter: nn.Parameter) -> None:
        self._pending.discard(parameter)

    @contextlib.contextmanager
    def join(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """As of torch's DDP."""
        if self._ddp is None:
            yield
            return
        self._is_joining = True
        try:
            with self._ddp.join(*args, **kwargs):
                yield
        finally:
            self._is_joining = False

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """As of torch's DDP."""
        if self._ddp is not None:
            self._ddp.register_comm_hook(state, hook)


class _Part(nn.Module):
    """The parameters of this rank, under names that DDP can tell."""

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.register_parameter("last", None)
        for name, parameter in placement.local_parameters():
            self.register_parameter("of " + name.replace(".", "/"), parameter)

    def add_last(self) -> nn.Parameter:
        """What no backward pass reaches; first here, as DDP goes from the end.

        Its dtype is nobody else's, as a bucket holds tensors of one dtype: so it has its own.
        """
        parameters = list(self.parameters())
        taken = {parameter.dtype for parameter in parameters}
        dtype = next(each for each in _DTYPES if each not in taken)
        last = nn.Parameter(torch.zeros((), dtype=dtype, device=parameters[0].device))
        self._parameters["last"] = last
        return last

    def forward(self) -> None:
        """Computes nothing."""


class _Touch(Function):
    """A backward pass that reaches parameters without a gradient, and the last one with a flag."""

    @staticmethod
    def forward(ctx: Any, dummy: Tensor, flag: bool, *parameters: Tensor) -> Tensor:
        ctx.others = len(parameters) - 1
        ctx.flag = torch.full_like(parameters[-1], flag)
        return dummy.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *[None] * ctx.others, ctx.flag)
