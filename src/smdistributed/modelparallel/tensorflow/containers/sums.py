# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sums over microbatches: in their order, so that their bits are the same in every run.

Source: our choice.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.operations import kernels
from smdistributed.dataparallel.tensorflow.xla import is_for_xla

__all__ = ["add_up"]

# Of fewer a chain of additions is as fast.
_LEAST = 3


def add_up(tensors: Sequence[Any], divisor: int = 1) -> Any:
    """The sum of tensors of one shape, in their order, divided; numbers of any dtype.

    Raises:
        tf.errors.InvalidArgumentError: shapes differ.
    """
    # Of a sum that is there, too: in a graph TensorFlow makes of a division by a number another
    # operation, with other bits.
    is_of_sum = divisor > len(tensors)
    if (len(tensors) >= _LEAST or is_of_sum) and _has_kernel(tensors[0]):
        return kernels.added_up(tensors, divisor)
    total = tensors[0]
    for tensor in tensors[1:]:
        total = tf.add_n([total, tensor])  # which, other than `+`, repeats nothing to fit
    return total if divisor == 1 else total / tf.cast(divisor, total.dtype)


def _has_kernel(tensor: Any) -> bool:
    """It passes over memory once. It is for processors: elsewhere tensors would be copied there."""
    if tensor.dtype not in (tf.float32, tf.float64) or is_for_xla():
        return False
    return kernels.are_plain_ones_there() and not _has_accelerators()


@functools.cache
def _has_accelerators() -> bool:
    return any(each.device_type != "CPU" for each in tf.config.list_logical_devices())
