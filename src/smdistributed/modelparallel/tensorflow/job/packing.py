# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Any object as a pickle, and the large blocks of memory in it beside the pickle.

Eager tensors travel as arrays: dtype, shape and values arrive, texts and 16-bit floats included,
and whether they were on a GPU. A variable, of TensorFlow or Keras, travels as its value: the other
rank gets a tensor, and may `assign` it to a variable of its own. Other objects travel as they
pickle; `tf.IndexedSlices` are made of tensors.

Source: modelparallel specification, section 4.7.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed.modelparallel.job.communication import Parcel
from smdistributed.modelparallel.job.pickling import dump, unpickling

__all__ = ["pack", "unpack"]


def pack(obj: Any) -> Parcel:
    """The object as bytes; it must not change until they have been sent.

    Raises:
        TypeError: the object does not pickle; the text names its type.
    """
    stream, blocks = dump(obj, _Pickler)
    as_arrays = [np.frombuffer(memory, np.uint8) for memory in (stream, *blocks)]
    return Parcel(as_arrays[0], tuple(as_arrays[1:]))


def unpack(parcel: Parcel) -> Any:
    """The object.

    Raises:
        TypeError: what the pickle names is not here, or raises.
    """
    with unpickling():
        return pickle.loads(parcel.stream.data, buffers=parcel.blocks)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        value = obj.value if isinstance(obj, _keras_variable()) else obj
        if isinstance(value, tf.Variable):
            value = value.read_value()
        # A symbolic tensor has no value: it pickles as little as TensorFlow says.
        if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
            # Without dimensions it is no array: NumPy knows no single bfloat16, and no text that
            # ends with zeros.
            return _restore, (value.numpy(), value.dtype.name, "GPU" in value.device)
        return NotImplemented


def _keras_variable() -> Any:
    """The class of Keras 3's variables, which are no `tf.Variable`; no class if it is not there."""
    keras = sys.modules.get("keras")
    return getattr(keras, "Variable", ())


def _restore(array: Any, dtype: str, was_on_gpu: bool) -> Any:
    has_gpu = was_on_gpu and tf.config.list_logical_devices("GPU")
    with tf.device("/GPU:0" if has_gpu else "/CPU:0"):
        return tf.convert_to_tensor(array, dtype)
