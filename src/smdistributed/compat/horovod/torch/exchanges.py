# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What moves and does not combine: `allgather`, `broadcast`, `alltoall`, `barrier`, `join`.

A `name` is compared between the ranks; calls without one are matched by their order. The forms
without `_async` and without `_` at the end can be differentiated.

`allgather` and `alltoall` tell the ranks each other's sizes first: their `_async` forms return when
all ranks have called them, and the data are then under way.

They raise `SMDDPMismatch` on all ranks if the ranks' calls do not fit each other, and
`SMDDPUnsupported` for a process set of some ranks.

Source: Horovod's public API; see docs/horovod.md.
"""

# torch's autograd functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BroadcastOptions,
)
from torch.distributed import ReduceOp

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.torch.handles import Handle, start_comparison
from smdistributed.compat.horovod.torch.job import global_process_set, require_group
from smdistributed.compat.horovod.torch.tensors import (
    copy_of,
    gather_shapes,
    require_rows,
    require_tensor,
)
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPMismatch

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "join",
]


# ---- allgather ---------------------------------------------------------------------------------


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """Start to put the ranks' tensors one after the other, along the first dimension.

    Args:
        tensor: at least one dimension, of which the first may differ between ranks.
        name: compared between the ranks.
    """
    return _start_gather("allgather_async", [tensor], name, process_set, is_list=False)


def allgather(
    tensor: Tensor, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """As `allgather_async`; returns the whole, and can be differentiated.

    As in Horovod, the gradient is this rank's rows of the ranks' averaged gradients.
    """
    return _Allgather.apply(False, name, process_set, tensor)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """As `allgather_async`, for a list."""
    return _start_gather("grouped_allgather_async", tensors, name, process_set, is_list=True)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """As `allgather`, for a list."""
    return list(_Allgather.apply(True, name, process_set, *tensors))


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, is_list: bool, name: str | None, process_set: Any, *tensors: Tensor
    ) -> Any:
        caller = "grouped_allgather" if is_list else "allgather"
        handle = _start_gather(caller, tensors, name, process_set, is_list=is_list)
        ctx.places = handle.places
        result = handle.wait()
        return tuple(result) if is_list else result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        group = require_group("allgather")
        shares = []
        for gradient, (begin, rows) in zip(gradients, ctx.places, strict=True):
            averaged = _average(copy_of(gradient), group)
            shares.append(averaged.narrow(0, begin, rows))
        return (None, None, None, *shares)


class _GatherHandle(Handle):
    """`places`: where this rank's rows lie in each result: (first row, number of rows)."""

    places: Sequence[tuple[int, int]] = ()


def _start_gather(
    caller: str, tensors: Sequence[Tensor], name: str | None, process_set: Any, *, is_list: bool
) -> _GatherHandle:
    group = require_group(caller)
    common.require_all_ranks(process_set, caller)
    given = [require_rows(tensor, caller) for tensor in tensors]
    works = [start_comparison(caller, name)]
    results, places = [], []
    for tensor, rows in zip(given, gather_shapes(given, group, caller), strict=True):
        shape = (sum(rows), *tensor.shape[1:])
        result = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        options = AllgatherOptions()
        options.asyncOp = True
        works.append(group.allgather([list(result.split(rows))], [copy_of(tensor)], options))
        results.append(result)
        places.append((sum(rows[: group.rank()]), rows[group.rank()]))
    handle = _GatherHandle(works, lambda: results if is_list else results[0])
    handle.places = places
    return handle


