# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's `reducescatter` and its forms: each rank gets some rows of what all have combined.

Arguments and errors are as in `reductions`.

Source: Horovod's public API; see docs/horovod.md.
"""

# torch's autograd functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp, ReduceScatterOptions

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import Average, Sum
from smdistributed.compat.horovod.torch.exchanges import allgather, grouped_allgather
from smdistributed.compat.horovod.torch.handles import Handle, start_comparison
from smdistributed.compat.horovod.torch.job import global_process_set, require_group
from smdistributed.compat.horovod.torch.reductions import LINEAR, TORCH_OPS, Call
from smdistributed.compat.horovod.torch.tensors import copy_of, require_rows, scale
from smdistributed.dataparallel.compression import Compression, resolve_compression

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]


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
    resolved = common.resolve(None, op, "reducescatter_async", LINEAR)
    factors = prescale_factor, postscale_factor
    return _start(Call("reducescatter_async", name, resolved, factors, process_set), [tensor])


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
    resolved = common.resolve(None, op, "reducescatter", LINEAR)
    factors = prescale_factor, postscale_factor
    sent, context = chosen.compress(tensor)
    call = Call("reducescatter", name, resolved, factors, process_set)
    return chosen.decompress(_Reducescatter.apply(call, sent), context)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: Any = Average,
    process_set: Any = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """As `reducescatter_async`, for a list."""
    resolved = common.resolve(None, op, "grouped_reducescatter_async", LINEAR)
    factors = prescale_factor, postscale_factor
    call = Call("grouped_reducescatter_async", name, resolved, factors, process_set)
    return _start(call, tensors)


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
    resolved = common.resolve(None, op, "grouped_reducescatter", LINEAR)
    factors = prescale_factor, postscale_factor
    call = Call("grouped_reducescatter", name, resolved, factors, process_set)
    pairs = [chosen.compress(tensor) for tensor in tensors]
    reduced = _Reducescatter.apply(call, *[tensor for tensor, _ in pairs])
    both = zip(reduced, pairs, strict=True)
    return [chosen.decompress(tensor, context) for tensor, (_, context) in both]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> Any:
        before, after = call.factors
        ctx.factor = before * after
        if call.op is Sum:
            ctx.factor *= require_group(call.caller).size()
        ctx.is_grouped = call.is_grouped
        result = _start(call, tensors).wait()
        return tuple(result) if call.is_grouped else result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        scaled = [gradient * ctx.factor for gradient in gradients]
        gathered = grouped_allgather(scaled) if ctx.is_grouped else [allgather(scaled[0])]
        return (None, *gathered)


def _start(call: Call, tensors: Sequence[Tensor]) -> Handle:
    """Start a reducescatter of one tensor, or of each of a list."""
    group = require_group(call.caller)
    common.require_all_ranks(call.process_set, call.caller)
    given = [require_rows(each, call.caller) for each in tensors]
    prescale_factor, postscale_factor = call.factors
    works = [start_comparison(call.caller, call.name, call.factors)]
    outputs = []
    for tensor in given:
        scaled = tensor if prescale_factor == 1.0 else scale(copy_of(tensor), prescale_factor)
        shares = scaled.split(_rows_of_ranks(scaled.shape[0], group.size()))
        mine = shares[group.rank()]
        output = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
        options = ReduceScatterOptions()
        options.reduceOp = ReduceOp(TORCH_OPS[call.op])
        options.asyncOp = True
        works.append(group.reduce_scatter([output], [list(shares)], options))
        outputs.append(output)

    def finish() -> Any:
        for output in outputs:
            scale(output, postscale_factor)
        return outputs if call.is_grouped else outputs[0]

    return Handle(works, finish)


def _rows_of_ranks(rows: int, size: int) -> list[int]:
    """How many of the rows each rank gets."""
    least, left = divmod(rows, size)
    return [least + (rank < left) for rank in range(size)]
