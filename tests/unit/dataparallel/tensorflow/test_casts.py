# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`Compression` of TensorFlow's tensors, eager and symbolic.

Source: dataparallel specification, section 6.4.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from smdistributed.dataparallel.compression import Compression
from smdistributed.dataparallel.tensorflow import casts  # noqa: F401


@pytest.mark.parametrize(
    ("dtype", "sent"),
    [
        ("float64", "float16"),
        ("float32", "float16"),
        ("bfloat16", "float16"),
        ("float16", "float16"),
        ("int32", "int32"),
        ("uint8", "uint8"),
        ("bool", "bool"),
        ("complex64", "complex64"),
    ],
)
@pytest.mark.parametrize("in_function", [False, True])
def test_fp16(dtype: str, sent: str, in_function: bool) -> None:
    def there_and_back(tensor: tf.Tensor) -> tf.Tensor:
        wire, context = Compression.fp16.compress(tensor)
        assert wire.dtype.name == sent
        assert (wire is tensor) == (dtype == sent)
        return Compression.fp16.decompress(wire, context)

    tensor = tf.cast([1, 0, 1], dtype)
    result = (tf.function(there_and_back) if in_function else there_and_back)(tensor)
    assert result.dtype == tensor.dtype
    assert bool(tf.reduce_all(result == tensor))
