# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""An error whose text comes from the graph.

By a kernel of our own it is `tf.errors.AbortedError`, with the text alone. Where the kernels do not
load a Python function raises it, and TensorFlow makes `tf.errors.UnknownError` of that; its text
names AbortedError and ends with a traceback.

Source: our choice.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.operations import kernels

__all__ = ["SCOPE", "raised_if_any"]

SCOPE = "smddp_raise"
"""In the names of the operations that fail."""


def raised_if_any(text: Any) -> Any:
    """Fails with a text, if there is one.

    Args:
        text: a tensor of the graph, string of shape []; empty: all is well.

    Returns:
        A tensor without meaning; what is to run only where all is well depends on it.
    """
    with tf.name_scope(SCOPE):
        if kernels.are_plain_ones_there():
            with tf.device("/CPU:0"):
                return kernels.raised(tf.io.decode_raw(text, tf.uint8))

        def fail() -> Any:
            return tf.numpy_function(_raise, [text], tf.bool)

        return tf.cond(tf.equal(text, ""), lambda: tf.constant(True), fail)


def _raise(text: bytes) -> Any:
    raise tf.errors.AbortedError(None, None, text.decode())
