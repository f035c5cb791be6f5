# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The gradients of our operations, which are collectives as well.

Import this module for its effect: it tells TensorFlow, once for each type of operation. (With
`tf.custom_gradient` TensorFlow keeps a function for each operation of a graph, and with it the
graph, while the process lives.)

Source: our choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from smdistributed.collectives import ReduceOp
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.operations import backend
from smdistributed.dataparallel.tensorflow.operations.calls import all_gather, all_reduce
from smdistributed.dataparallel.tensorflow.operations.labels import label_of
from smdistributed.dataparallel.tensorflow.operations.session_order import as_gradient_of

__all__ = ["GRADIENTS", "PREFIX"]

# Before the names of attributes that an operation of TensorFlow's own has from us.
PREFIX = "_smddp_"


def _of_all_reduce(operation: Any, *upstream: Any) -> list[Any]:
    op, key = ReduceOp(_attribute(operation, "op")), _key(operation)
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise SMDDPUnsupported(
            f"{key}: {op.name} over the ranks has no gradient, and one is to flow through it;"
            " expected AVERAGE or SUM. Use one of these, or tf.stop_gradient() of the result."
        )
    return all_reduce(
        _dense(upstream), op, f"gradient of {key}", _label(operation), group=_group(operation)
    )


def _of_broadcast(operation: Any, *upstream: Any) -> list[Any]:
    key, group = f"gradient of {_key(operation)}", _group(operation)
    sums = all_reduce(_dense(upstream), ReduceOp.SUM, key, _label(operation), group=group)
    if backend.own_rank(group) == _attribute(operation, "root"):
        return sums
    with tf.control_dependencies(sums):  # or sessions of TensorFlow 1 leave out the collective
        return [tf.zeros_like(each) for each in sums]


def _of_all_gather(operation: Any, upstream: Any) -> list[Any]:
    key, label, group = _key(operation), _label(operation), _group(operation)
    (total,) = all_reduce(
        _dense([upstream]), ReduceOp.SUM, f"gradient of {key}", label, group=group
    )
    with tf.control_dependencies([total]):  # nor do they keep the order
        rows = tf.shape(operation.inputs[-1], tf.int64)[:1]
        counts = all_gather(rows, f"rows of {key}", label, group=group)
    rank = backend.own_rank(group) or 0
    begin = tf.reduce_sum(counts[:rank])
    return [total[begin : begin + counts[rank]]]


# By the type of operation: of an operation and what comes from above, for its tensors.
GRADIENTS: dict[str, Callable[..., list[Any]]] = {
    "SmddpAllReduce": _of_all_reduce,
    "SmddpBroadcast": _of_broadcast,
    "SmddpAllGather": _of_all_gather,
}


def _register(name: str, gradient: Callable[..., list[Any]]) -> None:
    @tf.RegisterGradient(f"{name}OrTicket")  # type: ignore[untyped-decorator]
    @tf.RegisterGradient(name)  # type: ignore[untyped-decorator]
    def run(operation: Any, *upstream: Any) -> list[Any]:
        with as_gradient_of(operation):
            if _is_borrowed(operation):
                return gradient(operation, *upstream)
            # Kernels have the order token before the tensors, and may have a ticket behind the
            # results.
            return [None, *gradient(operation, *upstream[: len(operation.inputs) - 1])]


@tf.RegisterGradient("SmddpSettle")  # type: ignore[untyped-decorator]
def _of_settle(operation: Any, *upstream: Any) -> list[Any]:
    """It hands on the results of a collective, which has its own gradient."""
    return [None, None, *upstream]


def _is_borrowed(operation: Any) -> bool:
    """Whether it is one of TensorFlow's own; one of an eager tape has no `type`."""
    return bool(getattr(operation, "type", "") == "PyFunc")


def _attribute(operation: Any, name: str) -> Any:
    return operation.get_attr(PREFIX + name if _is_borrowed(operation) else name)


def _key(operation: Any) -> str:
    return str(tf.compat.as_str(_attribute(operation, "key")))  # graphs have bytes


def _group(operation: Any) -> int:
    """Its number."""
    return int(_attribute(operation, "group"))


def _label(operation: Any) -> int:
    return label_of("gradient", int(_attribute(operation, "label")))


def _dense(upstream: Any) -> list[Any]:
    return [tf.convert_to_tensor(each) for each in upstream]


for _name, _gradient in GRADIENTS.items():
    _register(_name, _gradient)
