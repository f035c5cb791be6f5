# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of what is gathered or broadcast: Horovod's are averages, ours are sums.

Source: Horovod's public API; see docs/horovod.md.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

__all__ = ["with_averaged_gradient"]


def with_averaged_gradient(tensor: Any, count: int) -> Any:
    """The same tensor; what flows back through it is divided by the number of ranks.

    TensorFlow keeps a function for each call in a graph, and with it the graph.
    """
    if count == 1 or not (tensor.dtype.is_floating or tensor.dtype.is_complex):
        return tensor

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def identity(value: Any) -> tuple[Any, Any]:
        return tf.identity(value), lambda upstream: upstream / tf.cast(count, upstream.dtype)

    return identity(tensor)
