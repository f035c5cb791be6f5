# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`allreduce` and its relatives: reduction of whatever a script holds.

Source: dataparallel specification, sections 7.3 and 7.4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed import collectives
from smdistributed.dataparallel.compression import Compression, Compressor, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
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

__all__ = ["allreduce", "grouped_allreduce", "oob_allreduce"]


@not_converted
@teaching("expected allreduce(tensor), or allreduce(tensor, param_index, num_params)")
def allreduce(
    tensor: Any,
    param_index: Any = None,
    num_params: Any = None,
    compression: Any = Compression.none,
    op: Any = None,
    *,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    group: Group | None = None,
) -> Any:
    """Reduces a tensor, or a list of them, over all ranks, or those of a group.

    Prefer `DistributedGradientTape` for gradients, which knows all of a step and reduces them
    together; this reduces what one call brings. Works eagerly and in `tf.function`. Gradients flow
    through AVERAGE and SUM.

    Args:
        tensor: of the same shape on all ranks: a tensor, eager or symbolic, a variable of
            TensorFlow or Keras, a NumPy array, a number, `tf.IndexedSlices`, None, or a list of
            these (any nested structure), which is reduced together.
        param_index, num_params: which of how many parameters this is; used in messages only, so
            wrong ones do no harm. A bool as `param_index` alone is `average`, which stands there
            in scripts for Horovod.
        compression: `Compression.none`, `Compression.fp16`, or a class like them.
        op: `ReduceOp.AVERAGE`, which None stands for, `SUM`, `MIN` or `MAX`.
        name: of this call, the same on all ranks; they compare it before they reduce. Calls of one
            shape in another order on one rank are found out by their names, and by nothing else.
        average: in place of `op`: True is AVERAGE, False is SUM.
        prescale_factor, postscale_factor: multiply by these before and after the reduction: float16
            and bfloat16 in float32, integers in float64, cut off towards zero each time.
        group: of `new_group`, whose ranks alone make the call; None: all ranks.

    Returns:
        A new tensor of the same shape and dtype; for a list, a list; None for None. The same bits
        on all ranks. Averages and multiples of integers are computed in float64, and cut off
        towards zero at the end.

    Raises:
        SMDDPNotInitialized: before `init()`.
        SMDDPConfigInvalid: (a ValueError) another `op` or compression, `op` and `average`, a factor
            that is no number; not a tensor.
        SMDDPUnsupported: a dtype that cannot be sent, or not be reduced so.
        SMDDPMismatch: on all ranks, where their names, shapes or dtypes differ.
        TypeError: other arguments; the text says what to write instead.

    Source: specification, section 7.3; without `param_index` and `num_params`, and what follows
        `name`, our choice.
    """
    is_parameter = isinstance(param_index, int) and not isinstance(param_index, bool)
    if isinstance(param_index, bool) and num_params is None:
        if average is not None:
            raise SMDDPConfigInvalid(
                f"allreduce() got average={param_index} in second place, and average={average};"
                " expected one of them. Leave one out."
            )
        average = param_index
    return _reduce(
        tensor,
        compression,
        _either(op, average, "allreduce()"),
        "allreduce()",
        f"allreduce of parameter {param_index}" if is_parameter else "allreduce",
        label_of("allreduce", name or ""),
        name,
        group,
        factors=_Factors.checked(prescale_factor, postscale_factor, "allreduce()"),
        takes_none=True,
    )


@not_converted
@teaching("expected grouped_allreduce(tensors)")
def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    compression: Any = Compression.none,
    op: Any = None,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    group: Group | None = None,
) -> Any:
    """Reduces several tensors together: `allreduce` of a list, which needs fewer messages.

    Args:
        tensors: a list of what `allreduce` takes.
        compression, op, name, average, prescale_factor, postscale_factor, group: as for
            `allreduce`.

    Returns:
        A list of tensors.

    Raises:
        As `allreduce`.

    Source: our choice: Horovod's name.
    """
    return allreduce(
        list(tensors),
        compression=compression,
        op=op,
        name=name,
        average=average,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        group=group,
    )


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


