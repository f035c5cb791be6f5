# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data parallelism of one partition: its gradients, averaged over the replicas once per step.

It is torch's DDP, around this rank's parameters instead of around a module: its forward pass, which
computes nothing, arms it. DDP then reduces each bucket as soon as every parameter in it has got its
gradient in the backward pass that follows; so it is armed just before the last backward pass of a
step on this rank. What that pass does not reach is told afterwards to be ready.

While the pipeline runs, no rank may wait for its replicas: another rank of its pipeline may wait
for it, and theirs for others, in a circle. DDP waits in two places. At the end of the pass that
completes its last bucket: so the last bucket holds two numbers that no pass reaches, until the step
is over. And where it arranges its buckets anew, after the first step: that is called for at the end
of the step, before it would come to it by itself.

Gradients may also come outside of what DDP has been armed for: of `loss.backward()`, which is
nobody's but torch's. It is noted that they are there, and they are reduced when they are needed.

Source: modelparallel specification, sections 3.9 and 3.10.
"""

# torch's functions of autograd have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from smdistributed.dataparallel.torch.work import forbid_waiting_in_backward
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.modules.placement import Placement

__all__ = ["Replicas"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)

# Updates are counted up to this number, of which a mean over replicas is exact enough.
_MOST_UPDATES = 64


class Replicas:
    """Of one partition.

    Args:
        placement: what is here.
        group: the ranks that hold the same.
        device: where it is.
        broadcast_buffers: also at the start of each step in training mode.
        bucket_cap_mb, gradient_as_bucket_view: as of torch's DDP.

    Making it is a collective of the group: parameters and buffers become those of its first rank.

    Attributes:
        syncs: gradients that come now are to be reduced.
        has_unreduced: there are such that were not.
        is_idle: no gradients have come since they were let go of, as far as is known here.
        num_updates: of parameters, since the replicas were made or a join ended.
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
        self._options: dict[str, Any] = {
            "device_ids": [device] if device.type == "cuda" else None,
            "process_group": group,
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
        }
        self._root = dist.get_global_rank(group, 0)
        self._comm_hook: tuple[object, Callable[..., Any]] | None = None
        self._handles: list[RemovableHandle] = []
        self._is_armed = False
        self._is_joining = False
        self._pending: set[nn.Parameter] = set()
        self.syncs = True
        self.has_unreduced = False
        self.is_idle = True
        self.num_updates = 0
        for _, buffer in placement.local_buffers():
            dist.broadcast(buffer.data, self._root, group=group)
        # While the pipeline runs, no rank may wait for its replicas: what they do first may wait
        # for another rank of theirs, and that one for its replica here.
        forbid_waiting_in_backward(self)
        self._build()

    def _build(self) -> None:
        """For the parameters as they are now; a collective of the group."""
        for handle in self._handles:
            handle.remove()
        self._part = _Part(self._placement)
        self._known = _signature(self._placement)
        self._parameters = [p for p in self._part.parameters() if p.requires_grad]
        self._sparse = self._part.sparse()
        self._ddp: DistributedDataParallel | None = None
        for parameter in self._part.parameters():
            if not parameter.requires_grad:
                dist.broadcast(parameter.data, self._root, group=self._group)
        if not self._parameters:
            self._handles = []
            return
        self._parameters.append(self._part.add_last())
        self._ddp = DistributedDataParallel(self._part, **self._options)
        # Weakly: a parameter has its hooks in C++, where no garbage collector finds a circle.
        note = weakref.WeakMethod(self._note_ready)
        self._handles = [
            each.register_post_accumulate_grad_hook(functools.partial(_tell, note))
            for each in self._parameters
        ]
        if self._comm_hook is not None:
            self._register_comm_hook(*self._comm_hook)

    def follow_changes(self) -> None:
        """Parameters were frozen, unfrozen, cast or replaced: DDP, which sees none of it, is anew.

        A collective of the group, if they were; between steps.
        """
        if not self._is_armed and self._known != _signature(self._placement):
            self._build()

    @property
    def has_nothing(self) -> bool:
        """No gradients have come, and no script has put any there itself."""
        return self.is_idle and all(_is_zero(each.grad) for each in self._parameters)

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
        """After the last backward pass: waits until all gradients are averages.

        Raises:
            SMPError: those of other replicas were of another step.
        """
        if self._ddp is None:
            return
        self.arm()
        used = [parameter.grad is not None for parameter in self._parameters[:-1]]
        # In an order that is the same on all ranks; a set has none.
        rest = [p for p in self._parameters if p in self._pending]
        if rest:
            dummy = torch.zeros((), requires_grad=True, device="cpu")
            with torch.enable_grad():
                numbers = (not all(used), self.num_updates % _MOST_UPDATES)
                touched = _Touch.apply(dummy, numbers, self._sparse, *rest)
                torch.autograd.backward(touched)
        self._ddp.reducer._rebuild_buckets()
        self._pending.clear()
        self._is_armed = self.has_unreduced = self.is_idle = False
        last = self._parameters[-1]
        gradient, last.grad = last.grad, None
        if gradient is None or self._is_joining:  # who has left a join has nothing to tell
            return
        share_incomplete, mean_updates = map(_real, gradient.tolist())
        if self._comm_hook is None and last.dtype.itemsize > 2:
            self._require_same_step(mean_updates)
        if share_incomplete:
            self._forget_unused(used)

    def _require_same_step(self, mean_updates: float) -> None:
        """What is averaged together is of the same step, as all have updated equally often."""
        mine = self.num_updates % _MOST_UPDATES
        if abs(mean_updates - mine) > 0.5 / dist.get_world_size(self._group):
            raise SMPError(
                "gradients of different steps were averaged over replicas: this rank has called"
                f" optimizer.step() {self.num_updates} time{'s' * (self.num_updates != 1)}, and"
                " that of another replica has not; expected model.backward() in the same steps on"
                " all replicas. Let a replica without a loss call it with a loss of zero, or use"
                " model.join() if it has fewer batches."
            )

    def _forget_unused(self, used: list[bool]) -> None:
        """What no replica has used has no gradient, as without replicas, instead of zeros."""
        anywhere = torch.tensor(used, dtype=torch.uint8, device=self._parameters[-1].device)
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self._group)
        for parameter, is_used in zip(self._parameters, anywhere.tolist(), strict=False):
            if not is_used:
                parameter.grad = None

    def forget_step(self) -> None:
        """The step has failed."""
        self._pending.clear()
        self._is_armed = False

    def _note_ready(self, parameter: nn.Parameter) -> None:
        self.is_idle = False
        if self._is_armed:
            self._pending.discard(parameter)
        elif self.syncs:
            self.has_unreduced = True

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
            self.num_updates = 0  # by now they differ
            self.is_idle = False  # as on replicas that had more batches

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """As of torch's DDP."""
        self._comm_hook = (state, hook)
        self._register_comm_hook(state, hook)

    def _register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        if self._ddp is not None:
            self._ddp.register_comm_hook(state, _in_order(hook))


