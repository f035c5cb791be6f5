# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Many tensors, few collectives: lists of tensors reduced bucket by bucket.

Source: dataparallel specification, section 6.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from smdistributed import collectives
from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.fusion import TensorSpec, plan_buckets
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of

__all__ = ["InSequence", "all_reduce_fused", "broadcast_fused", "chunks_of", "num_bytes"]


class InSequence:
    """Keeps the collectives of one call in order in graphs of TensorFlow 1.

    Eagerly and in `tf.function` the order token does so, and this does nothing.

        sequence = InSequence()
        for bucket in buckets:
            with sequence:
                sequence.last = operations.all_reduce(bucket, ...)
    """

    def __init__(self) -> None:
        self.last: list[Any] = []
        self._scope: Any = None

    def __enter__(self) -> None:
        is_plain_graph = (
            not tf.executing_eagerly() and not tf.compat.v1.get_default_graph().building_function
        )
        self._scope = (
            tf.control_dependencies(self.last) if is_plain_graph else contextlib.nullcontext()
        )
        self._scope.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._scope.__exit__(*exception)


def num_bytes(shape: Any, dtype: Any) -> int:
    """Size of a tensor, to plan with; 0 where its shape is known at run time only."""
    count = shape.num_elements()
    return 0 if count is None else int(count * dtype.size)


def all_reduce_fused(
    tensors: Sequence[Any],
    op: collectives.ReduceOp,
    key: Callable[[int, int], str],
    label: int,
    *,
    group: Group,
    sizes: Sequence[int],
    bucket_cap_bytes: int | None = None,
    sequence: InSequence | None = None,
) -> list[Any]:
    """Reduces tensors of any dtypes over the ranks of a group, in buckets.

    A bucket is one collective. In a graph it depends on its own tensors alone, and on the bucket
    before it, so it starts while later ones are still computed.

    Args:
        tensors: in the order in which they become ready, the same on all ranks.
        op: what the engine is to do.
        key: for messages: what to call a bucket, by its number, from 1, and their count.
        label: what for, as the ranks compare it; with the bucket's number.
        group: whose ranks.
        sizes: bytes of each, to plan with; the same on all ranks.
        bucket_cap_bytes: default: `SMDDP_BUCKET_CAP_MB`.
        sequence: of the collectives that are to come before and after; default: one for this call.

    Returns:
        New tensors, in the order given.
    """
    cap = process_settings().bucket_cap_bytes if bucket_cap_bytes is None else bucket_cap_bytes
    specs = [
        TensorSpec(name=str(index), num_bytes=size, dtype=tensor.dtype.name)
        for index, (tensor, size) in enumerate(zip(tensors, sizes, strict=True))
    ]
    buckets = plan_buckets(specs, cap, group.size())
    results: list[Any] = [None] * len(tensors)
    sequence = sequence or InSequence()
    for number, bucket in enumerate(buckets, start=1):
        indices = [slot.index for slot in bucket.slots]
        with sequence:
            reduced = operations.all_reduce(
                [tensors[index] for index in indices],
                op,
                key(number, len(buckets)),
                label_of(label, number, len(buckets)),
                group=group.number,
            )
        sequence.last = reduced
        for index, result in zip(indices, reduced, strict=True):
            result.set_shape(tensors[index].shape)
            results[index] = result
    return results


def chunks_of(dtypes: Sequence[Any], sizes: Sequence[int], cap: int) -> list[list[int]]:
    """Which tensors travel together: of one dtype, in their order, up to so many bytes.

    A larger one travels alone.
    """
    chunks: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for index, (dtype, size) in enumerate(zip(dtypes, sizes, strict=True)):
        chunk, filled = filling.get(dtype, ([], 0))
        if not chunk or filled + size > cap:
            chunk, filled = [], 0
            chunks.append(chunk)
        chunk.append(index)
        filling[dtype] = (chunk, filled + size)
    return chunks


def broadcast_fused(
    tensors: Sequence[Any], root: int, what: str, label: int, *, group: Group
) -> list[Any]:
    """Gives all ranks of a group the tensors of one, by a collective for each bucket of a dtype.

    Args:
        tensors: of any dtypes; the same on all ranks but for their values.
        root: whose, by its rank in the group.
        what: for messages: "tensors" makes "broadcast of 12 float32 tensors".
        label: what for, as the ranks compare it.
        group: whose ranks.

    Returns:
        New tensors, in the order given.
    """
    results: list[Any] = [None] * len(tensors)
    sequence = InSequence()
    cap = process_settings().bucket_cap_bytes
    sizes = [num_bytes(tensor.shape, tensor.dtype) for tensor in tensors]
    chunks = chunks_of([tensor.dtype for tensor in tensors], sizes, cap)
    for number, indices in enumerate(chunks, start=1):
        with sequence:
            received = operations.broadcast(
                [tensors[index] for index in indices],
                root,
                f"broadcast of {len(indices)} {tensors[indices[0]].dtype.name} {what}",
                label_of(label, number, len(chunks)),
                group=group.number,
            )
        sequence.last = received
        for index, result in zip(indices, received, strict=True):
            result.set_shape(tensors[index].shape)
            results[index] = result
    return results
