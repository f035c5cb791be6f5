# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Three steps of one row: in one process without the library, and as ranks of a pipeline.

Both draw the same initial values (`keras.utils.set_random_seed`), take the same batches in the same
microbatches, and apply the mean of their gradients with SGD.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras_models.registry import Row, rows
from tests.keras_models.trained import Trained

__all__ = ["MICROBATCHES", "STEPS", "train_in_a_pipeline", "train_whole"]

STEPS = 3
MICROBATCHES = 2


def train_whole(rank: int, world_size: int, name: str, precision: str) -> Trained:
    """In one process, without the library."""
    row = _begin(name, precision)
    model = _wrapped(row, tf.keras.Model)
    optimizer = tf.keras.optimizers.SGD(row.rate)

    def gradients_of(batch: Any) -> tuple[tf.Tensor, list[Any]]:
        with tf.GradientTape() as tape:
            loss = _loss(row, model, batch)
        return loss, tape.gradient(loss, model.trainable_variables)

    in_graph = tf.function(gradients_of)
    batches = _batches(row)
    in_graph.get_concrete_function(_microbatch(batches[0], 0))  # makes the variables
    before = [each.numpy() for each in model.variables]
    losses = []
    began = time.process_time()
    first_call_s = 0.0
    for batch in batches:
        parts = [in_graph(_microbatch(batch, number)) for number in range(MICROBATCHES)]
        first_call_s = first_call_s or time.process_time() - began
        gradients = [_mean(each) for each in zip(*(found for _, found in parts), strict=True)]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses.append(float(sum(loss for loss, _ in parts) / MICROBATCHES))
    after = {place: each.numpy() for place, each in enumerate(model.variables)}
    moved = {place: _distance(after[place], before[place]) for place in after}
    return Trained(losses, _names(model.variables), after, moved, _bytes(after), first_call_s)


def train_in_a_pipeline(rank: int, world_size: int, name: str, precision: str) -> Trained:
    """With a partition for each rank; balanced by memory, so that a small model is divided."""
    import smdistributed.modelparallel.tensorflow as smp

    row = _begin(name, precision)
    settings = {"partitions": world_size, "microbatches": MICROBATCHES, "optimize": "memory"}
    smp.init({**settings, **row.settings})
    model = _wrapped(row, smp.DistributedModel)
    optimizer = tf.keras.optimizers.SGD(row.rate)

    @smp.step
    def step(batch: Any) -> Any:
        loss = _loss(row, model, batch)
        return loss, optimizer.get_gradients(loss, model.trainable_variables)

    losses = []
    began = time.process_time()
    first_call_s = 0.0
    for batch in _batches(row):
        loss, gradients = step(batch)
        first_call_s = first_call_s or time.process_time() - began
        found = [each.accumulate() for each in gradients]
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        losses.append(float(loss.reduce_mean()))
    own = {id(each) for each in model.variables}
    everything = model.smp_all_variables
    values = {place: each.numpy() for place, each in enumerate(everything) if id(each) in own}
    smp.shutdown()
    return Trained(losses, _names(everything), values, {}, _bytes(values), first_call_s)


def _begin(name: str, precision: str) -> Row:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.keras.backend.set_floatx(precision)
    tf.keras.utils.set_random_seed(7)
    return rows()[name]


def _wrapped(row: Row, base: type) -> Any:
    """The row's model as the document wraps it."""
    outside = row.make() if row.is_made_outside else None

    class Model(base):  # type: ignore[misc] # whichever it is
        def __init__(self, given: Any) -> None:
            super().__init__()
            self.inner = row.make() if given is None else given

        def call(self, inputs: Any, training: Any = None) -> Any:
            return self.inner(inputs, training=training)

    return Model(outside)


def _loss(row: Row, model: Any, batch: Any) -> tf.Tensor:
    loss = row.loss(model(_inputs(batch), training=True), batch)
    if row.adds_losses:
        loss += tf.add_n(model.losses)
    return loss


def _inputs(batch: Any) -> Any:
    """What the model takes: one tensor, or several in a dictionary."""
    found = {name: value for name, value in batch.items() if not name.startswith("target")}
    return found["x"] if list(found) == ["x"] else found


def _batches(row: Row) -> list[dict[str, tf.Tensor]]:
    random = np.random.default_rng(3)
    precision = tf.keras.backend.floatx()
    return [
        {
            key: tf.constant(value.astype(precision) if value.dtype.kind == "f" else value)
            for key, value in row.make_batch(random).items()
        }
        for _ in range(STEPS)
    ]


def _microbatch(batch: dict[str, tf.Tensor], number: int) -> dict[str, tf.Tensor]:
    return {key: tf.split(value, MICROBATCHES)[number] for key, value in batch.items()}


def _mean(gradients: Sequence[Any]) -> Any:
    return tf.add_n([tf.convert_to_tensor(each) for each in gradients]) / len(gradients)


def _names(variables: Sequence[Any]) -> list[str]:
    return [str(getattr(each, "path", each.name)) for each in variables]


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    if one.size == 0 or one.dtype.kind not in "fiu":
        return 0.0
    return float(np.abs(one.astype("f8") - other.astype("f8")).max())


def _bytes(values: dict[int, np.ndarray]) -> int:
    return sum(each.nbytes for each in values.values())