def _in_order(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, which has ended with all other buckets before it gets the last one.

    That is one that no plain DDP has: a hook that communicates again where something has arrived,
    as PowerSGD's does, would do so for two buckets at once, in an order that differs between ranks.
    """
    begun: list[torch.futures.Future[Any]] = []

    @functools.wraps(hook)  # torch reads annotations, and these would be strings
    def run(state, bucket):  # type: ignore[no-untyped-def]
        if not bucket.is_last():
            begun.append(hook(state, bucket))
            return begun[-1]
        while begun:
            begun.pop().wait()
        return hook(state, bucket)

    return run


def _tell(note: weakref.WeakMethod[Any], parameter: Tensor) -> None:
    method = note()
    if method is not None:
        method(parameter)


def _real(number: complex) -> float:
    return number.real


def _is_zero(gradient: Tensor | None) -> bool:
    if gradient is None:
        return True
    return not bool((gradient._values() if gradient.is_sparse else gradient).any())


def _signature(placement: Placement) -> list[tuple[Any, ...]]:
    """What DDP must know of parameters, and is not told when it changes."""
    return [(id(p), p.requires_grad, p.dtype, p.device) for _, p in placement.local_parameters()]


class _Part(nn.Module):
    """The parameters of this rank, under names that DDP can tell.

    Of a module's class it learns that gradients are sparse; so what has such is in one here too.
    """

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.register_parameter("last", None)
        sparse = {
            id(module.weight)
            for _, module in placement.local_modules()
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
        }
        for name, parameter in placement.local_parameters():
            label = "of " + name.replace(".", "/")
            if id(parameter) in sparse and parameter.requires_grad:
                holder = nn.Embedding(1, 1, sparse=True, device="meta")
                holder.weight = parameter
                self.add_module(label, holder)
            else:
                self.register_parameter(label, parameter)

    def sparse(self) -> set[nn.Parameter]:
        """Those that get sparse gradients."""
        return {parameter for child in self.children() for parameter in child.parameters()}

    def add_last(self) -> nn.Parameter:
        """What no backward pass reaches; first here, as DDP goes from the end.

        Its dtype is nobody else's, as a bucket holds tensors of one dtype: so it has its own.
        """
        parameters = list(self.parameters())
        taken = {parameter.dtype for parameter in parameters}
        dtype = next(each for each in _DTYPES if each not in taken)
        last = nn.Parameter(torch.zeros(2, dtype=dtype, device=parameters[0].device))
        self._parameters["last"] = last
        return last

    def forward(self) -> None:
        """Computes nothing."""


class _Touch(Function):
    """A backward pass that reaches parameters without a gradient, and gives the last two numbers.

    These are whether this replica has parameters without a gradient, and its updates so far.

    For a sparse gradient DDP takes nothing that is not there.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dummy: Tensor,
        numbers: tuple[int, int],
        sparse: set[nn.Parameter],
        *parameters: nn.Parameter,
    ) -> Tensor:
        ctx.others = [
            _nothing_in(each) if each in sparse and each.grad is None else None
            for each in parameters[:-1]
        ]
        ctx.numbers = parameters[-1].new_tensor(numbers)
        return dummy.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *ctx.others, ctx.numbers)


def _nothing_in(parameter: nn.Parameter) -> Tensor:
    """A sparse gradient of no rows."""
    rows = parameter.new_empty((0, *parameter.shape[1:]))
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    return torch.sparse_coo_tensor(indices, rows, parameter.shape)
