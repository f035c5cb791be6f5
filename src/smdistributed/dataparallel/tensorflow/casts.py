# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Import this module for its effect: afterwards `Compression.fp16` takes TensorFlow's tensors.

Source: dataparallel specification, section 6.4.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.compression import cast, wide_float_dtype

__all__: list[str] = []

_WIDE_FLOATS = frozenset((tf.float32, tf.float64, tf.bfloat16))


@wide_float_dtype.register(tf.Tensor)
def _(tensor: Any) -> Any:
    return tensor.dtype if tensor.dtype in _WIDE_FLOATS else None


@cast.register(tf.Tensor)
def _(tensor: Any, dtype: Any) -> Any:
    return tf.cast(tensor, tf.float16 if dtype == "float16" else dtype)
