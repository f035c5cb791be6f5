# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's reductions: `allreduce` and its forms.

There is a form that starts it and returns a handle (`_async`), forms that work in place (`_`), and
grouped forms for lists. What they share with `reducescatter`, in `scattered_reductions`:

- `op` is `Average` unless something else is asked for. Averages of integers are cut off towards
  zero. Averages of 16-bit floats do not leave their range on the way.
- `prescale_factor` multiplies what goes in and `postscale_factor` what comes out; of integers both
  in float64, cut off towards zero.
- A `name` is compared between the ranks; calls without one are matched by their order.
- The forms without `_async` and without `_` at the end can be differentiated.

They raise `SMDDPMismatch` on all ranks if the ranks' calls do not fit each other, and
`SMDDPUnsupported` for a process set of some ranks, `Adasum`, and averages of bool.

Source: Horovod's public API; see docs/horovod.md.
"""

# torch's autograd functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import AllreduceCoalescedOptions, AllreduceOptions, ReduceOp

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import Average, Max, Min, Op, Product, Sum
from smdistributed.compat.horovod.torch.handles import Handle, start_comparison
from smdistributed.compat.horovod.torch.job import global_process_set, require_group
from smdistributed.compat.horovod.torch.tensors import copy_of, require_tensor, scale
from smdistributed.dataparallel.compression import Compression, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

__all__ = [
    "LINEAR",
    "TORCH_OPS",
    "Call",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
]

TORCH_OPS = {
    Average: ReduceOp.AVG,
    Sum: ReduceOp.SUM,
    Min: ReduceOp.MIN,
    Max: ReduceOp.MAX,
    Product: ReduceOp.PRODUCT,
}
LINEAR = (Average, Sum)


@dataclasses.dataclass(frozen=True)
class Call:
    """What a reduction is asked for, beside its tensors.

    Attributes:
        caller: the function that was called, without `hvd.`. By Horovod's names one that begins
            with `grouped_` has a list, and one that ends with `_` works in place.
        name: compared between the ranks, unless it is None.
        op: how values are combined.
        factors: by which is multiplied what goes in, and what comes out.
        process_set: must mean all ranks.
    """

    caller: str
    name: str | None
    op: Op
    factors: tuple[float, float]
    process_set: Any

    @property
    def is_grouped(self) -> bool:
        """Whether it has a list of tensors."""
        return self.caller.startswith("grouped_")

    @property
    def is_in_place(self) -> bool:
        """Whether the results go into the given tensors."""
        return self.caller.endswith("_")


# ---- allreduce ---------------------------------------------------------------------------------


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """Start to combine a tensor of all ranks; the result is another one of its shape and dtype.

    Args:
        tensor: any dense tensor; one shape and dtype on all ranks.
        average: Horovod's older form of `op`: True for `Average`, False for `Sum`.
        name: compared between the ranks.
        op: `Average` (also None), `Sum`, `Min`, `Max` or `Product`.
    """
    resolved = common.resolve(average, op, "allreduce_async")
    factors = prescale_factor, postscale_factor
    return _start(Call("allreduce_async", name, resolved, factors, process_set), [tensor])


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """As `allreduce_async`, in place; leave the tensor alone until `synchronize`."""
    resolved = common.resolve(average, op, "allreduce_async_")
    factors = prescale_factor, postscale_factor
    return _start(Call("allreduce_async_", name, resolved, factors, process_set), [tensor])


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """As `allreduce`, in place and without a gradient; returns the tensor."""
    resolved = common.resolve(average, op, "allreduce_")
    factors = prescale_factor, postscale_factor
    return _start(Call("allreduce_", name, resolved, factors, process_set), [tensor]).wait()


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """Combine a tensor of all ranks; returns the result. See `allreduce_async`.

    Its gradient is reduced in the same way; `Average` and `Sum` have one.

    Args:
        compression: of `Compression`, or a class with `compress` and `decompress`.
    """
    chosen = resolve_compression(compression)
    resolved = common.resolve(average, op, "allreduce")
    factors = prescale_factor, postscale_factor
    sent, context = chosen.compress(tensor)
    reduced = _Allreduce.apply(Call("allreduce", name, resolved, factors, process_set), sent)
    return chosen.decompress(reduced, context)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """As `allreduce_async`, for a list; the result is a list."""
    resolved = common.resolve(average, op, "grouped_allreduce_async")
    factors = prescale_factor, postscale_factor
    return _start(Call("grouped_allreduce_async", name, resolved, factors, process_set), tensors)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Handle:
    """As `allreduce_async_`, for a list; the result is a list of the same tensors."""
    resolved = common.resolve(average, op, "grouped_allreduce_async_")
    factors = prescale_factor, postscale_factor
    return _start(Call("grouped_allreduce_async_", name, resolved, factors, process_set), tensors)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """As `allreduce_`, for a list."""
    resolved = common.resolve(average, op, "grouped_allreduce_")
    factors = prescale_factor, postscale_factor
    call = Call("grouped_allreduce_", name, resolved, factors, process_set)
    return _start(call, tensors).wait()


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> Any:
    """As `allreduce`, for a list."""
    chosen = resolve_compression(compression)
    resolved = common.resolve(average, op, "grouped_allreduce")
    factors = prescale_factor, postscale_factor
    call = Call("grouped_allreduce", name, resolved, factors, process_set)
    pairs = [chosen.compress(tensor) for tensor in tensors]
    reduced = _Allreduce.apply(call, *[tensor for tensor, _ in pairs])
    both = zip(reduced, pairs, strict=True)
    return [chosen.decompress(tensor, context) for tensor, (_, context) in both]


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> Any:
        ctx.call = call
        result = _start(call, tensors).wait()
        return tuple(result) if call.is_grouped else result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        call: Call = ctx.call
        if call.op not in LINEAR:
            raise SMDDPUnsupported(
                f"hvd.allreduce() with op=hvd.{call.op.name} has no gradient here; expected"
                " hvd.Average or hvd.Sum where a gradient is computed. Pass tensor.detach()."
            )
        unnamed = dataclasses.replace(call, caller="grouped_allreduce", name=None)
        return (None, *_start(unnamed, gradients).wait())


def _start(call: Call, tensors: Sequence[Tensor]) -> Handle:
    """Start an allreduce of one tensor, or of a list."""
    group = require_group(call.caller)
    common.require_all_ranks(call.process_set, call.caller)
    given = [require_tensor(each, call.caller, _SPARSE_ADVICE) for each in tensors]
    in_place = call.is_in_place
    results = list(tensors) if in_place else None
    buffers = [
        each if in_place and each.is_contiguous() and not each.is_neg() else copy_of(each)
        for each in given
    ]
    before, after = call.factors
    # Scaled averages of integers are cut off once: they are sums until then.
    divisors = [1] * len(buffers)
    if call.op is Average and call.factors != (1.0, 1.0):
        divisors = [1 if _has_fractions(each) else group.size() for each in buffers]
    for buffer in buffers:
        scale(buffer, before)
    works = [start_comparison(call.caller, call.name, call.factors)]
    for divisor in sorted(set(divisors)):
        chosen = [b for b, d in zip(buffers, divisors, strict=True) if d == divisor]
        works += _reduce(group, chosen, Sum if divisor != 1 else call.op)

    def finish() -> Any:
        for buffer, divisor, target in zip(buffers, divisors, given, strict=True):
            scale(buffer, after / divisor)
            if in_place and buffer is not target:
                target.copy_(buffer)
        found = buffers if results is None else results
        return found if call.is_grouped else found[0]

    return Handle(works, finish)


def _has_fractions(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


_SPARSE_ADVICE = "Call hvd.sparse_allreduce_async(), or to_dense() first."


@functools.cache  # nobody changes them, and to make them takes a while beside a small reduction
def _options_of(op: Op) -> AllreduceOptions:
    options = AllreduceOptions()
    options.reduceOp = ReduceOp(TORCH_OPS[op])
    options.asyncOp = True
    return options


def _reduce(group: Any, buffers: Sequence[Tensor], op: Op) -> list[Any]:
    """Start to reduce contiguous tensors in place."""
    if len(buffers) == 1:
        return [group.allreduce([buffers[0]], _options_of(op))]
    works = []
    for device in dict.fromkeys(buffer.device for buffer in buffers):
        options = AllreduceCoalescedOptions()
        options.reduceOp = ReduceOp(TORCH_OPS[op])
        options.asyncOp = True
        here = [buffer for buffer in buffers if buffer.device == device]
        works.append(group.allreduce_coalesced(here, options))
    return works


# ---- sparse tensors ----------------------------------------------------------------------------


def sparse_allreduce_async(
    tensor: Tensor, name: str | None, op: Any, process_set: Any = global_process_set
) -> Callable[[], Tensor]:
    """Combine a sparse (COO) tensor of all ranks; returns a function that returns the result.

    The call itself waits until all ranks have made it.

    Args:
        tensor: its shape, dtype and sparse dimensions are equal on all ranks; entries may differ.
        op: `Average` or `Sum`.

    Returns:
        A function of no arguments; its result is coalesced.
    """
    caller = "sparse_allreduce_async"
    group = require_group(caller)
    common.require_all_ranks(process_set, caller)
    resolved = common.resolve(None, op, caller, LINEAR)
    if not getattr(tensor, "is_sparse", False):
        raise SMDDPConfigInvalid(
            f"hvd.{caller}() got a tensor that is not sparse (COO); expected one. Call"
            " hvd.allreduce_async() for dense tensors."
        )
    comparison = start_comparison(caller, name)
    total = tensor.detach().coalesce().clone()
    options = AllreduceOptions()
    options.reduceOp = ReduceOp(ReduceOp.SUM)
    work = group.allreduce([total], options)
    divisor = group.size() if resolved is Average else 1
    handle = Handle([comparison, work], lambda: _divided(total, divisor))
    return handle.wait


def _divided(total: Tensor, divisor: int) -> Tensor:
    if divisor == 1:
        return total.coalesce()
    return total.coalesce().div(divisor)
