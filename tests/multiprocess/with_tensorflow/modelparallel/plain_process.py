# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A process of plain TensorFlow, without this library: what it makes of what ranks have saved.

Usage: python plain_process.py FOLDER

FOLDER is what `check_what_is_served_needs_no_library` has filled; see there. The model is here, as
nothing of the library may be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

LEGACY = tf.keras.Model.__module__.startswith("tf_keras")
ROWS = np.random.default_rng(0)
X = ROWS.standard_normal((8, 6)).astype(np.float32)
Y = ROWS.integers(0, 3, 8)
BATCHES = (1, 7)  # rows that are served

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: tf.keras.optimizers.Adam(0.01),
    "momentum": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9),
    "adafactor": lambda: tf.keras.optimizers.Adafactor(0.01),
    "nadam": lambda: tf.keras.optimizers.Nadam(0.01),
    "averages": lambda: tf.keras.optimizers.AdamW(0.01, use_ema=True),
    "scaled": lambda: tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(0.01)),
}
if LEGACY:
    OPTIMIZERS["legacy"] = lambda: tf.keras.optimizers.legacy.Adam(0.01)


def model_of(base: type, width: int = 8, more: bool = False, listed: bool = False) -> Any:
    """A model with statistics that are no gradient's, and without a batch size of its own."""

    class Model(base):  # type: ignore[misc]
        def __init__(self, **of_keras: Any) -> None:  # which Keras 3 passes when it loads one
            super().__init__(**of_keras)
            self.first = tf.keras.layers.Dense(width, activation="relu")
            self.norm = tf.keras.layers.BatchNormalization()
            self.second = tf.keras.layers.Dense(8)
            self.more = tf.keras.layers.Dense(8) if more else None
            self.last = tf.keras.layers.Dense(3)
            self.listed = [tf.keras.layers.Dense(8) for _ in range(2)] if listed else []
            self.dropout = tf.keras.layers.Dropout(0.5) if listed else None  # has a state

        def call(self, x: Any, training: bool = False) -> Any:
            x = self.second(self.norm(self.first(x), training=training))
            for each in self.listed:
                x = self.dropout(each(x), training=training)
            return self.last(x if self.more is None else self.more(x))

    return Model()


def plain_model() -> Any:
    """The model of Keras alone, built."""
    model = model_of(tf.keras.Model)
    model(X)
    return model


def variables_of(optimizer: Any) -> list[Any]:
    """Its slots, and what else it has, in either Keras."""
    found = optimizer.variables
    return list(found() if callable(found) else found)


class PlainTraining:
    """What users have who know nothing of ranks."""

    def __init__(self) -> None:
        self.model, self.optimizer = plain_model(), OPTIMIZERS["adam"]()
        self.optimizer.build(self.model.trainable_variables)
        self.counter = tf.Variable(0, dtype=tf.int64)
        self.checkpoint = tf.train.Checkpoint(
            model=self.model, optimizer=self.optimizer, counter=self.counter
        )
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function
        def train(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, self.model(x, training=True))
            variables = self.model.trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        self._train = train

    def steps(self, count: int) -> list[float]:
        """Trains, and returns the losses."""
        return [float(self._train(X, Y)) for _ in range(count)]

    def kept(self) -> list[Any]:
        """All variables of the model and the optimizer."""
        return [*self.model.weights, *variables_of(self.optimizer)]


def require_same_bits(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Fails unless these variables have these values."""
    for each, value in zip(found, expected, strict=True):
        np.testing.assert_array_equal(each.numpy(), value, err_msg=each.name, strict=True)


def _require_that_the_checkpoint_goes_on(folder: Path, saved: Sequence[Any]) -> None:
    restored, assigned = PlainTraining(), PlainTraining()
    status = restored.checkpoint.restore(str(folder / "checkpoints" / "ckpt-1"))
    status.assert_consumed()
    status.assert_existing_objects_matched()
    require_same_bits(restored.kept(), saved)
    assert int(restored.counter) == int(restored.optimizer.iterations) == 2
    for each, value in zip(assigned.kept(), saved, strict=True):
        each.assign(value)
    assert restored.steps(3) == assigned.steps(3)
    values = [each.numpy() for each in assigned.kept()]
    require_same_bits(restored.kept(), values)
    assert any((a != b).any() for a, b in zip(values, saved, strict=True)), "nothing was trained"


def _require_that_keras_loads_all(folder: Path, saved: Sequence[Any]) -> None:
    """With the class that a script has there, which is plain Keras' own."""
    model = plain_model()
    own = {"Model": type(model)}
    weights = saved[: len(model.weights)]
    loaded = tf.keras.models.load_model(folder / "whole.keras", own)
    require_same_bits([*loaded.weights, *variables_of(loaded.optimizer)], saved)
    loaded.fit(X, Y, batch_size=len(X), verbose=0)
    assert int(loaded.optimizer.iterations) == 3
    if LEGACY:  # of a folder it takes the weights alone, of plain Keras' folders as well
        loaded = tf.keras.models.load_model(folder / "folder", own)
        require_same_bits(loaded.weights, weights)
    else:  # whose folders are exported, and no models to it
        exported = tf.saved_model.load(str(folder / "folder"))
        require_same_bits(exported.variables, weights)
        model.set_weights(weights)
        np.testing.assert_allclose(exported.serve(X), model(X), rtol=1e-5)


def _serve(folder: Path) -> None:
    serve = tf.saved_model.load(str(folder / "model")).signatures["serving_default"]
    for rows in BATCHES:
        (result,) = serve(x=tf.constant(np.load(folder / f"batch-{rows}.npy"))).values()
        np.save(folder / f"served-{rows}.npy", result)


def main() -> None:
    """Of the folder that the command line names."""
    folder = Path(sys.argv[1])
    saved = list(np.load(folder / "saved.npz").values())
    _serve(folder)
    _require_that_the_checkpoint_goes_on(folder, saved)
    _require_that_keras_loads_all(folder, saved)
    assert not any(name.partition(".")[0] == "smdistributed" for name in sys.modules)


if __name__ == "__main__":
    main()
