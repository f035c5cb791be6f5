# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a row of docs/keras-models.md is: a public Keras model, small, with random weights.

Each module that `FILES` names holds rows as data, `ROWS`, under a `TITLE`. Nothing is downloaded.
Importing this imports no TensorFlow: `make()` does.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["BATCH", "FILES", "Row", "rows", "sections"]

FILES = ("applications", "own_models")
BATCH = 8

Batch = dict[str, np.ndarray]
Loss = Callable[[Any, Any], Any]


def cross_entropy(scores: Any, batch: Any) -> Any:
    """Of scores or probabilities: what a mean over a microbatch is."""
    import tensorflow as tf

    return tf.keras.losses.SparseCategoricalCrossentropy()(batch["target"], scores)


@dataclasses.dataclass(frozen=True)
class Row:
    """A model and how it is trained.

    Attributes:
        name: in the table, and on the command line.
        make: the model, or the layer.
        make_batch: arrays, cut along their first axis; targets have names that begin so, and a lone
            input is `x`.
        loss: of the model's result and a microbatch.
        rate: of learning.
        settings: of `smp.init`, beside those of all rows.
        adds_losses: the loss contains those that layers add.
        is_made_outside: it is made before the `DistributedModel`, and passed to it.
        refused: a pattern of the library's error, where an error is right.
        remark: what this row is there to show.
    """

    name: str
    make: Callable[[], Any]
    make_batch: Callable[[np.random.Generator], Batch]
    loss: Loss = cross_entropy
    rate: float = 0.05
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    adds_losses: bool = False
    is_made_outside: bool = False
    refused: str = ""
    remark: str = ""


def sections() -> dict[str, tuple[Row, ...]]:
    """All rows, by the title that they stand under."""
    files = [importlib.import_module(f"tests.keras_models.{name}") for name in FILES]
    return {file.TITLE: file.ROWS for file in files}


def rows() -> dict[str, Row]:
    """All rows, by name."""
    found = [row for some in sections().values() for row in some]
    known = {row.name: row for row in found}
    if len(known) < len(found):
        raise ValueError("a name stands twice in the table; give one row another name.")
    return known
