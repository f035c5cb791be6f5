# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of gradients between `backward()` and `step()` of a `DistributedOptimizer`.

    backward       _arrive(member)      autograd has added to a parameter's gradient [1]
                   _start_ready()     units that are complete are reduced at once [2]
    step           synchronize()      reduce the rest, wait, put the results into the gradients [3]

[1] The gradient is copied into its *unit*: a bucket of many parameters, or a parameter alone if its
    gradients are sparse or go through a compressor of the user's.
[2] Units are reduced in the order of the plan on every rank. A unit that is complete early waits
    for those before it: the order in which gradients arrive may differ between ranks, that of
    collectives must not.
[3] Every rank reduces every unit once. A parameter without a gradient counts as zeros, and has one
    afterwards, so that all ranks go on with equal gradients.

The plan is made in the first `synchronize`, when the ranks compare their parameters, and extended
there when the optimizer has got more. So the first step overlaps nothing.

A gradient that somebody changes or replaces after it has been copied would lose that change, or
(a second wrapper that averages, too) be reduced in part. Its version counter tells.

Source: Horovod's public API; see docs/horovod.md.
"""

# torch's tensor hooks have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceOptions, ReduceOp

from smdistributed._common.settings import process_settings
from smdistributed.compat.horovod.common import Average, Op, named_as_documented
from smdistributed.compat.horovod.torch.job import require_group
from smdistributed.compat.horovod.torch.reductions import TORCH_OPS
from smdistributed.compat.horovod.torch.tensors import copy_of
from smdistributed.dataparallel import trace
from smdistributed.dataparallel.compression import Compressor, FP16Compression, NoneCompression
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.torch.parallel.agreement import (
    describe_layout,
    require_agreement,
)
from smdistributed.dataparallel.torch.parallel.arrivals import call_on_arrival, count_reductions
from smdistributed.dataparallel.torch.parallel.buckets import Bucket, GradientSlot, make_buckets

__all__ = ["GradientReduction", "GradientsInUse", "Options"]

_WIDE_FLOATS = (torch.float32, torch.float64, torch.bfloat16)
_numbers = itertools.count()  # of the optimizers of this process


@named_as_documented
class GradientsInUse(SMDDPUnsupported, AssertionError):
    """Gradients were touched while they are reduced. Horovod raises an AssertionError there."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How gradients are combined.

    Attributes:
        compression: makes them smaller on the way.
        op: `Average` or `Sum`.
        predivide: averages are divided by this before they are combined, and multiplied after.
        sparse_as_dense: sparse gradients travel as dense ones.
    """

    compression: Compressor
    op: Op
    predivide: float
    sparse_as_dense: bool

    def describe(self) -> list[str]:
        """In lines, for comparison between the ranks."""
        kind = self.compression if isinstance(self.compression, type) else type(self.compression)
        return [
            f"compression={kind.__name__}",
            f"op=hvd.{self.op.name}",
            f"gradient_predivide_factor={self.predivide}",
            f"sparse_as_dense={self.sparse_as_dense}",
        ]


class _Member:
    """A parameter: what it still waits for, and what its gradient was when it was taken."""

    def __init__(self, name: str, parameter: Tensor, passes: int) -> None:
        self.name = name
        self.parameter = parameter
        self.passes_left = passes
        self.unit: _Unit | None = None
        self.place: GradientSlot | None = None  # in the bucket, if the unit is one
        self._taken: tuple[Tensor, int] | None = None

    @property
    def gradient(self) -> Tensor:
        """The parameter's gradient; made of zeros if there is none."""
        if self.parameter.grad is None:
            self.parameter.grad = torch.zeros_like(self.parameter)
        return self.parameter.grad

    def note_taken(self) -> None:
        gradient = self.gradient
        self._taken = (gradient, gradient._version)

    def is_changed(self) -> bool:
        """Whether the gradient has been changed or replaced since it was taken."""
        if self._taken is None:
            return False
        gradient, version = self._taken
        return self.parameter.grad is not gradient or gradient._version != version

    def reset(self, passes: int) -> None:
        self.passes_left = passes
        self._taken = None


