# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives as TensorFlow operations: eagerly, in `tf.function`, in graphs of TensorFlow 1.

Two ways to carry them out, one interface:

    kernels            asynchronous kernels through TensorFlow's C API; they hold no thread
    python_functions   `tf.numpy_function`, where this TensorFlow does not take the kernels
    interrupts         Ctrl-C while TensorFlow waits
    order              what keeps them in the order of the program, on all ranks

All have gradients. Bucketing, averaging of integers, sparse tensors and so on are for the callers;
here every call is one collective on tensors of one dtype.

Source: our choice; see docs/tensorflow.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.collectives import Communicator, ReduceOp
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.tensorflow.operations import interrupts
from smdistributed.dataparallel.tensorflow.operations.order import in_order
from smdistributed.dataparallel.tensorflow.xla import require_no_xla

__all__ = ["all_gather", "all_reduce", "broadcast", "close_group", "open_group"]

_backend: Any = None
_group: Communicator | None = None


def open_group(group: Communicator) -> None:
    """Makes a group the one whose ranks take part, and chooses the way.

    Raises:
        SMDDPConfigInvalid: `SMDDP_TF_OPERATIONS=kernels`, and they do not load.
    """
    global _backend, _group
    backend = _agreed(_choose(), group)
    backend.set_group(group)
    _backend, _group = backend, group
    interrupts.watch(group)


def close_group() -> None:
    """Operations fail from now on, wherever they were built."""
    global _group
    if _group is not None:
        interrupts.end_watch()
        _backend.clear_group()
        _group = None


def all_reduce(tensors: Sequence[tf.Tensor], op: ReduceOp, key: str) -> list[tf.Tensor]:
    """Reduces tensors over all ranks, as one collective.

    Args:
        tensors: at least one, of one dtype; the same shapes on all ranks.
        op: SUM, AVG, MIN, MAX. Gradients flow through SUM and AVG.
        key: what for, in messages: "gradients 1 of 3".

    Returns:
        New tensors of the same shapes; the same bits on all ranks.
    """
    require_no_xla()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*inputs: tf.Tensor) -> Any:
        outputs = in_order(lambda token: _backend.all_reduce(list(inputs), int(op), token, key))

        def gradient(*upstream: tf.Tensor) -> Any:
            if op not in (ReduceOp.SUM, ReduceOp.AVG):
                raise LookupError(f"{key}: the gradient of {op.name} is not defined")
            return all_reduce(upstream, op, f"gradient of {key}")

        return outputs, gradient

    return list(run(*tensors))


def broadcast(tensors: Sequence[tf.Tensor], root: int, key: str) -> list[tf.Tensor]:
    """Gives all ranks the tensors of one of them.

    Args:
        tensors: at least one, of one dtype; the same shapes on all ranks.
        root: whose; 0 <= root < number of ranks.
        key: what for, in messages.
    """
    require_no_xla()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(*inputs: tf.Tensor) -> Any:
        outputs = in_order(lambda token: _backend.broadcast(list(inputs), root, token, key))

        def gradient(*upstream: tf.Tensor) -> Any:
            sums = all_reduce(upstream, ReduceOp.SUM, f"gradient of {key}")
            is_root = _group is not None and _group.rank == root
            return sums if is_root else [tf.zeros_like(each) for each in sums]

        return outputs, gradient

    return list(run(*tensors))


def all_gather(tensor: tf.Tensor, key: str) -> tf.Tensor:
    """The rows of all ranks, in rank order.

    Args:
        tensor: at least one dimension; the number of rows may differ between ranks.
        key: what for, in messages.
    """
    require_no_xla()

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(rows: tf.Tensor) -> Any:
        output = _all_gather(rows, key)

        def gradient(upstream: tf.Tensor) -> Any:
            (total,) = all_reduce([upstream], ReduceOp.SUM, f"gradient of {key}")
            counts = _all_gather(tf.shape(rows, tf.int64)[:1], f"rows of {key}")
            rank = 0 if _group is None else _group.rank
            begin = tf.reduce_sum(counts[:rank])
            return total[begin : begin + counts[rank]]

        return output, gradient

    return run(tensor)


def _all_gather(rows: tf.Tensor, key: str) -> tf.Tensor:
    return in_order(lambda token: [_backend.all_gather(rows, token, key)])[0]


def _agreed(backend: Any, group: Communicator) -> Any:
    """What all ranks can do: the two ways do not understand each other."""
    from smdistributed.dataparallel.tensorflow.operations import python_functions

    have_kernels = np.array([backend is not python_functions], np.uint8)
    group.all_reduce(have_kernels, ReduceOp.MIN)
    if have_kernels[0] or backend is python_functions:
        return backend
    get_logger().warning(
        "smddp runs its collectives as Python functions in TensorFlow's graph, since another rank"
        " has no kernels, or has SMDDP_TF_OPERATIONS=python."
    )
    return python_functions


def _choose() -> Any:
    from smdistributed.dataparallel.tensorflow.operations import python_functions

    wanted = process_settings().tf_operations
    if wanted == "python":
        return python_functions
    try:
        from smdistributed.dataparallel.tensorflow.operations import kernels
    except ImportError as error:
        is_available, reason = False, str(error)
    else:
        is_available, reason = kernels.is_available()
        if is_available:
            return kernels
    if wanted == "kernels":
        raise SMDDPConfigInvalid(
            f"SMDDP_TF_OPERATIONS='kernels', and they do not load: {reason}. Leave it unset to use"
            " Python functions then."
        )
    get_logger().warning(
        "smddp runs its collectives as Python functions in TensorFlow's graph: %s. They work, and"
        " hold a thread of TensorFlow's while they wait.",
        reason,
    )
    return python_functions
