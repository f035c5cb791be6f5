# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""From what scripts pass to tensors that can be sent.

Source: dataparallel specification, sections 7.4 and 7.5.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow.gradient_reduction import to_dense

__all__ = ["require_transportable", "to_tensor"]

# The engine's dtypes.
_TRANSPORTABLE = frozenset(
    (
        tf.float16,
        tf.bfloat16,
        tf.float32,
        tf.float64,
        tf.int8,
        tf.int16,
        tf.int32,
        tf.int64,
        tf.uint8,
        tf.uint16,
        tf.uint32,
        tf.uint64,
        tf.bool,
        tf.complex64,
        tf.complex128,
    )
)


def to_tensor(value: Any, caller: str) -> Any:
    """A tensor of the same value, eager or symbolic.

    Args:
        value: a tensor, a variable of TensorFlow or Keras, `tf.IndexedSlices`, a NumPy array, a
            number.
        caller: for messages.

    Raises:
        SMDDPUnsupported: a ragged or sparse tensor.
        SMDDPConfigInvalid: (a ValueError) nothing that is a tensor to TensorFlow.
    """
    if isinstance(value, tf.IndexedSlices):
        return to_dense(value)
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise SMDDPUnsupported(
            f"{caller} got a {type(value).__name__}; expected a dense tensor of the same shape on"
            " all ranks. Convert it: to_tensor() of a ragged one, tf.sparse.to_dense() of a sparse"
            " one."
        )
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise SMDDPConfigInvalid(
            f"{caller} got a {type(value).__name__} that is no tensor to TensorFlow ({error});"
            " expected a tensor, a variable, a NumPy array, a number, or a list of these. Pass one"
            " of them."
        ) from error


def require_transportable(dtype: Any, caller: str) -> None:
    """Refuses what is no block of numbers.

    Raises:
        SMDDPUnsupported: text, resources, variants, quantised and the smallest types.
    """
    if dtype not in _TRANSPORTABLE:
        names = ", ".join(sorted(each.name for each in _TRANSPORTABLE))
        raise SMDDPUnsupported(
            f"{caller} got {dtype.name}, which cannot be sent; expected one of {names}. Leave it"
            " out, or convert it first."
        )
