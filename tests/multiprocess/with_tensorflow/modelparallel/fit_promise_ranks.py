# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_fit_promises.py run: what the guide says of `fit`, beside plain Keras.

The reference is plain Keras in one process, with its own `train_step`, on whole batches: models
without BatchNorm, so that means over microbatches are means over a batch.
"""

from __future__ import annotations

import contextlib
import csv
import gc
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fit_ranks
import numpy as np
import tensorflow as tf
from fit_ranks import BATCH, WEIGHTS, X, Y, require_as

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.variables import is_elsewhere
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

K = tf.keras
LAYERS = K.layers
IS_KERAS_3 = not K.Model.__module__.startswith("tf_keras")


@contextlib.contextmanager
def pair(
    size: int, make: Callable[[type], Any], inputs: Any, *, microbatches: int = 2
) -> Iterator[tuple[Any, Any]]:
    """A cut model and one of plain Keras, which begin with the same values; not compiled.

    Args:
        make: a model of this base.
        inputs: arrays, nested as what the model is called with.
    """
    smp.init({"microbatches": microbatches, "partitions": size})
    try:
        K.utils.set_random_seed(1)
        reference = make(K.Model)
        reference(inputs)
        model = make(smp.DistributedModel)
        model(tf.nest.map_structure(lambda each: K.Input(each.shape[1:], dtype=each.dtype), inputs))
        model.set_weights(reference.get_weights())
        yield model, reference
    finally:
        smp.reset()
        gc.collect()


def loss_of_classes() -> Any:
    """Of logits."""
    return K.losses.SparseCategoricalCrossentropy(from_logits=True)


# Scaled losses -----------------------------------------------------------------------------------

SPIKE = 2  # the batch in which a gradient overflows, in each epoch


class Spiking(LAYERS.Layer):  # type: ignore[misc] # Keras has no types
    """Gives what it gets. The gradient of its weight overflows in rows whose spike is large."""

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(name="weight", shape=(), initializer="zeros")

    def call(self, x: Any, spike: Any) -> Any:
        added = tf.cast(self.weight, x.dtype) * tf.cast(spike, x.dtype)
        return x + added - tf.stop_gradient(added)


def spiked(base: type) -> Any:
    """Its last column says where a gradient of one layer overflows."""

    class Spiked(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = LAYERS.Dense(16, activation="tanh")
            self.spiking = Spiking()
            self.last = LAYERS.Dense(3)

        def call(self, x: Any) -> Any:
            return self.last(self.spiking(self.first(x[:, :6]), x[:, 6:]))

    return Spiked()


class Watching(K.callbacks.Callback):  # type: ignore[misc]
    """In which batches the variables that are here have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: list[bool] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Keeps them; in tf-keras they have no values before the first batch."""
        self.before = self._values() if self.changed else None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Compares."""
        after, before = self._values(), self.before
        self.changed.append(before is None or any(map(np.not_equal, before, after)))

    def _values(self) -> list[bytes]:
        return [np.asarray(each).tobytes() for each in self.model.trainable_variables]


def check_a_scaled_loss(rank: int, size: int) -> None:
    """Keras wraps the optimizer by itself; what overflows on one rank, all skip."""
    _check_a_scaled_loss(size, lambda: K.optimizers.SGD(0.1, momentum=0.9))


def check_loss_scale_optimizers(rank: int, size: int) -> None:
    scaling = K.mixed_precision.LossScaleOptimizer
    _check_a_scaled_loss(size, lambda: scaling(K.optimizers.SGD(0.1, global_clipnorm=0.5)))
    growing = {"initial_scale": 256.0, "dynamic_growth_steps": 2}
    _check_a_scaled_loss(size, lambda: scaling(K.optimizers.Adam(0.01), **growing))
    growing["initial_scale"] = 2.0**120
    _check_a_scaled_loss(size, lambda: scaling(K.optimizers.SGD(0.1), **growing), "float32")


