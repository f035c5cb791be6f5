# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of batches: what is known of them before the first, and those that do not divide.

Source: TensorFlow modelparallel specification, sections 3.2 and 5.4; our choice.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

__all__ = ["Filled", "filled_up", "num_rows", "require_divisible"]

_IS_LEGACY = tf.keras.Model.__module__.startswith("tf_keras")
_DEFAULT = 32  # Keras' batch size


def num_rows(data: Any) -> int | None:
    """Rows of arrays or tensors; None of what gives batches, and where nobody knows."""
    for leaf in tf.nest.flatten(data):
        shape = getattr(leaf, "shape", None)
        if shape is not None and len(shape) > 0 and not isinstance(leaf, tf.data.Dataset):
            return None if shape[0] is None else int(shape[0])
    return None


def require_divisible(
    data: Any,
    argument: str,
    microbatches: int,
    *,
    batch_size: int | None = None,
    steps: int | None = None,
    rows: int | None = None,
) -> None:
    """Fails if it is known that a batch will not divide.

    Args:
        data: arrays, tensors, or a dataset; of anything else nothing is known.
        argument: its name, for the message.
        microbatches: into how many parts batches are cut.
        batch_size, steps: as of `fit`: rows of a batch, batches of an epoch.
        rows: how many of the arrays' rows are used; default: all.

    Raises:
        ValueError: it will not.
    """
    if isinstance(data, tf.data.Dataset):
        size = num_rows(data.element_spec)
        if size is not None and size % microbatches:
            raise _indivisible(argument, size, "its batches have", microbatches)
        return
    rows = num_rows(data) if rows is None else rows
    if rows is None:
        return
    if batch_size is None and steps and _IS_LEGACY:
        batch_size = math.ceil(rows / steps)
    full = min(batch_size or _DEFAULT, rows)
    rest = rows % full if full else 0
    if full % microbatches:
        raise _indivisible(argument, full, f"batches of its {rows} rows have", microbatches)
    if rest % microbatches and (steps is None or steps > rows // full):
        raise _indivisible(
            argument, rest, f"the last batch of its {rows} rows in batches of {full} has",
            microbatches,
        )  # fmt: skip


def _indivisible(argument: str, size: int, which: str, count: int) -> ValueError:
    return ValueError(
        f"fit(): argument {argument}: {which} size {size} along axis 0, which is not divisible by"
        f" {count} microbatches; expected a multiple of {count}. Let every batch have such a size:"
        " choose batch_size and the number of rows so, or pass a tf.data.Dataset that was batched"
        " with drop_remainder=True; or change the parameter microbatches."
    )


@dataclasses.dataclass(frozen=True)
class Filled:
    """A batch whose size divides.

    Attributes:
        values: of the batch, nested as it was.
        size: of the batch as it was: an int, or a tensor; None if all sizes are to stay.
        missing: how many rows were put behind it; likewise.
    """

    values: Any
    size: Any = None
    missing: Any = 0

    def cut(self, output: tf.Tensor) -> tf.Tensor:
        """An output of the model for the batch, without the rows that were put behind."""
        return output if self.size is None else output[: self.size]


def filled_up(values: Any, count: int) -> Filled:
    """A batch in which the last row is repeated until the size is a multiple.

    A row of zeros may be none of which the model makes numbers; the last one is.

    Args:
        values: nested tensors or arrays with a batch axis; others stay.
        count: the size will be a multiple of it.
    """
    values = tf.nest.map_structure(_as_tensor, values)
    batches = [leaf for leaf in tf.nest.flatten(values) if _has_rows(leaf)]
    if not batches or count == 1:
        return Filled(values)
    size = batches[0].shape[0]
    if size is not None and size % count == 0:
        return Filled(values)
    if size is None:
        size = tf.shape(batches[0])[0]
    missing = -size % count
    fill = [
        tf.concat([leaf, tf.repeat(leaf[-1:], missing, axis=0)], axis=0)
        if _has_rows(leaf)
        else leaf
        for leaf in tf.nest.flatten(values)
    ]
    return Filled(tf.nest.pack_sequence_as(values, fill), size, missing)


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if hasattr(value, "__array__") else value


def _has_rows(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank not in (None, 0)
