# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Values that travel from rank to rank, one variable at a time.

A value goes in pieces from where it lies, and a piece waits for its receiver: the sender needs no
memory, and what a receiver holds is what it has asked for.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.collectives import Communicator
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.run.wire import tensor_in

__all__ = ["receive_value", "send_value", "value_of"]

_TAG = 0x534D_0002  # beside that of `job.communication`
_PIECE = 16 << 20  # bytes
_ALIGNMENT = 64
_HEAD = 3  # numbers: dtype, bytes, dimensions


def value_of(variable: Any) -> Any:
    """The value of a `tf.Variable`, in host memory; where it lies there, without a copy."""
    with tf.init_scope(), tf.device(variable.device):
        value = variable.read_value_no_copy()
        with tf.device("/CPU:0"):
            return tf.identity(value)


def send_value(value: Any, dest: int) -> None:
    """Sends an eager tensor to a rank of the world that calls `receive_value`; blocks."""
    array = (
        np.frombuffer(tf.io.serialize_tensor(value).numpy(), np.uint8)
        if value.dtype == tf.string
        # As `numpy()`, which makes a copy.
        else np.ascontiguousarray(value._numpy()).reshape(-1).view(np.uint8)
    )
    shape = value.shape.as_list()
    wire = _wire()
    wire.send(
        np.array([value.dtype.as_datatype_enum, array.size, len(shape)], np.int64), dest, _TAG
    )
    if shape:
        wire.send(np.array(shape, np.int64), dest, _TAG)
    for begin in range(0, array.size, _PIECE):
        wire.send(array[begin : begin + _PIECE], dest, _TAG)


def receive_value(source: int) -> Any:
    """The next eager tensor that a rank of the world sends; blocks."""
    wire = _wire()
    head = np.empty(_HEAD, np.int64)
    wire.recv(head, source, _TAG)
    code, nbytes, dimensions = head.tolist()
    shape = np.empty(dimensions, np.int64)
    if dimensions:
        wire.recv(shape, source, _TAG)
    array = _aligned(nbytes)
    for begin in range(0, nbytes, _PIECE):
        wire.recv(array[begin : begin + _PIECE], source, _TAG)
    dtype = tf.dtypes.as_dtype(code)
    with tf.init_scope(), tf.device("/CPU:0"):
        if dtype == tf.string:
            return tf.io.parse_tensor(array.tobytes(), tf.string)
        value = tensor_in(array, dtype, shape.tolist())
        if value is None:
            value = tf.constant(array.view(dtype.as_numpy_dtype).reshape(shape), dtype)
        return value


def _aligned(nbytes: int) -> Any:
    """Memory that TensorFlow takes as it is."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + nbytes]


def _wire() -> Communicator:
    return state.job.communicators[GroupKind.WORLD]