@dataclasses.dataclass(frozen=True)
class _Factors:
    """What tensors are multiplied by before and after they are reduced."""

    before: float = 1.0
    after: float = 1.0

    @classmethod
    def checked(cls, before: Any, after: Any, caller: str) -> _Factors:
        for argument, given in (("prescale_factor", before), ("postscale_factor", after)):
            if not isinstance(given, int | float | np.number):
                raise SMDDPConfigInvalid(
                    f"{caller} got {argument}={given!r}; expected a Python number, known while the"
                    " call is made. Multiply by a tensor yourself, before or after the call."
                )
        return cls(float(before), float(after))

    def are_neutral(self) -> bool:
        return self.before == self.after == 1.0


def _either(op: Any, average: bool | None, caller: str) -> Any:
    """The `op` of a call that may say `average` instead."""
    if average is None:
        return op
    if op is not None:
        raise SMDDPConfigInvalid(
            f"{caller} got op={op} and average={average}; expected one of them. Leave out average,"
            " the older one."
        )
    return ReduceOp.AVERAGE if average else ReduceOp.SUM


def _reduce(
    value: Any,
    compression: Any,
    op: Any,
    caller: str,
    what: str,
    label: int,
    name: str | None,
    chosen: Group | None,
    factors: _Factors = _Factors(),
    takes_none: bool = False,
) -> Any:
    reduce_op = resolve_op(op, caller)
    compressor = resolve_compression(compression)
    group = resolve_group(chosen, caller)
    leaves = tf.nest.flatten(value)
    tensors = [to_tensor(leaf, caller) for leaf in leaves if leaf is not None or not takes_none]
    for tensor in tensors:
        require_transportable(tensor.dtype, caller)
        _require_defined(tensor.dtype, reduce_op, caller)
        _require_scalable(tensor.dtype, factors, caller)
    is_wide = [tensor.dtype.is_integer and not factors.are_neutral() for tensor in tensors]
    results = [_scaled(tensor, factors.before) for tensor in tensors]
    results = [
        tf.cast(tensor, tf.float64) if wide else tensor
        for tensor, wide in zip(results, is_wide, strict=True)
    ]
    if group.size() > 1 and tensors:
        which = f"{what} '{name}'" if name else what
        key = f"{which} of {_described(tensors)}"
        if not factors.are_neutral():
            key += f", prescale_factor={factors.before}, postscale_factor={factors.after}"
            label = label_of(label, str(factors.before), str(factors.after))
        compressors = [Compression.none if wide else compressor for wide in is_wide]
        results = _reduced(results, compressors, reduce_op, key, label, group)
    results = [
        tf.cast(_scaled(result, factors.after), tensor.dtype)
        for result, tensor in zip(results, tensors, strict=True)
    ]
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    given = iter(results)
    return tf.nest.pack_sequence_as(
        value, [None if leaf is None else next(given) for leaf in leaves]
    )


def _reduced(
    tensors: Sequence[Any],
    compressors: Sequence[Compressor],
    op: collectives.ReduceOp,
    key: str,
    label: int,
    group: Group,
) -> list[Any]:
    compressed = [
        compressor.compress(tensor) for tensor, compressor in zip(tensors, compressors, strict=True)
    ]
    sent = [
        tf.cast(tensor, tf.float64)
        if op is ReduceOp.AVERAGE and tensor.dtype.is_integer
        else tensor
        for tensor, _ in compressed
    ]
    reduced = all_reduce_fused(
        sent,
        op,
        lambda number, count: key if count == 1 else f"{key}, {number} of {count}",
        label,
        group=group,
        sizes=[num_bytes(tensor.shape, tensor.dtype) for tensor in sent],
    )
    return [
        compressor.decompress(tf.cast(result, before.dtype), context)
        for result, (before, context), compressor in zip(
            reduced, compressed, compressors, strict=True
        )
    ]


def _scaled(tensor: Any, factor: float) -> Any:
    if factor == 1.0:
        return tensor
    if tensor.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tf.cast(tensor, tf.float32) * factor, tensor.dtype)
    if tensor.dtype.is_integer:
        return tf.cast(tf.cast(tensor, tf.float64) * factor, tensor.dtype)
    return tensor * tf.cast(factor, tensor.dtype)


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


def _require_scalable(dtype: Any, factors: _Factors, caller: str) -> None:
    if dtype.is_bool and not factors.are_neutral():
        raise SMDDPUnsupported(
            f"{caller} got bool and a factor, which has no multiples; expected numbers. Leave out"
            " prescale_factor and postscale_factor, or cast it: tf.cast(value, tf.float32)."
        )