def _check_a_scaled_loss(
    size: int, optimizer: Callable[[], Any], policy: str = "mixed_float16"
) -> None:
    x = np.concatenate([X, np.zeros((len(X), 1), np.float32)], axis=1)
    x[SPIKE * BATCH : (SPIKE + 1) * BATCH, 6] = 5e4
    K.mixed_precision.set_global_policy(policy)
    try:
        with pair(size, spiked, x[:BATCH]) as (model, reference):
            watching = [Watching(), Watching()]
            histories = []
            for each, watch in zip((model, reference), watching, strict=True):
                each.compile(optimizer(), loss_of_classes())
                arguments = {"batch_size": BATCH, "epochs": 2, "verbose": 0, "shuffle": False}
                arguments["validation_data"] = (x[:16], Y[:16])
                histories.append(each.fit(x, Y, callbacks=[watch], **arguments).history)
            here = not is_elsewhere(model.spiking.weight)
            assert sum(smp.allgather(here, smp.MP_GROUP)) == 1, "the gradient is on one rank"
            assert watching[0].changed == watching[1].changed, "all ranks skip what one skips"
            batches = len(x) // BATCH
            assert [watching[0].changed[at] for at in (SPIKE, SPIKE + batches)] == [False] * 2
            assert any(watching[0].changed[1:])
            scales = [_scale_of(each.optimizer) for each in (model, reference)]
            assert scales[0] == scales[1], scales
            steps = [int(np.array(each.optimizer.iterations)) for each in (model, reference)]
            assert steps[0] == steps[1], steps
            tolerance = 1e-5 if policy == "float32" else 5e-3
            require_as(model, reference, *histories, tolerance, tolerance)
    finally:
        K.mixed_precision.set_global_policy("float32")


def _scale_of(optimizer: Any) -> float:
    scale = optimizer.dynamic_scale if IS_KERAS_3 else optimizer.loss_scale
    return float(np.array(scale))


# Callbacks ---------------------------------------------------------------------------------------


def check_that_training_stops_early(rank: int, size: int) -> None:
    """After the second epoch, with the weights and statistics after the first."""
    with fit_ranks.models(size) as (model, reference):
        arguments = {"epochs": 6, "batch_size": BATCH, "verbose": 0, "shuffle": False}
        arguments["validation_data"] = (X[:16], Y[:16])
        found, expected = [], []
        for each, history in ((model, found), (reference, expected)):
            stopping = K.callbacks.EarlyStopping(
                monitor="val_loss", patience=1, min_delta=9.0, restore_best_weights=True
            )
            history.append(each.fit(X, Y, callbacks=[stopping], **arguments).history)
            assert stopping.stopped_epoch == 1
        assert len(found[0]["loss"]) == 2
        require_as(model, reference, found[0], expected[0])
        again, once = (each.evaluate(X[:16], Y[:16], verbose=0)[0] for each in (model, reference))
        np.testing.assert_allclose(again, once, 1e-5)
        np.testing.assert_allclose(again, expected[0]["val_loss"][0], 1e-5, err_msg="the best")
        assert abs(again - expected[0]["val_loss"][1]) > 1e-3, "the last are others"


def scalar(name: str, data: Any, step: Any = None, **_: Any) -> Any:
    """What `tf.summary.scalar` calls, which is there where TensorBoard is installed."""
    return tf.summary.write(name, tf.cast(data, tf.float32), step)


TENSORBOARD = {"tensorboard.summary.v2": types.SimpleNamespace(scalar=scalar)}


def events_in(folder: Path) -> dict[str, list[float]]:
    """By tag, the scalars that files of events below a folder have."""
    found: dict[str, list[float]] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag.startswith("epoch_"):
                    number = float(tf.make_ndarray(value.tensor))
                    found.setdefault(f"{path.parent.name}/{value.tag}", []).append(number)
    return found


def check_what_callbacks_write(rank: int, size: int) -> None:
    """Rank 0 alone writes, what plain Keras writes."""
    of_keras = K.callbacks
    with (
        mock.patch.dict(sys.modules, TENSORBOARD),
        tempfile.TemporaryDirectory() as name,
        fit_ranks.models(size, norm=False) as (model, reference),
    ):
        folders = [Path(name, "cut"), Path(name, "whole")]
        arguments = {"epochs": 2, "batch_size": BATCH, "verbose": 0, "shuffle": False}
        arguments["validation_data"] = (X[:16], Y[:16])
        for each, folder in zip((model, reference), folders, strict=True):
            folder.mkdir()
            callbacks = [
                of_keras.CSVLogger(str(folder / "log.csv")),
                of_keras.TensorBoard(str(folder / "board")),
            ]
            each.fit(X, Y, callbacks=callbacks, **arguments)
        if rank != 0:
            assert not list(folders[0].iterdir()), "other ranks write nothing"
        else:
            logs = [list(csv.DictReader((each / "log.csv").open())) for each in folders]
            assert [len(each) for each in logs] == [2, 2]
            for found, expected in zip(*logs, strict=True):
                assert found.keys() == expected.keys()
                values = [[float(each) for each in log.values()] for log in (found, expected)]
                np.testing.assert_allclose(*values, 1e-5, 1e-6)
            found, expected = map(events_in, folders)
            assert found.keys() == expected.keys()
            assert {"train/epoch_loss", "validation/epoch_loss"} <= found.keys()
            for tag, numbers in found.items():
                np.testing.assert_allclose(numbers, expected[tag], 1e-5, 1e-6, err_msg=tag)
        _check_refused_callbacks(model, name)


