# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`Compression` of TensorFlow's tensors, eager and symbolic.

Source: dataparallel specification, section 6.4.
"""

from __future__ import annotations

import tensorflow as tf

from smdistributed.dataparallel.compression import Compression
from smdistributed.dataparallel.tensorflow import casts  # noqa: F401
from tests.multiprocess.with_tensorflow.tf_ranks import no_job

around_checks = no_job
SENT = {
    "float64": "float16",
    "float32": "float16",
    "bfloat16": "float16",
    "float16": "float16",
    "int32": "int32",
    "uint8": "uint8",
    "bool": "bool",
    "complex64": "complex64",
}


def there_and_back(tensor: tf.Tensor) -> tf.Tensor:
    wire, context = Compression.fp16.compress(tensor)
    assert wire.dtype.name == SENT[tensor.dtype.name], tensor.dtype
    assert (wire is tensor) == (tensor.dtype == wire.dtype), tensor.dtype
    return Compression.fp16.decompress(wire, context)


def check_fp16(rank: int, size: int) -> None:
    for dtype in SENT:
        tensor = tf.cast([1, 0, 1], dtype)
        for function in (there_and_back, tf.function(there_and_back)):
            result = function(tensor)
            assert result.dtype == tensor.dtype
            assert bool(tf.reduce_all(result == tensor)), dtype
