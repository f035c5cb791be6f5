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

__all__ = ["add_up"]

# Of fewer a chain of additions is as fast.
_LEAST = 3


def add_up(tensors: Sequence[Any], divisor: int = 1) -> Any:
    """The sum of tensors of one shape, in their order, divided; numbers of any dtype.

    Raises:
        tf.errors.InvalidArgumentError: shapes differ.
    """
    if len(tensors) >= _LEAST and _has_kernel(tensors[0]):
        return kernels.added_up(tensors, divisor)
    total = tensors[0]
    for tensor in tensors[1:]:
        total = tf.add_n([total, tensor])  # which, other than `+`, repeats nothing to fit
    return total if divisor == 1 else total / tf.cast(divisor, total.dtype)


def _has_kernel(tensor: Any) -> bool:
    """It passes over memory once. It is for processors: elsewhere tensors would be copied there."""
    is_of_its_dtypes = tensor.dtype in (tf.float32, tf.float64)
    return is_of_its_dtypes and kernels.are_plain_ones_there() and not _has_accelerators()


@functools.cache
def _has_accelerators() -> bool:
    return any(each.device_type != "CPU" for each in tf.config.list_logical_devices())
