# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's reductions: `allreduce`, `reducescatter` and their forms.

Each has a form that starts it and returns a handle (`_async`), forms that work in place (`_`), and
grouped forms for lists. What they share:

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

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOp,
    ReduceScatterOptions,
)

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import Average, Max, Min, Op, Product, Sum
from smdistributed.compat.horovod.torch.exchanges import allgather, grouped_allgather
from smdistributed.compat.horovod.torch.handles import Handle, start_comparison
from smdistributed.compat.horovod.torch.job import global_process_set, require_group
from smdistributed.compat.horovod.torch.tensors import (
    copy_of,
    require_rows,
    require_tensor,
    scale,
)
from smdistributed.dataparallel.compression import Compression, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

__all__ = [
    "TORCH_OPS",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
    "rows_of_rank",
    "sparse_allreduce_async",
]

TORCH_OPS = {
    Average: ReduceOp.AVG,
    Sum: ReduceOp.SUM,
    Min: ReduceOp.MIN,
    Max: ReduceOp.MAX,
    Product: ReduceOp.PRODUCT,
}
_LINEAR = (Average, Sum)


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
    caller = "allreduce_async"
    return _start(
        caller, [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )


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
    return _start(
        "allreduce_async_",
        [tensor],
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        in_place=True,
    )


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
    given = (average, name, op, prescale_factor, postscale_factor, process_set)
    return _start("allreduce_", [tensor], *given, in_place=True).wait()


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
    sent, context = chosen.compress(tensor)
    reduced = _Allreduce.apply(
        False, name, resolved, prescale_factor, postscale_factor, process_set, sent
    )
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
    return _start(
        "grouped_allreduce_async",
        tensors,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        is_list=True,
    )


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
    return _start(
        "grouped_allreduce_async_",
        tensors,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        in_place=True,
        is_list=True,
    )


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
    given = (average, name, op, prescale_factor, postscale_factor, process_set)
    return _start("grouped_allreduce_", tensors, *given, in_place=True, is_list=True).wait()


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
    pairs = [chosen.compress(tensor) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    reduced = _Allreduce.apply(
        True, name, resolved, prescale_factor, postscale_factor, process_set, *sent
    )
    both = zip(reduced, pairs, strict=True)
    return [chosen.decompress(tensor, context) for tensor, (_, context) in both]


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        is_list: bool,
        name: str | None,
        op: Op,
        prescale_factor: float,
        postscale_factor: float,
        process_set: Any,
        *tensors: Tensor,
    ) -> Any:
        ctx.op, ctx.is_list = op, is_list
        ctx.factors = prescale_factor, postscale_factor
        caller = "grouped_allreduce" if is_list else "allreduce"
        given = (None, name, op, prescale_factor, postscale_factor, process_set)
        result = _start(caller, tensors, *given, is_list=is_list).wait()
        return tuple(result) if is_list else result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if ctx.op not in _LINEAR:
            raise SMDDPUnsupported(
                f"hvd.allreduce() with op=hvd.{ctx.op.name} has no gradient here; expected"
                " hvd.Average or hvd.Sum where a gradient is computed. Pass tensor.detach()."
            )
        given = (None, None, ctx.op, *ctx.factors, None)
        reduced = _start("grouped_allreduce", gradients, *given, is_list=True).wait()
        return (None, None, None, None, None, None, *reduced)


def _start(
    caller: str,
    tensors: Sequence[Tensor],
    average: bool | None,
    name: str | None,
    op: Any,
    prescale_factor: float,
    postscale_factor: float,
    process_set: Any,
    *,
    in_place: bool = False,
    is_list: bool = False,
) -> Handle:
    """Start an allreduce of one tensor, or of a list."""
    group = require_group(caller)
    common.require_all_ranks(process_set, caller)
    resolved = common.resolve(average, op, caller)
    given = [require_tensor(each, caller, _SPARSE_ADVICE) for each in tensors]
    given_objects = list(tensors)
    is_scaled = (prescale_factor, postscale_factor) != (1.0, 1.0)
    buffers = [
        each if in_place and each.is_contiguous() and not each.is_neg() else copy_of(each)
        for each in given
    ]
    divisors = [
        group.size()
        if is_scaled and resolved is Average and not (b.is_floating_point() or b.is_complex())
        else 1
        for b in buffers
    ]
    for buffer in buffers:
        scale(buffer, prescale_factor)
    # Scaled averages of integers are cut off once: they are sums until then.
    works = [start_comparison(caller, name, (prescale_factor, postscale_factor))]
    for divisor in sorted(set(divisors)):
        chosen = [b for b, d in zip(buffers, divisors, strict=True) if d == divisor]
        works += _reduce(group, chosen, Sum if divisor != 1 else resolved)

    def finish() -> Any:
        for buffer, divisor, target in zip(buffers, divisors, given, strict=True):
            scale(buffer, postscale_factor / divisor)
            if in_place and buffer is not target:
                target.copy_(buffer)
        results = given_objects if in_place else buffers
        return results if is_list else results[0]

    return Handle(works, finish)


_SPARSE_ADVICE = "Call hvd.sparse_allreduce_async(), or to_dense() first."


def _reduce(group: Any, buffers: Sequence[Tensor], op: Op) -> list[Any]:
    """Start to reduce contiguous tensors in place."""
    if len(buffers) == 1:
        single = AllreduceOptions()
        single.reduceOp = ReduceOp(TORCH_OPS[op])
        single.asyncOp = True
        return [group.allreduce([buffers[0]], single)]
    works = []
    for device in dict.fromkeys(buffer.device for buffer in buffers):
        options = AllreduceCoalescedOptions()
        options.reduceOp = ReduceOp(TORCH_OPS[op])
        options.asyncOp = True
        here = [buffer for buffer in buffers if buffer.device == device]
        works.append(group.allreduce_coalesced(here, options))
    return works


# ---- reducescatter -----------------------------------------------------------------------------


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start to combine a tensor of all ranks, of which each rank gets some rows.

    Rows that are left over when they are shared out go to the first ranks, one each.

    Args:
        tensor: at least one dimension; one shape and dtype on all ranks.
        name: compared between the ranks.
        op: `Average` (also None) or `Sum`.
    """
    caller = "reducescatter_async"
    return _start_scattered(
        caller, [tensor], name, op, process_set, prescale_factor, postscale_factor, is_list=False
    )


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """As `reducescatter_async`; returns this rank's rows, and can be differentiated.

    As in Horovod, the gradient is what the ranks' gradients are when gathered, multiplied by the
    number of ranks for `Sum`.
    """
    chosen = resolve_compression(compression)
    sent, context = chosen.compress(tensor)
    reduced = _Reducescatter.apply(
        False, name, op, process_set, prescale_factor, postscale_factor, sent
    )
    return chosen.decompress(reduced, context)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """As `reducescatter_async`, for a list."""
    caller = "grouped_reducescatter_async"
    return _start_scattered(
        caller, tensors, name, op, process_set, prescale_factor, postscale_factor, is_list=True
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """As `reducescatter`, for a list."""
    chosen = resolve_compression(compression)
    pairs = [chosen.compress(tensor) for tensor in tensors]
    sent = [tensor for tensor, _ in pairs]
    reduced = _Reducescatter.apply(
        True, name, op, process_set, prescale_factor, postscale_factor, *sent
    )
    both = zip(reduced, pairs, strict=True)
    return [chosen.decompress(tensor, context) for tensor, (_, context) in both]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        is_list: bool,
        name: str | None,
        op: Any,
        process_set: Any,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: Tensor,
    ) -> Any:
        caller = "grouped_reducescatter" if is_list else "reducescatter"
        resolved = common.resolve(None, op, caller, _LINEAR)
        ctx.factor = prescale_factor * postscale_factor
        if resolved is Sum:
            ctx.factor *= require_group(caller).size()
        ctx.is_list = is_list
        given = (name, resolved, process_set, prescale_factor, postscale_factor)
        result = _start_scattered(caller, tensors, *given, is_list=is_list).wait()
        return tuple(result) if is_list else result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        scaled = [gradient * ctx.factor for gradient in gradients]
        gathered = grouped_allgather(scaled) if ctx.is_list else [allgather(scaled[0])]
        return (None, None, None, None, None, None, *gathered)


def rows_of_rank(rows: int, size: int) -> list[int]:
    """How many of the rows each rank gets."""
    least, left = divmod(rows, size)
    return [least + (rank < left) for rank in range(size)]


def _start_scattered(
    caller: str,
    tensors: Sequence[Tensor],
    name: str | None,
    op: Any,
    process_set: Any,
    prescale_factor: float,
    postscale_factor: float,
    *,
    is_list: bool,
) -> Handle:
    group = require_group(caller)
    common.require_all_ranks(process_set, caller)
    resolved = common.resolve(None, op, caller, _LINEAR)
    given = [require_rows(each, caller) for each in tensors]
    works = [start_comparison(caller, name, (prescale_factor, postscale_factor))]
    outputs = []
    for tensor in given:
        scaled = tensor if prescale_factor == 1.0 else scale(copy_of(tensor), prescale_factor)
        shares = scaled.split(rows_of_rank(scaled.shape[0], group.size()))
        mine = shares[group.rank()]
        output = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        options = ReduceScatterOptions()
        options.reduceOp = ReduceOp(TORCH_OPS[resolved])
        options.asyncOp = True
        works.append(group.reduce_scatter([output], [list(shares)], options))
        outputs.append(output)

    def finish() -> Any:
        for output in outputs:
            scale(output, postscale_factor)
        return outputs if is_list else outputs[0]

    return Handle(works, finish)


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
    resolved = common.resolve(None, op, caller, _LINEAR)
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