class _Unit(abc.ABC):
    """Gradients that are reduced by one collective. `missing`: those that have yet to be taken."""

    def __init__(self, members: Sequence[_Member], options: Options) -> None:
        self.members = members
        self._options = options
        self.expect()
        for member in members:
            member.unit = self

    def expect(self) -> None:
        self.missing = set(self.members)

    def take(self, member: _Member) -> None:
        gradient = member.gradient.detach()
        if gradient.shape != member.parameter.shape:
            raise SMDDPUnsupported(
                f"the gradient of {member.name} has the shape {tuple(gradient.shape)}, the"
                f" parameter {tuple(member.parameter.shape)}; expected one shape. Make a new"
                " optimizer after a parameter has changed."
            )
        self._take(member, gradient)
        self.missing.discard(member)

    @abc.abstractmethod
    def _take(self, member: _Member, gradient: Tensor) -> None: ...

    @abc.abstractmethod
    def start(self, group: Any) -> Any:
        """Start to reduce what was taken; returns a handle."""

    @abc.abstractmethod
    def put(self) -> None:
        """Put the results into the gradients."""

    def _reduce(self, group: Any, buffer: Tensor) -> Any:
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(TORCH_OPS[self._options.op])
        options.asyncOp = True
        if self._options.predivide != 1.0:
            buffer.div_(self._options.predivide)
        return group.allreduce([buffer], options)

    def _complete(self, buffer: Tensor) -> None:
        if self._options.predivide != 1.0:
            buffer.mul_(self._options.predivide)


class _BucketUnit(_Unit):
    """Many parameters, in one buffer, of the dtype in which they travel."""

    def __init__(
        self, bucket: Bucket, members: Sequence[_Member], options: Options, group: Any
    ) -> None:
        super().__init__(members, options)
        self._bucket = bucket
        bucket.allocate(group)
        for member, place in zip(members, bucket.slots, strict=True):
            member.place = place

    def _take(self, member: _Member, gradient: Tensor) -> None:
        assert member.place is not None
        assert member.place.view is not None
        member.place.view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)

    def start(self, group: Any) -> Any:
        assert self._bucket.buffer is not None
        return self._reduce(group, self._bucket.buffer)

    def put(self) -> None:
        assert self._bucket.buffer is not None
        self._complete(self._bucket.buffer)
        for member in self.members:
            assert member.place is not None
            assert member.place.view is not None
            gradient = member.gradient
            if gradient.is_sparse:
                member.parameter.grad = member.place.view.to_sparse()
            else:
                gradient.copy_(member.place.view)


class _CompressedUnit(_Unit):
    """One parameter, through a compressor of the user's."""

    _sent: Tensor
    _context: Any

    def _take(self, member: _Member, gradient: Tensor) -> None:
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        sent, self._context = self._options.compression.compress(dense)
        self._sent = copy_of(sent)

    def start(self, group: Any) -> Any:
        return self._reduce(group, self._sent)

    def put(self) -> None:
        self._complete(self._sent)
        result = self._options.compression.decompress(self._sent, self._context)
        (member,) = self.members
        if member.gradient.is_sparse:
            member.parameter.grad = result.to_sparse()
        else:
            member.gradient.copy_(result)


class _SparseUnit(_Unit):
    """One parameter, whose gradients are sparse on some rank."""

    _total: Tensor

    def _take(self, member: _Member, gradient: Tensor) -> None:
        # `coalesce` of a coalesced tensor is the tensor itself.
        sparse = gradient if gradient.is_sparse else gradient.to_sparse(1)
        self._total = sparse.coalesce().clone()

    def start(self, group: Any) -> Any:
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.SUM)
        self._divisor = group.size() if self._options.op is Average else 1
        return group.allreduce([self._total], options)

    def put(self) -> None:
        (member,) = self.members
        total = self._total if self._divisor == 1 else self._total / self._divisor
        member.parameter.grad = total.coalesce()


