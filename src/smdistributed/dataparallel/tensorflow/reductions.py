# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`allreduce` and `oob_allreduce`: reduction of whatever a script holds.

Source: dataparallel specification, sections 7.3 and 7.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from smdistributed import collectives
from smdistributed.dataparallel.compression import Compression, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import (
    casts,  # noqa: F401  (for its effect)
)
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.conversion import require_transportable, to_tensor
from smdistributed.dataparallel.tensorflow.fused import all_reduce_fused, num_bytes
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp, resolve_op
from smdistributed.dataparallel.tensorflow.teaching import teaching

__all__ = ["allreduce", "oob_allreduce"]


@not_converted
@teaching(
    "expected allreduce(tensor, param_index, num_params): which of how many gradients it is. For"
    " what is no gradient, and for Horovod's allreduce(tensor), call oob_allreduce(tensor)"
)
def allreduce(
    tensor: Any,
    param_index: Any,
    num_params: Any,
    compression: Any = Compression.none,
    op: Any = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> Any:
    """Reduces a tensor, or a list of them, over all ranks, or those of a group.

    Made for gradients, good for any tensor. Prefer `DistributedGradientTape`, which knows all
    gradients of a step and reduces them together; this reduces what one call brings. Works eagerly
    and in `tf.function`. Gradients flow through AVERAGE and SUM.

    Args:
        tensor: of the same shape on all ranks: a tensor, eager or symbolic, a variable of
            TensorFlow or Keras, a NumPy array, a number, `tf.IndexedSlices`, or a list of these
            (any nested structure), which is reduced together.
        param_index, num_params: which of how many parameters this is; used in messages only, so
            wrong ones do no harm.
        compression: `Compression.none`, `Compression.fp16`, or a class like them.
        op: `ReduceOp.AVERAGE`, which None stands for, `SUM`, `MIN` or `MAX`.
        name: of this call, the same on all ranks; they compare it before they reduce. Calls of one
            shape in another order on one rank are found out by their names, and by nothing else.
        group: of `new_group`, whose ranks alone make the call; None: all ranks.

    Returns:
        A new tensor of the same shape and dtype; for a list, a list. The same bits on all ranks.
        Averages of integers are computed in float64 and cut off towards zero.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPConfigInvalid: (a ValueError) another `op` or compression; not a tensor.
        SMDDPUnsupported: a dtype that cannot be sent, or not be reduced so.
        SMDDPMismatch: on all ranks, where their names, shapes or dtypes differ.
        TypeError: without `param_index` and `num_params`; the text says what to call instead.

    Source: specification, section 7.3.
    """
    which = f"allreduce of parameter {param_index}" if isinstance(param_index, int) else "allreduce"
    label = label_of("allreduce", name or "")
    return _reduce(tensor, compression, op, "allreduce()", which, label, name, group)


@not_converted
@teaching("expected oob_allreduce(tensor, compression=, op=, name=)")
def oob_allreduce(
    tensor: Any,
    compression: Any = Compression.none,
    op: Any = ReduceOp.AVERAGE,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> Any:
    """Reduces what is no gradient, out of band: losses, metrics, counters.

        loss = oob_allreduce(loss)

    May be called anywhere between gradient reductions, eagerly and in `tf.function`, by all ranks
    at the same place in the program.

    Args:
        tensor: as for `allreduce`. Python numbers are float32 or int32 as everywhere in
            TensorFlow.
        compression: as for `allreduce`.
        op: as for `allreduce`.
        name, group: as for `allreduce`.

    Returns:
        As `allreduce`.

    Raises:
        As `allreduce`.

    Source: specification, section 7.4.
    """
    label = label_of("oob_allreduce", name or "")
    return _reduce(tensor, compression, op, "oob_allreduce()", "oob_allreduce", label, name, group)


def _reduce(
    value: Any,
    compression: Any,
    op: Any,
    caller: str,
    what: str,
    label: int,
    name: str | None,
    chosen: Group | None,
) -> Any:
    reduce_op = resolve_op(op, caller)
    compressor = resolve_compression(compression)
    group = resolve_group(chosen, caller)
    tensors = [to_tensor(leaf, caller) for leaf in tf.nest.flatten(value)]
    for tensor in tensors:
        require_transportable(tensor.dtype, caller)
        _require_defined(tensor.dtype, reduce_op, caller)
    if group.size() == 1 or not tensors:
        return tf.nest.pack_sequence_as(value, tensors)
    compressed = [compressor.compress(tensor) for tensor in tensors]
    is_average = reduce_op is ReduceOp.AVERAGE
    sent = [
        tf.cast(tensor, tf.float64) if is_average and tensor.dtype.is_integer else tensor
        for tensor, _ in compressed
    ]
    which = f"{what} '{name}'" if name else what
    key = f"{which} of {_described(tensors)}"
    reduced = all_reduce_fused(
        sent,
        reduce_op,
        lambda number, count: key if count == 1 else f"{key}, {number} of {count}",
        label,
        group=group,
        sizes=[num_bytes(tensor.shape, tensor.dtype) for tensor in sent],
    )
    results = []
    for result, (before, context), tensor in zip(reduced, compressed, tensors, strict=True):
        restored = compressor.decompress(tf.cast(result, before.dtype), context)
        restored.set_shape(tensor.shape)
        results.append(restored)
    return tf.nest.pack_sequence_as(value, results)


def _described(tensors: Sequence[Any]) -> str:
    """For messages: ranks that disagree on shapes each say their own."""
    first = f"{tensors[0].dtype.name} {tensors[0].shape}"
    return first if len(tensors) == 1 else f"{len(tensors)} tensors, the first {first}"


def _require_defined(dtype: Any, op: collectives.ReduceOp, caller: str) -> None:
    if dtype.is_bool and op in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise SMDDPUnsupported(
            f"{caller} got bool, which has no average and no sum; expected numbers. Use"
            " op=ReduceOp.MAX for any() over the ranks and op=ReduceOp.MIN for all(), or cast it:"
            " tf.cast(value, tf.float32)."
        )
    if dtype.is_complex and op in (ReduceOp.MIN, ReduceOp.MAX):
        raise SMDDPUnsupported(
            f"{caller} got {dtype.name}, which has no order; expected AVERAGE or SUM. Reduce"
            " tf.abs(value), or its real and imaginary parts."
        )
