# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The collectives, by Horovod's names and with its signatures.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import (
    Adasum,
    Average,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    remove_process_set,
    rocm_built,
)
from smdistributed.compat.horovod.tensorflow.averaged import with_averaged_gradient
from smdistributed.compat.horovod.tensorflow.job import (
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_rank_op,
    local_size,
    local_size_op,
    process_set_included_op,
    rank,
    rank_op,
    require_job,
    shutdown,
    size,
    size_op,
    start_timeline,
    stop_timeline,
)
from smdistributed.dataparallel.compression import Compression, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.conversion import require_transportable
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of
from smdistributed.dataparallel.tensorflow.slices import reduce_slices

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

_REDUCE_OPS = {
    Average: sdp.ReduceOp.AVERAGE,
    Sum: sdp.ReduceOp.SUM,
    Min: sdp.ReduceOp.MIN,
    Max: sdp.ReduceOp.MAX,
}


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks; `tf.IndexedSlices` by gathering their rows.

    Args:
        tensor: as for `smdistributed.dataparallel.tensorflow.allreduce`; None gives None.
        average: the older `op`: True is `Average`, False is `Sum`.
        device_dense, device_sparse: empty, or a CPU.
        compression: `Compression.none`, `Compression.fp16`, or a class like them.
        op: `Average`, which None stands for, `Sum`, `Min`, `Max`.
        prescale_factor, postscale_factor: multiply by these before and after.
        name: of this call, the same on all ranks, which compare it.
        process_set: that of all ranks.
        ignore_name_scope: without effect, since scopes are no part of names here.

    Raises:
        SMDDPUnsupported: `Adasum`, `Product`, another device, a process set; factors, `Min` or
            `Max` with `tf.IndexedSlices`.
        SMDDPConfigInvalid: (a ValueError) `average` together with `op`.
        As `smdistributed.dataparallel.tensorflow.allreduce`.
    """
    return _all_reduced(
        [tensor],
        reduce_op(average, op, "allreduce"),
        (device_dense, device_sparse),
        compression,
        (prescale_factor, postscale_factor),
        name,
        process_set,
        "allreduce",
    )[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> Any:
    """As `allreduce`, of several tensors together; a list. An empty list is returned as it is."""
    require_job("grouped_allreduce")
    if not tensors:
        return tensors
    return _all_reduced(
        list(tensors),
        reduce_op(average, op, "grouped_allreduce"),
        (device_dense, device_sparse),
        compression,
        (prescale_factor, postscale_factor),
        name,
        process_set,
        "grouped_allreduce",
    )


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """The rows of all ranks, in rank order. The gradient is the average of the ranks' gradients.

    Args:
        tensor: with at least one dimension, of which the first one may differ between ranks.
        name, ignore_name_scope, process_set: as for `allreduce`.

    Raises:
        SMDDPUnsupported: a process set.
        As `smdistributed.dataparallel.tensorflow.allgather`.
    """
    return _all_gathered([tensor], name, process_set, "allgather")[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> list[Any]:
    """As `allgather`, of several tensors, one after the other; a list."""
    return _all_gathered(tensors, name, process_set, "grouped_allgather")


def _all_gathered(
    tensors: Sequence[Any], name: str | None, process_set: Any, caller: str
) -> list[Any]:
    group = require_job(caller)
    common.require_all_ranks(process_set, caller)
    gathered = sdp.grouped_allgather(tensors, name=name, group=group)
    return [with_averaged_gradient(each, size()) for each in gathered]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """The tensor of one rank, on all. The gradient is the average of the ranks' gradients, there.

    Args:
        tensor: of the same shape and dtype on all ranks.
        root_rank: whose.
        name, ignore_name_scope, process_set: as for `allreduce`.

    Raises:
        SMDDPUnsupported: a process set.
        As `smdistributed.dataparallel.tensorflow.broadcast`.
    """
    group = require_job("broadcast")
    common.require_all_ranks(process_set, "broadcast")
    return with_averaged_gradient(sdp.broadcast(tensor, root_rank, name=name, group=group), size())


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> list[Any]:
    """Sets variables to what they are on one rank; their new values, as tensors.

    The variables travel through buckets and not in their own memory.

    Args:
        variables: in the same order on all ranks.
        root_rank: whose.
        name: without effect: the ranks compare the variables' names.
        process_set: that of all ranks.
    """
    group = require_job("broadcast_")
    common.require_all_ranks(process_set, "broadcast_")
    variables = list(variables)
    done = sdp.broadcast_variables(variables, root_rank, group=group)
    with tf.control_dependencies([] if done is None else [done]):
        return [tf.identity(variable) for variable in variables]


def barrier(process_set: Any = global_process_set) -> None:
    """Waits until all ranks have called it. Raises `SMDDPUnsupported` for a process set."""
    group = require_job("barrier")
    common.require_all_ranks(process_set, "barrier")
    sdp.barrier(group=group)


def join() -> int:
    """Waits until all ranks have run out of data; the rank that came last.

    Here all ranks must call it after equally many collectives: nothing is negotiated, so a rank
    that is done cannot answer for gradients that others still reduce.

    Raises:
        SMDDPMismatch: on all ranks: one of them calls something else, such as another step.
    """
    return sdp.join(group=require_job("join"))


alltoall = common.refused(
    "alltoall",
    "the TensorFlow side exchanges no parts between single ranks",
    "Gather everything with hvd.allgather() and take this rank's part.",
)
reducescatter = common.refused(
    "reducescatter",
    "the TensorFlow side scatters no sums",
    "Call hvd.allreduce() and take this rank's part of the result.",
)
grouped_reducescatter = common.refused(
    "grouped_reducescatter",
    "the TensorFlow side scatters no sums",
    "Call hvd.grouped_allreduce() and take this rank's part of each result.",
)


def handle_average_backwards_compatibility(op: Any, average: bool | None) -> Any:
    """The operation that `op` or the older `average` names: `common.resolve`."""
    return common.resolve(average, op, "handle_average_backwards_compatibility")


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def reduce_op(average: bool | None, op: Any, caller: str) -> Any:
    """As `smdistributed.dataparallel.tensorflow` has it, of Horovod's two arguments.

    Raises:
        As `common.resolve`.
    """
    return _REDUCE_OPS[common.resolve(average, op, caller, tuple(_REDUCE_OPS))]


def _all_reduced(
    tensors: list[Any],
    op: Any,
    devices: tuple[str, str],
    compression: Any,
    factors: tuple[float, float],
    name: str | None,
    process_set: Any,
    caller: str,
) -> list[Any]:
    group = require_job(caller)
    common.require_all_ranks(process_set, caller)
    common.require_host(caller, device_dense=devices[0], device_sparse=devices[1])
    is_sparse = [isinstance(each, tf.IndexedSlices) for each in tensors]
    results = list(tensors)
    dense = [index for index, sparse in enumerate(is_sparse) if not sparse]
    reduced = sdp.grouped_allreduce(
        [tensors[index] for index in dense],
        compression=compression,
        op=op,
        name=name,
        prescale_factor=factors[0],
        postscale_factor=factors[1],
        group=group,
    )
    for index, result in zip(dense, reduced, strict=True):
        results[index] = result
    for index, sparse in enumerate(is_sparse):
        if sparse:
            results[index] = _slices_reduced(tensors[index], op, compression, factors, name, caller)
    return results


def _slices_reduced(
    slices: Any,
    op: Any,
    compression: Any,
    factors: tuple[float, float],
    name: str | None,
    caller: str,
) -> Any:
    if op not in (sdp.ReduceOp.AVERAGE, sdp.ReduceOp.SUM) or factors != (1.0, 1.0):
        raise SMDDPUnsupported(
            f"hvd.{caller}() got tf.IndexedSlices with op=hvd.Min or hvd.Max, or with a factor;"
            " expected hvd.Average or hvd.Sum and no factor, as their rows are gathered. Make a"
            " tensor of them first: tf.convert_to_tensor(slices)."
        )
    called = f"hvd.{caller}()"
    require_transportable(tf.convert_to_tensor(slices.values).dtype, called)
    return reduce_slices(
        slices,
        op,
        resolve_compression(compression),
        f"{called} '{name}'" if name else called,
        label_of("allreduce of slices", name or ""),
        group=resolve_group(require_job(caller), called),
    )
