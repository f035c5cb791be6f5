# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Averages of what Keras logs.

Source: dataparallel specification, section 8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from smdistributed import collectives
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.groups import Group
from smdistributed.dataparallel.tensorflow.job import resolve_group
from smdistributed.dataparallel.tensorflow.operations.labels import label_of

__all__ = ["average_logs"]

_NUMBER_KINDS = "iuf"


def average_logs(logs: MutableMapping[str, Any], group: Group | None = None) -> None:
    """Replaces the numbers of a mapping by their averages over all ranks, or those of a group.

    At once, also where TensorFlow executes nothing eagerly.

    Args:
        logs: numbers, arrays and scalar tensors by name, which become floats and arrays of float64;
            booleans, texts and other objects stay as they are. The same names, with values of the
            same shapes, on all ranks.
        group: of `new_group`; None: all ranks.

    Raises:
        SMDDPMismatch: on all ranks: they have different names or shapes.
    """
    among = resolve_group(group, "MetricAverageCallback")
    if among.size() == 1:
        return
    if tf.executing_eagerly():
        _average(logs, among, lambda tensors: [each.numpy() for each in tensors])
        return
    # In a graph of its own: the model's would grow with each epoch.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        _average(logs, among, session.run)


def _average(
    logs: MutableMapping[str, Any],
    group: Group,
    values_of: Callable[[Sequence[Any]], Sequence[Any]],
) -> None:
    arrays = {key: _as_numbers(logs[key]) for key in sorted(logs)}
    numbers = {key: array for key, array in arrays.items() if array is not None}
    _require_same_on_all_ranks(
        [_describe(key, array) for key, array in numbers.items()], group, values_of
    )
    if not numbers:
        return
    averages = operations.all_reduce(
        [tf.constant(array, tf.float64) for array in numbers.values()],
        collectives.ReduceOp.AVG,
        f"average of {len(numbers)} logged metrics",
        label_of("logged metrics"),
        group=group.number,
    )
    for key, value in zip(numbers, values_of(averages), strict=True):
        logs[key] = float(value) if value.ndim == 0 else value


def _as_numbers(value: Any) -> Any:
    """An array of float64, or None for what is no number."""
    if isinstance(value, tf.Tensor | tf.Variable):
        value = value.numpy()
    if not isinstance(value, int | float | np.generic | np.ndarray):
        return None
    array = np.asarray(value)
    # bfloat16 and the 8-bit floats are strangers to NumPy.
    is_number = array.dtype.kind in _NUMBER_KINDS or "float" in array.dtype.name
    return array.astype(np.float64) if is_number else None


def _describe(key: str, array: Any) -> str:
    return f"{key} {list(array.shape)}" if array.ndim else key


def _require_same_on_all_ranks(
    names: list[str], group: Group, values_of: Callable[[Sequence[Any]], Sequence[Any]]
) -> None:
    """Compares a hash, so that this costs a few bytes while all is well."""
    digest = hashlib.sha256("\n".join(names).encode()).digest()
    code = int.from_bytes(digest[:8], "little", signed=True) // 2  # so that -code is one, too
    (extremes,) = operations.all_reduce(
        [tf.constant([code, -code], tf.int64)],
        collectives.ReduceOp.MAX,
        "names of logged metrics",
        label_of("names of logged metrics"),
        group=group.number,
    )
    greatest, minus_least = values_of([extremes])[0].tolist()
    if greatest == -minus_least:
        return
    text = np.frombuffer("\n".join(names).encode() + b"\0", np.uint8)
    key = "names of logged metrics of all ranks"
    gathered = operations.all_gather(tf.constant(text), key, label_of(key), group=group.number)
    by_rank = [
        set(part.decode().split("\n")) - {""}
        for part in values_of([gathered])[0].tobytes().split(b"\0")[:-1]
    ]
    common = set.intersection(*by_rank)
    differences = "; ".join(
        f"rank {rank} also has {', '.join(sorted(found - common))}"
        for rank, found in zip(group.ranks, by_rank, strict=True)
        if found - common
    )
    raise SMDDPMismatch(
        f"MetricAverageCallback: ranks log different metrics: {differences}; expected the same on"
        " all ranks. Compile the model alike everywhere, validate on all ranks or on none, and put"
        " callbacks that log on some ranks only after this one."
    )