def _check_refused_callbacks(model: Any, folder: str) -> None:
    """Those that need values of other ranks, on all ranks."""
    module = K.callbacks.Callback.__module__
    orbax = type("OrbaxCheckpoint", (K.callbacks.Callback,), {"__module__": module})
    refusals = {
        "the callback OrbaxCheckpoint saves what this rank has": orbax(),
        "TensorBoard(histogram_freq=1) writes weights of all": K.callbacks.TensorBoard(
            folder, histogram_freq=1
        ),
        "expected embeddings_freq=0": K.callbacks.TensorBoard(folder, embeddings_freq=2),
    }
    for text, callback in refusals.items():
        for method in (model.fit, model.evaluate):
            arguments = {"callbacks": [callback], "batch_size": BATCH, "verbose": 0}
            found = raised(NotImplementedError, method, X, Y, **arguments)
            assert text in found, found


# Data --------------------------------------------------------------------------------------------


def classes(base: type) -> Any:
    """The smallest model of more than one layer."""

    class Classes(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = LAYERS.Dense(7, activation="tanh"), LAYERS.Dense(3)

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

    return Classes()


def check_rows_that_are_missing(rank: int, size: int) -> None:
    """5 rows with 4 microbatches, of which one would be empty; and other numbers."""
    with pair(size, classes, X[:BATCH], microbatches=4) as (model, reference):
        for each in (model, reference):
            weighted = [K.metrics.SparseCategoricalAccuracy(name="weighted")]
            each.compile(loss=loss_of_classes(), metrics=["accuracy"], weighted_metrics=weighted)
        for rows, batch_size in ((5, 32), (5, 2), (1, 32), (9, 8)):
            arguments = {"batch_size": batch_size, "verbose": 0}
            found, expected = (each.predict(X[:rows], **arguments) for each in (model, reference))
            assert found.shape == (rows, 3)
            np.testing.assert_allclose(found, expected, 1e-6, 1e-6)
            arguments["sample_weight"] = WEIGHTS[:rows]
            found, expected = (
                each.evaluate(X[:rows], Y[:rows], **arguments) for each in (model, reference)
            )
            np.testing.assert_allclose(found, expected, 1e-6, 1e-6)


# What scripts write themselves -------------------------------------------------------------------


def require_same_use(
    model: Any, reference: Any, x: Any, y: Any, *, rows: int, fit: Any = None
) -> None:
    """Both train, then evaluate and predict some rows; with equal results.

    Args:
        fit: arguments of `fit` instead of x and y, made anew for each.
    """
    arguments = {"batch_size": BATCH, "verbose": 0}
    given = fit or (lambda: {"x": x, "y": y, "epochs": 2, "shuffle": False, **arguments})
    found, expected = (each.fit(**given()).history for each in (model, reference))
    require_as(model, reference, found, expected)

    def first(values: Any) -> Any:
        return tf.nest.map_structure(lambda each: each[:rows], values)

    found, expected = (
        each.evaluate(first(x), first(y), return_dict=True, **arguments)
        for each in (model, reference)
    )
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], 1e-5, 1e-6, err_msg=name)
    found, expected = (each.predict(first(x), **arguments) for each in (model, reference))
    tf.nest.assert_same_structure(found, expected)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def own_methods(base: type) -> Any:
    """A model with methods of its own that Keras calls."""

    class Own(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = LAYERS.Dense(7, activation="tanh"), LAYERS.Dense(3)
            self.size = K.metrics.Mean(name="size")

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

        def _loss(self, x: Any, y: Any, y_pred: Any) -> Any:
            weights = 1.0 + tf.reduce_max(tf.abs(x), axis=1, keepdims=True)
            return tf.reduce_mean(weights * (y_pred - tf.one_hot(y, 3)) ** 2)

        if IS_KERAS_3:

            def compute_loss(self, x: Any, y: Any, y_pred: Any, weights: Any, training: Any) -> Any:
                return self._loss(x, y, y_pred) * (2.0 if training else 3.0)

        else:

            def compute_loss(self, x: Any, y: Any, y_pred: Any, weights: Any) -> Any:
                return self._loss(x, y, y_pred)

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            self.size.update_state(tf.norm(y_pred, axis=1) + x[:, 0])
            logs = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**logs, "size": self.size.result()}

        def test_step(self, data: Any) -> Any:
            x, y = data
            y_pred = self(x, training=False)
            return self.compute_metrics(x, y, 2.0 * y_pred)

        def predict_step(self, data: Any) -> Any:
            return tf.nn.softmax(self(data[0] if isinstance(data, tuple) else data))

    return Own()


def check_methods_of_the_scripts(rank: int, size: int) -> None:
    with pair(size, own_methods, X[:BATCH]) as (model, reference):
        for each in (model, reference):
            each.compile("sgd", metrics=["accuracy"])
        require_same_use(model, reference, X, Y, rows=5)