class GradientReduction:
    """Reduces the gradients of an optimizer's parameters over all ranks.

    Args:
        options: how.
        passes: backward passes that a gradient is accumulated over before it is reduced.
        names: of the parameters; those that come later and have none get one.

    Thread rule: one backward or `synchronize` at a time; within a backward autograd may use several
    threads.
    """

    def __init__(self, options: Options, passes: int, names: dict[Tensor, str]) -> None:
        self._options = options
        self._passes = passes
        self._names = dict(names)
        self._members: list[_Member] = []
        self._known: dict[Tensor, _Member] = {}
        self._units: list[_Unit] = []
        self._works: list[Any] = []  # of started units; their number is the next to start
        self._comparison: Any = None
        self._lock = threading.Lock()
        self._purpose = f"gradients of hvd.DistributedOptimizer number {next(_numbers)}"
        self.has_gradients = False
        """Whether gradients have arrived since the last `synchronize`."""
        self._hooks: list[Any] = []
        # The parameters outlive the optimizer; a second one must not find hooks of the first.
        weakref.finalize(self, _remove, self._hooks).atexit = False

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Take up parameters that need a gradient and are not known yet. Not a collective."""
        for parameter in parameters:
            if parameter in self._known or not parameter.requires_grad:
                continue
            name = self._names.setdefault(parameter, f"added.{len(self._names)}")
            member = _Member(name, parameter, self._passes)
            self._known[parameter] = member
            self._members.append(member)
            hook = _arrival_hook(weakref.ref(self), weakref.ref(member))
            self._hooks.append(call_on_arrival(parameter, hook))

    def set_passes(self, passes: int) -> None:
        """Change over how many passes gradients are accumulated, from now on."""
        self._passes = passes
        for member in self._members:
            member.passes_left = passes

    # ---- backward --------------------------------------------------------------------------

    def _arrive(self, member: _Member) -> None:
        with self._lock, torch.no_grad():
            self.has_gradients = True
            if member.passes_left <= 0:
                raise GradientsInUse(
                    f"parameter {member.name} received more gradients than"
                    f" backward_passes_per_step={self._passes} before optimizer.step(); expected"
                    f" {self._passes}. Call optimizer.step() or optimizer.synchronize() in between,"
                    " or raise backward_passes_per_step to accumulate gradients."
                )
            member.passes_left -= 1
            if member.passes_left:
                return
            if member.unit is not None:
                member.unit.take(member)
            member.note_taken()
            self._start_ready()

    def _start_ready(self) -> None:
        while len(self._works) < len(self._units):
            if self._units[len(self._works)].missing:
                return
            self._start()

    def _start(self) -> None:
        """Start to reduce the next unit."""
        group = require_group("DistributedOptimizer")
        if not self._works:
            self._comparison = group.compare(self._purpose)
        unit = self._units[len(self._works)]
        self._works.append(unit.start(group))

    # ---- step ------------------------------------------------------------------------------

    @torch.no_grad()
    def synchronize(self) -> None:
        """Reduce what is left, wait, and put the results into the gradients. A collective.

        Raises:
            GradientsInUse: a gradient was changed after `backward()`.
            SMDDPMismatch: the ranks' parameters or options differ.
        """
        try:
            self._plan()
            for unit in self._units:
                for member in unit.members:
                    if member in unit.missing:
                        unit.take(member)
            self._start_ready()
            with trace.span("wait", "wait", buckets=len(self._works)):
                if self._comparison is not None:
                    self._comparison.wait()
                for work in self._works:
                    work.wait()
            self._require_unchanged()
            for unit in self._units:
                unit.put()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Wait for what is under way, and be ready for the next backward."""
        for work in self._works:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                work.wait()
        self._works, self._comparison, self.has_gradients = [], None, False
        for unit in self._units:
            unit.expect()
        for member in self._members:
            member.reset(self._passes)

    def _require_unchanged(self) -> None:
        changed = [member.name for member in self._members if member.is_changed()]
        if not changed:
            return
        raise GradientsInUse(
            f"the gradients of {_listed(changed)} were changed between backward() and"
            " optimizer.synchronize(), while they are reduced; expected them to be left alone. To"
            " clip or unscale gradients call optimizer.synchronize() first, then step() within"
            f" optimizer.skip_synchronize(). {_TWO_REDUCE}"
        )

    # ---- the plan --------------------------------------------------------------------------

    def _plan(self) -> None:
        """Make units for parameters that have none: those that are new since the last step."""
        new = [member for member in self._members if member.unit is None]
        if not new:
            return
        _require_no_other(new)
        group = require_group("DistributedOptimizer")
        _require_equal(new, self._options, group)
        sparse = self._sparse_members(new, group)
        compression = self._options.compression
        dense = [member for member in reversed(new) if member not in sparse]
        if compression is NoneCompression or compression is FP16Compression:
            self._units += _bucket_units(dense, self._options, group)
        else:
            self._units += [_CompressedUnit([member], self._options) for member in dense]
        self._units += [_SparseUnit([member], self._options) for member in new if member in sparse]

    def _sparse_members(self, members: Sequence[_Member], group: Any) -> set[_Member]:
        """Those with a sparse gradient on any rank, unless they are to travel as dense ones."""
        if self._options.sparse_as_dense:
            return set()
        mine = [
            member.parameter.grad is not None and member.parameter.grad.is_sparse
            for member in members
        ]
        flags = torch.tensor(mine, dtype=torch.uint8, device="cpu")
        options = AllreduceOptions()
        options.reduceOp = ReduceOp(ReduceOp.MAX)
        group.allreduce([flags], options).wait()
        return {member for member, flag in zip(members, flags.tolist(), strict=True) if flag}


