# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives as Python functions in the graph: the fallback where the kernels do not load.

Such an operation keeps one of TensorFlow's threads while it waits. Since one of ours is under way
at a time, that is one thread, and a rank that waits is waiting for nothing of its own: no deadlock,
even with a single thread, but then nothing runs beside it either.

`tf.numpy_function` takes no resource, so two empty assignments to the order token hold it in its
place, one before and one after. It has no gradient either: what `gradients` registers for the
kernels is called for it, by tapes and by `tf.gradients`, of which neither knows of the other's way.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.collectives import Communicator, _native
from smdistributed.dataparallel.exceptions import SMDDPError, SMDDPNotInitialized
from smdistributed.dataparallel.tensorflow.operations.gradients import GRADIENTS, PREFIX
from smdistributed.dataparallel.tensorflow.operations.labels import label_of

__all__ = ["HOLDS_NO_THREAD", "all_gather", "all_reduce", "broadcast", "clear_group", "set_group"]

# While an operation waits.
HOLDS_NO_THREAD = False

_SHAPES_IN_MESSAGES = 3

_groups: dict[int, Communicator] = {}


def set_group(number: int, group: Communicator) -> None:
    """Operations of this number run in this group from now on."""
    _groups[number] = group


def clear_group(number: int) -> None:
    """Operations of this number fail from now on."""
    _groups.pop(number, None)


def all_reduce(
    tensors: Sequence[Any], op: int, token: Any, key: str, label: int, number: int
) -> list[Any]:
    """As `operations.all_reduce`; `op` is of `collectives.ReduceOp`, `number` the group's."""

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
            **_agreement(label, key, arrays),
        )
        return results

    common = {"key": key, "label": label, "group": number}
    what = _Operation("SmddpAllReduce", tensors, {"op": op, **common})
    return _call(what, run, [tensor.shape for tensor in tensors], token)


def broadcast(
    tensors: Sequence[Any], root: int, token: Any, key: str, label: int, number: int
) -> list[Any]:
    """As `operations.broadcast`; `number` is the group's."""

    def run(group: Communicator, arrays: list[Any]) -> list[Any]:
        fused = np.concatenate([array.reshape(-1) for array in arrays])
        agreement = _agreement(label, key, arrays)
        group.native.broadcast_ptr(fused.ctypes.data, fused.size, _code(fused), root, **agreement)
        return _like(fused, arrays)

    common = {"key": key, "label": label, "group": number}
    what = _Operation("SmddpBroadcast", tensors, {"root": root, **common})
    return _call(what, run, [tensor.shape for tensor in tensors], token)


def all_gather(tensor: Any, token: Any, key: str, label: int, number: int) -> Any:
    """As `operations.all_gather`; `number` is the group's."""

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
            **_agreement(label, key, [array[:0]]),
        )
        return [np.concatenate(parts)]

    shape = tf.TensorShape([None, *tensor.shape[1:]])
    common = {"key": key, "label": label, "group": number}
    what = _Operation("SmddpAllGather", [tensor], common)
    return _call(what, run, [shape], token)[0]


@dataclasses.dataclass(frozen=True)
class _Operation:
    """What is called, as `gradients` wants to see it."""

    type: str
    inputs: Sequence[Any]
    attributes: dict[str, Any]

    def get_attr(self, name: str) -> Any:
        """As of TensorFlow's."""
        return self.attributes[name]


def _agreement(label: int, key: str, arrays: list[Any]) -> dict[str, Any]:
    """What the ranks must agree on besides sizes, for the engine: as the kernels do."""
    shapes = [list(array.shape) for array in arrays]
    more = ", ..." if len(shapes) > _SHAPES_IN_MESSAGES else ""
    shown = ", ".join(map(str, shapes[:_SHAPES_IN_MESSAGES])) + more
    purpose = f"{key}, {'shape' if len(shapes) == 1 else 'shapes'} {shown}"
    return {"label": label_of(label, *map(str, shapes)), "purpose": purpose}


def _code(array: Any) -> int:
    """The engine's dtype; by name, since NumPy's buffers cannot tell of bfloat16."""
    code: int = getattr(_native, array.dtype.name.upper())
    return code


def _like(fused: Any, arrays: list[Any]) -> list[Any]:
    ends = np.cumsum([array.size for array in arrays])[:-1]
    parts = np.split(fused, ends)
    return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]


def _call(
    operation: _Operation,
    run: Callable[[Communicator, list[Any]], list[Any]],
    shapes: Sequence[Any],
    token: Any,
) -> list[Any]:
    # Not the operation itself: TensorFlow keeps the function, and it would keep the graph.
    key, number = operation.get_attr("key"), operation.get_attr("group")
    tensors = list(operation.inputs)

    def function(*arrays: Any) -> list[Any]:
        group = _groups.get(number)
        if group is None:
            raise SMDDPNotInitialized(
                f"{key} ran outside of a job, or in a group that has been left; expected one that"
                " is there. Call init() before, and shutdown() or close_group() after, whatever"
                " communicates."
            )
        try:
            return run(group, [np.require(array, requirements="C") for array in arrays])
        except SMDDPError as error:
            raise type(error)(f"{str(error).removesuffix('.')}; in {key}") from error

    if tf.executing_eagerly():
        # Not by `tf.numpy_function`, which does not make an array of a bfloat16 number.
        arrays = [np.asarray(tensor.numpy()) for tensor in tensors]
        results = [tf.convert_to_tensor(result) for result in function(*arrays)]
    else:
        graph = tf.compat.v1.get_default_graph()
        with (
            tf.control_dependencies([_touch(token)]),
            graph.gradient_override_map({"PyFunc": operation.type}),
        ):
            results = tf.numpy_function(function, tensors, [each.dtype for each in tensors])
        _describe(results[0].op, operation)
        with tf.control_dependencies(results):
            after = _touch(token)
        with tf.control_dependencies([after]):
            results = [tf.identity(result) for result in results]
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    from tensorflow.python.eager.record import record_operation  # it is not public

    record_operation(
        operation.type,
        results,
        tensors,
        lambda *upstream: GRADIENTS[operation.type](operation, *upstream),
    )
    return list(results)


def _describe(made: Any, operation: _Operation) -> None:
    """Has TensorFlow's operation say what it does, to its gradient."""
    for name, value in operation.attributes.items():
        kind = "s" if isinstance(value, str) else "i"
        value = value.encode() if isinstance(value, str) else value
        made._set_attr(PREFIX + name, tf.compat.v1.AttrValue(**{kind: value}))


def _touch(token: Any) -> Any:
    """An operation that writes to the token's variable."""
    return tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(True))
