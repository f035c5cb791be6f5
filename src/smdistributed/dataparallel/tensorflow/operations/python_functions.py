# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives as Python functions in the graph: the fallback where the kernels do not load.

Such an operation keeps one of TensorFlow's threads while it waits. Since one of ours is under way
at a time, that is one thread, and a rank that waits is waiting for nothing of its own: no deadlock,
even with a single thread, but then nothing runs beside it either.

`tf.numpy_function` takes no resource, so two empty assignments to the order token hold it in its
place, one before and one after.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.collectives import Communicator, _native
from smdistributed.dataparallel.exceptions import SMDDPError, SMDDPNotInitialized

__all__ = ["all_gather", "all_reduce", "broadcast", "clear_group", "set_group"]

_group: Communicator | None = None


def set_group(group: Communicator) -> None:
    """Makes a group the one whose ranks take part."""
    global _group
    _group = group


def clear_group() -> None:
    """Operations fail from now on."""
    global _group
    _group = None


def all_reduce(tensors: Sequence[Any], op: int, token: Any, key: str) -> list[Any]:
    """As `operations.all_reduce`; `op` is of `collectives.ReduceOp`."""

    def run(group: Communicator, arrays: list[Any]) -> list[Any]:
        results = [np.empty_like(array) for array in arrays]
        # One operation all the same, and ranks whose tensors differ in size are told.
        group.native.coalesced_ptr(
            "all_reduce",
            [array.ctypes.data for array in arrays],
            [result.ctypes.data for result in results],
            [array.size for array in arrays],
            _code(arrays[0]),
            op,
        )
        return results

    return _call(run, tensors, [tensor.shape for tensor in tensors], token, key)


def broadcast(tensors: Sequence[Any], root: int, token: Any, key: str) -> list[Any]:
    """As `operations.broadcast`."""

    def run(group: Communicator, arrays: list[Any]) -> list[Any]:
        fused = np.concatenate([array.reshape(-1) for array in arrays])
        group.native.broadcast_ptr(fused.ctypes.data, fused.size, _code(fused), root)
        return _like(fused, arrays)

    return _call(run, tensors, [tensor.shape for tensor in tensors], token, key)


def all_gather(tensor: Any, token: Any, key: str) -> Any:
    """As `operations.all_gather`."""

    def run(group: Communicator, arrays: list[Any]) -> list[Any]:
        (array,) = arrays
        rows = np.empty(group.world_size, np.int64)
        group.all_gather(rows, np.array([array.shape[0]], np.int64))
        parts = [np.empty((count, *array.shape[1:]), array.dtype) for count in rows]
        group.native.all_gather_ptr(
            array.ctypes.data,
            [part.ctypes.data for part in parts],
            [part.size for part in parts],
            _code(array),
        )
        return [np.concatenate(parts)]

    shape = tf.TensorShape([None, *tensor.shape[1:]])
    return _call(run, [tensor], [shape], token, key)[0]


def _code(array: Any) -> int:
    """The engine's dtype; by name, since NumPy's buffers cannot tell of bfloat16."""
    code: int = getattr(_native, array.dtype.name.upper())
    return code


def _like(fused: Any, arrays: list[Any]) -> list[Any]:
    ends = np.cumsum([array.size for array in arrays])[:-1]
    parts = np.split(fused, ends)
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _call(
    run: Callable[[Communicator, list[Any]], list[Any]],
    tensors: Sequence[Any],
    shapes: Sequence[Any],
    token: Any,
    key: str,
) -> list[Any]:
    dtypes = [tensor.dtype for tensor in tensors]

    def function(*arrays: Any) -> list[Any]:
        group = _group
        if group is None:
            raise SMDDPNotInitialized(
                f"{key} ran outside of a job; expected one that has begun. Call init() before, and"
                " shutdown() after, whatever communicates."
            )
        try:
            return run(group, [np.require(array, requirements="C") for array in arrays])
        except SMDDPError as error:
            raise type(error)(f"{str(error).removesuffix('.')}; in {key}") from error

    if tf.executing_eagerly():
        results = tf.numpy_function(function, list(tensors), dtypes)
        results = [results] if tf.is_tensor(results) else results  # it unpacks a list of one
    else:
        with tf.control_dependencies([_touch(token)]):
            results = tf.numpy_function(function, list(tensors), dtypes)
        with tf.control_dependencies(results):
            after = _touch(token)
        with tf.control_dependencies([after]):
            results = [tf.identity(result) for result in results]
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return list(results)


def _touch(token: Any) -> Any:
    """An operation that writes to the token's variable."""
    return tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(True))