# ---- broadcast ---------------------------------------------------------------------------------


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """Start to give every rank a copy of the root's tensor.

    Args:
        tensor: any dense tensor; one shape and dtype on all ranks.
        root_rank: whose values count.
        name: compared between the ranks.
    """
    return _start_broadcast("broadcast_async", tensor, root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Handle:
    """As `broadcast_async`, in place; leave the tensor alone until `synchronize`."""
    caller = "broadcast_async_"
    return _start_broadcast(caller, tensor, root_rank, name, process_set, in_place=True)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """As `broadcast_async`; returns the copy, and can be differentiated.

    As in Horovod, the root's gradient is the average of the ranks' gradients, the others' is zero.
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    """As `broadcast`, in place and without a gradient; returns the tensor."""
    return _start_broadcast(
        "broadcast_", tensor, root_rank, name, process_set, in_place=True
    ).wait()


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: Any
    ) -> Any:
        ctx.root_rank = root_rank
        return _start_broadcast("broadcast", tensor, root_rank, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        group = require_group("broadcast")
        averaged = _average(copy_of(gradient), group)
        is_root = group.rank() == ctx.root_rank
        return averaged if is_root else torch.zeros_like(averaged), None, None, None


def _start_broadcast(
    caller: str,
    tensor: Tensor,
    root_rank: int,
    name: str | None,
    process_set: Any,
    *,
    in_place: bool = False,
) -> Handle:
    group = require_group(caller)
    common.require_all_ranks(process_set, caller)
    given = require_tensor(tensor, caller)
    is_used = in_place and given.is_contiguous() and not given.is_neg() and not given.is_conj()
    buffer = given if is_used else copy_of(given)
    options = BroadcastOptions()
    options.rootRank = _checked_root(root_rank, group, caller)
    options.asyncOp = True
    works = [start_comparison(caller, name), group.broadcast([buffer], options)]

    def finish() -> Tensor:
        if not in_place:
            return buffer
        if not is_used:
            given.copy_(buffer)
        return tensor

    return Handle(works, finish)


def _checked_root(root_rank: Any, group: Any, caller: str) -> int:
    if isinstance(root_rank, int) and 0 <= root_rank < group.size():
        return int(root_rank)
    raise SMDDPConfigInvalid(
        f"hvd.{caller}() got root_rank={root_rank!r}; expected 0 to {group.size() - 1}. Pass a rank"
        " of this job."
    )


def _average(buffer: Tensor, group: Any) -> Tensor:
    """Average a contiguous tensor in place. Blocks."""
    options = AllreduceOptions()
    options.reduceOp = ReduceOp(ReduceOp.AVG)
    group.allreduce([buffer], options).wait()
    return buffer


# ---- alltoall ----------------------------------------------------------------------------------


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Handle:
    """Start to send rows to each rank, and to receive rows from each.

    Args:
        tensor: at least one dimension; all but the first are equal on all ranks.
        splits: how many rows go to each rank, in order of ranks; rows that are left over go
            nowhere. None shares the rows out equally.
        name: compared between the ranks.

    The result of `synchronize` is the rows received, in order of ranks, and how many came from
    each rank: integers of the dtype of `splits` if that is a tensor, else int32.
    """
    return _start_alltoall("alltoall_async", tensor, splits, name, process_set)


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """As `alltoall_async`; returns the rows, and the numbers only if there are `splits`.

    Can be differentiated: gradients go back to where the rows came from.
    """
    rows, received = _Alltoall.apply(tensor, splits, name, process_set)
    return rows if splits is None else (rows, received)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: Any) -> Any:
        rows, received = _start_alltoall("alltoall", tensor, splits, name, process_set).wait()
        ctx.received = received.tolist()
        ctx.shape = tensor.shape
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        sent, _counts = _start_alltoall("alltoall", gradient, ctx.received, None, None).wait()
        whole = sent.new_zeros(ctx.shape)  # rows that went nowhere have no gradient
        whole[: sent.shape[0]] = sent
        return whole, None, None, None


def _start_alltoall(
    caller: str, tensor: Tensor, splits: Any, name: str | None, process_set: Any
) -> Handle:
    group = require_group(caller)
    common.require_all_ranks(process_set, caller)
    given = require_rows(tensor, caller)
    counts = _checked_splits(splits, given.shape[0], group.size(), caller)
    comparison = start_comparison(caller, name)
    gather_shapes([given], group, caller)
    received = _exchange_counts(counts, group)
    output = torch.empty((sum(received), *given.shape[1:]), dtype=given.dtype, device=given.device)
    options = AllToAllOptions()
    options.asyncOp = True
    sent = copy_of(given[: sum(counts)])
    work = group.alltoall(list(output.split(received)), list(sent.split(counts)), options)
    told = torch.int32 if not isinstance(splits, Tensor) else splits.dtype
    where = torch.device("cpu") if not isinstance(splits, Tensor) else splits.device
    numbers = torch.tensor(received, dtype=told, device=where)
    return Handle([comparison, work], lambda: (output, numbers))


def _checked_splits(splits: Any, rows: int, size: int, caller: str) -> list[int]:
    if splits is None:
        if rows % size:
            raise SMDDPConfigInvalid(
                f"hvd.{caller}() got {rows} rows for {size} ranks, which are not equal shares;"
                f" expected a multiple of {size}. Pass splits, or pad the tensor."
            )
        return [rows // size] * size
    counts = torch.as_tensor(splits, device="cpu")
    is_valid = counts.dim() == 1 and not counts.is_floating_point() and len(counts) == size
    if not is_valid or min(counts.tolist()) < 0 or sum(counts.tolist()) > rows:
        raise SMDDPConfigInvalid(
            f"hvd.{caller}() got splits={counts.tolist()} for {rows} rows and {size} ranks;"
            f" expected {size} integers, 0 or more, of a sum up to {rows}. Pass one for each rank."
        )
    return [int(count) for count in counts.tolist()]


def _exchange_counts(counts: Sequence[int], group: Any) -> list[int]:
    mine = torch.tensor(counts, dtype=torch.int64, device="cpu")
    theirs = torch.empty_like(mine)
    group.all_to_all_single(theirs, mine, [], []).wait()
    return [int(count) for count in theirs.tolist()]


# ---- barrier, join -----------------------------------------------------------------------------


def barrier(process_set: Any = global_process_set) -> None:
    """Return when every rank has called it."""
    group = require_group("barrier")
    common.require_all_ranks(process_set, "barrier")
    group.barrier().wait()


def join(device: int = -1) -> int:
    """Say that this rank has no more data; returns the rank that came last. Blocks.

    The ranks must have made equally many collectives: ranks do not answer here for those that have
    left. Which one came last is told by the hosts' clocks; all ranks get the same answer.

    Args:
        device: of no effect.

    Raises:
        SMDDPMismatch: on every rank, if another rank still makes collectives.
    """
    group = require_group("join")
    try:
        group.compare(_JOIN).wait()
        mine = torch.tensor([time.time_ns()], dtype=torch.int64, device="cpu")
        times = torch.empty(group.size(), dtype=torch.int64, device="cpu")
        group.all_gather_single(times, mine).wait()
    except SMDDPMismatch as error:
        raise SMDDPMismatch(
            f"hvd.join(): another rank still makes collectives ({error}). Expected all ranks to"
            f" call it after equally many. {_JOIN_ADVICE}"
        ) from error
    return int(times.argmax())


_JOIN_ADVICE = "Give all ranks equally many batches, as drop_last=True or a padding sampler does"
_JOIN = f"hvd.join(), which it has to wait for here. {_JOIN_ADVICE}"
