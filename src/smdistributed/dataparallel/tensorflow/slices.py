# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`tf.IndexedSlices` of all ranks: their rows are gathered, and stand for the sum.

Source: dataparallel specification, section 7.6.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdistributed import collectives
from smdistributed.dataparallel.compression import Compressor
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.autograph import not_converted
from smdistributed.dataparallel.tensorflow.fused import InSequence
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of
from smdistributed.dataparallel.tensorflow.reduce_op import ReduceOp

__all__ = ["reduce_slices"]


@not_converted
def reduce_slices(
    slices: Any,
    op: collectives.ReduceOp,
    compressor: Compressor,
    key: str,
    label: int,
    *,
    group: Group,
    sequence: InSequence | None = None,
) -> Any:
    """The rows of all ranks, one after the other; for AVERAGE divided by the number of ranks.

    Args:
        slices: `tf.IndexedSlices` of a dtype that can be sent; ranks may have different rows, and
            numbers of rows.
        op: AVERAGE or SUM.
        compressor: makes the rows smaller on the way.
        key: for messages: what is reduced.
        label: what for, as the ranks compare it.
        group: whose ranks.
        sequence: of the collectives that are to come before and after; default: one for this call.

    Returns:
        `tf.IndexedSlices` of the same dtypes, which may name a row several times. Averages of
        integers name each row once: what the ranks bring for it is added up, divided in float64,
        and cut off towards zero, as in a dense tensor. With one rank: these rows.

    Raises:
        SMDDPUnsupported: bool, which has no sum.

    Source: specification, section 7.6.
    """
    # What a script gives may be lists.
    values, indices = map(tf.convert_to_tensor, (slices.values, slices.indices))
    slices = tf.IndexedSlices(values, indices, slices.dense_shape)
    if values.dtype.is_bool:
        raise SMDDPUnsupported(
            f"{key} got tf.IndexedSlices of bool, which has no average and no sum; expected"
            " numbers. Cast their values: tf.cast(slices.values, tf.float32)."
        )
    if group.size() == 1:
        return slices
    gathered = _gathered(slices, compressor, key, label, group, sequence or InSequence())
    if op is not ReduceOp.AVERAGE:
        return gathered
    return _averaged(gathered, group.size())


def _gathered(
    slices: Any,
    compressor: Compressor,
    key: str,
    label: int,
    group: Group,
    sequence: InSequence,
) -> Any:
    sent, context = compressor.compress(slices.values)
    # Ranks may count rows in different widths.
    with sequence:
        indices = operations.all_gather(
            tf.cast(slices.indices, tf.int64),
            f"{key}: rows",
            label_of(label, "rows"),
            group=group.number,
        )
    sequence.last = [indices]
    with sequence:
        received = operations.all_gather(
            sent, f"{key}: values", label_of(label, "values"), group=group.number
        )
    sequence.last = [received]
    values = compressor.decompress(received, context)
    if slices.values.shape.rank:
        values.set_shape([None, *slices.values.shape[1:]])
    return tf.IndexedSlices(values, tf.cast(indices, slices.indices.dtype), slices.dense_shape)


def _averaged(slices: Any, count: int) -> Any:
    values, indices = slices.values, slices.indices
    if values.dtype.is_integer:
        # Cut off one by one, the ranks' parts of a row would not add up to its average.
        indices, places = tf.unique(indices)
        total = tf.math.unsorted_segment_sum(values, places, tf.size(indices))
        averaged = tf.cast(tf.cast(total, tf.float64) / count, values.dtype)
    else:
        averaged = values / tf.cast(count, values.dtype)
    return tf.IndexedSlices(averaged, indices, slices.dense_shape)