def _bucket_units(members: Sequence[_Member], options: Options, group: Any) -> list[_Unit]:
    """In the given order; those that travel in another dtype in buckets of their own."""
    is_fp16 = options.compression is FP16Compression
    cap = process_settings().bucket_cap_bytes
    units: list[_Unit] = []
    for dtype in (None, torch.float16):
        chosen = [
            member
            for member in members
            if (is_fp16 and member.parameter.dtype in _WIDE_FLOATS) is (dtype is not None)
        ]
        named = [(member.name, member.parameter) for member in chosen]
        for bucket in make_buckets(named, cap, group.size(), dtype):
            inside = [chosen[place.index] for place in bucket.slots]
            units.append(_BucketUnit(bucket, inside, options, group))
    return units


def _require_equal(members: Sequence[_Member], options: Options, group: Any) -> None:
    lines = [
        *options.describe(),
        *(f"parameter {member.name}: {describe_layout(member.parameter)}" for member in members),
    ]
    require_agreement(
        lines,
        group,
        torch.device("cpu"),
        what="hvd.DistributedOptimizer: the ranks optimize different parameters",
        advice="Expected the same parameters with the same names and shapes in the same order, and"
        " the same arguments, on every rank. Look for a branch that depends on the rank while the"
        " model or the optimizer is made.",
    )


_TWO_REDUCE = (
    "If the model is wrapped in DistributedDataParallel, or has another hvd.DistributedOptimizer,"
    " which reduce gradients too, leave one of the two out."
)


def _require_no_other(members: Sequence[_Member]) -> None:
    """Raise if hooks of ours, other than this optimizer's, wait for the same gradients."""
    others = [member.name for member in members if count_reductions(member.parameter) > 1]
    if others:
        raise GradientsInUse(
            f"the gradients of {_listed(others)} are reduced by something else as well; expected"
            f" one hvd.DistributedOptimizer alone. {_TWO_REDUCE}"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return f"{len(names)} parameters ({shown})"


def _remove(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _arrival_hook(
    owner: weakref.ref[GradientReduction], member: weakref.ref[_Member]
) -> Callable[[Tensor], None]:
    def arrived(_: Tensor) -> None:
        reduction, arriving = owner(), member()
        if reduction is not None and arriving is not None:
            reduction._arrive(arriving)

    return arrived