def adding_losses(base: type) -> Any:
    """A model whose layers add losses of what they get."""

    class Sizes(LAYERS.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(0.3 * tf.reduce_mean(x**2))
            return x

    class Adding(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = LAYERS.Dense(7, activation="tanh", activity_regularizer="l2")
            self.sizes, self.last = Sizes(), LAYERS.Dense(3, kernel_regularizer="l2")

        def call(self, x: Any) -> Any:
            return self.sizes(self.last(self.first(x)))

    return Adding()


def check_losses_that_layers_add(rank: int, size: int) -> None:
    with pair(size, adding_losses, X[:BATCH]) as (model, reference):
        for each in (model, reference):
            each.compile("sgd", loss_of_classes())
        require_same_use(model, reference, X, Y, rows=16)
        text = raised(Exception, model.evaluate, X[:5], Y[:5], verbose=0)
        assert "layers add losses of their inputs (add_loss, activity_regularizer)" in text, text


def masked(base: type) -> Any:
    """A model whose output has a mask."""

    class Masked(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = LAYERS.Embedding(9, 5, mask_zero=True)
            self.middle = LAYERS.Dense(6, activation="tanh")
            self.last = LAYERS.Dense(3)

        def call(self, x: Any) -> Any:
            return self.last(self.middle(self.words(x)))

    return Masked()


def check_outputs_with_masks(rank: int, size: int) -> None:
    """Each row has as many valid entries, so that means of microbatches are those of batches."""
    random = np.random.default_rng(2)
    words = random.integers(1, 9, (len(X), 4)).astype(np.int32)
    words[np.arange(len(X)), random.integers(0, 4, len(X))] = 0
    labels = random.integers(0, 3, words.shape)
    with pair(size, masked, words[:BATCH]) as (model, reference):
        for each in (model, reference):
            each.compile(K.optimizers.Adam(0.01), loss_of_classes(), weighted_metrics=["accuracy"])
        require_same_use(model, reference, words, labels, rows=5)


def of_dictionaries(base: type) -> Any:
    """A model with several inputs and outputs."""

    class Several(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = LAYERS.Dense(7, activation="tanh"), LAYERS.Dense(7)
            self.kind, self.number = LAYERS.Dense(3), LAYERS.Dense(1)

        def call(self, inputs: Any) -> Any:
            x = self.first(inputs["left"])
            return {"kind": self.kind(x), "number": self.number(x + self.second(inputs["right"]))}

    return Several()


def check_inputs_and_outputs_by_name(rank: int, size: int) -> None:
    """From arrays of which some are for validation, and from a generator."""
    x = {"left": X[:, :4], "right": X[:, 3:]}
    y = {"kind": Y, "number": X[:, :1] * 2}
    arrays = {"x": x, "y": y, "batch_size": BATCH, "validation_split": 0.2, "shuffle": False}

    def batches() -> Iterator[Any]:
        for at in range(0, len(X), BATCH):
            yield tf.nest.map_structure(lambda each, at=at: each[at : at + BATCH], (x, y))

    with pair(size, of_dictionaries, {k: v[:BATCH] for k, v in x.items()}) as (model, reference):
        for each in (model, reference):
            each.compile(
                K.optimizers.Adam(0.01),
                {"kind": loss_of_classes(), "number": "mse"},
                loss_weights={"kind": 0.5, "number": 2.0},
                metrics={"kind": ["accuracy"], "number": ["mae"]},
            )
        for fit in (
            lambda: {**arrays, "epochs": 2, "verbose": 0},
            lambda: {"x": batches(), "steps_per_epoch": len(X) // BATCH, "verbose": 0},
        ):
            require_same_use(model, reference, x, y, rows=5, fit=fit)


def check_training_that_runs_eagerly(rank: int, size: int) -> None:
    with pair(size, classes, X[:BATCH]) as (model, reference):
        for each in (model, reference):
            each.compile("adam", loss_of_classes(), metrics=["accuracy"], run_eagerly=True)
        require_same_use(model, reference, X[:16], Y[:16], rows=5)


def counting(base: type) -> Any:
    """A model that updates a metric in `call`."""

    class Counting(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.last, self.size = LAYERS.Dense(3), K.metrics.Mean(name="size")

        def call(self, x: Any) -> Any:
            self.size.update_state(x)
            return self.last(x)

    return Counting()


def check_that_call_updates_no_metric(rank: int, size: int) -> None:
    with pair(size, counting, X[:BATCH]) as (model, reference):
        for each in (model, reference):
            each.compile("sgd", loss_of_classes())
        if size > 1:
            for use in (model.fit, model.evaluate):
                text = raised(Exception, use, X[:BATCH], Y[:BATCH], verbose=0)
                assert "The metric size is updated in `call`" in text, text
