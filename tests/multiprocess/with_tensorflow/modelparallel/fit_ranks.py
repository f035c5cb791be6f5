# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_fit.py run: Keras' loops of a cut model, beside those of plain Keras.

The reference is plain Keras in one process, whose `train_step` goes through the microbatches one by
one and averages their gradients.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.variables import is_elsewhere, raw
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

MICROBATCHES = 2
ROWS, BATCH, EPOCHS = 40, 8, 4  # 20 steps
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((ROWS, 6)).astype(np.float32)
Y = RANDOM.integers(0, 3, ROWS)
WEIGHTS = RANDOM.random(ROWS).astype(np.float32)
LAYERS = tf.keras.layers
PARTITIONS = int(os.environ.get("SMP_TEST_PARTITIONS", "2"))
OPTIMIZERS = {
    "adam": lambda: tf.keras.optimizers.Adam(0.02),
    "adamw": lambda: tf.keras.optimizers.AdamW(0.02),
    "momentum": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
}
OPTIMIZER = OPTIMIZERS[os.environ.get("SMP_TEST_OPTIMIZER", "adam")]
STEPS_PER_EXECUTION = int(os.environ.get("SMP_TEST_STEPS_PER_EXECUTION", "1"))


def network(base: type, *, norm: bool = True) -> Any:
    """A model of either kind."""

    class Network(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = LAYERS.Dense(7, activation="tanh", kernel_regularizer="l2")
            self.norm = LAYERS.BatchNormalization() if norm else LAYERS.Dense(7)
            self.second = LAYERS.Dense(9, activation="tanh")
            self.last = LAYERS.Dense(3)

        def call(self, x: Any, training: Any = None) -> Any:
            x = self.norm(self.first(x), **({"training": training} if norm else {}))
            return self.last(self.second(x))

    return Network()


def network_of_words(base: type, **_: Any) -> Any:
    """A model with few words, which are in each batch several times."""

    class Words(tf.keras.Model if base is Microbatched else base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = LAYERS.Embedding(11, 8)
            self.middle = LAYERS.Dense(5, activation="tanh")
            self.last = LAYERS.Dense(3)

        def call(self, x: Any) -> Any:
            words = tf.clip_by_value(tf.cast(tf.abs(x) * 5, tf.int32), 0, 10)
            return self.last(tf.reduce_mean(self.middle(self.words(words)), axis=1))

    return Words()


def network_that_trains_itself(base: type, **_: Any) -> Any:
    """A model with a `train_step` of its own, in which `mode` says how it calls the model."""

    class Own(base):  # type: ignore[misc]
        mode = "in a step"

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = LAYERS.Dense(7, activation="tanh"), LAYERS.Dense(3)

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

        @smp.step
        def gradients_of(self, x: Any, y: Any) -> Any:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs)
            gradients = self.optimizer.get_gradients(loss, self.trainable_variables)
            return loss, outputs, gradients

        def train_step(self, data: Any) -> Any:
            if base is Microbatched:
                return super().train_step(data)
            if self.mode == "outside of steps":
                self(data[0])
            loss, outputs, gradients = self.gradients_of(*data)
            gradients = [each.accumulate() for each in gradients]
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            if hasattr(self, "_loss_tracker"):  # Keras 3
                self._loss_tracker.update_state(loss.reduce_mean(), tf.shape(data[0])[0])
            return self.compute_metrics(*data, outputs.merge(), None)

    return Own()


class Statistics:
    """Those of each replica, which has its own; in one model, which has them by turns."""

    def __init__(self, variables: Sequence[Any], replicas: int) -> None:
        self.replicas = replicas
        self._shown = variables
        self.kept = [[tf.Variable(np.asarray(v)) for v in variables] for _ in range(replicas)]

    @contextlib.contextmanager
    def of(self, replica: int) -> Iterator[None]:
        """The model reads and updates those of a replica."""
        for mine, shown in zip(self.kept[replica], self._shown, strict=True):
            shown.assign(tf.identity(mine))
        yield
        self.take_shown(replica)

    def take_shown(self, replica: int = 0) -> None:
        """Those that the model has now are those of a replica."""
        for mine, shown in zip(self.kept[replica], self._shown, strict=True):
            mine.assign(tf.convert_to_tensor(shown))


class Microbatched(tf.keras.Model):  # type: ignore[misc] # Keras has no types
    """Plain Keras that trains as pipelines do: their batches joined, microbatch by microbatch."""

    statistics: Statistics

    def set_weights(self, weights: Any) -> None:
        """A callback gives back what the model had: its statistics, too, if it stands for one."""
        super().set_weights(weights)
        if self.statistics.replicas == 1:
            self.statistics.take_shown()

    def train_step(self, data: Any) -> Any:
        """The mean of losses and gradients of the microbatches; metrics of the whole batch."""
        x, y, weights = tf.keras.utils.unpack_x_y_sample_weight(data)
        pieces = MICROBATCHES * self.statistics.replicas
        columns = [[None] * pieces if a is None else tf.split(a, pieces) for a in data]
        columns += [[None] * pieces] * (3 - len(columns))
        losses, outputs, gradients = [], [], []
        for piece, (x_i, y_i, weights_i) in enumerate(zip(*columns, strict=True)):
            with self.statistics.of(piece // MICROBATCHES), tf.GradientTape() as tape:
                outputs.append(self(x_i, training=True))
                losses.append(self.compute_loss(x_i, y_i, outputs[-1], weights_i))
            gradients.append(tape.gradient(losses[-1], self.trainable_variables))
        means = [tf.add_n(each) / pieces for each in zip(*gradients, strict=True)]
        self.optimizer.apply_gradients(zip(means, self.trainable_variables, strict=True))
        return self._told(x, y, outputs, weights, tf.add_n(losses) / pieces)

    def test_step(self, data: Any) -> Any:
        """Each replica's rows by its statistics."""
        x, y, weights = tf.keras.utils.unpack_x_y_sample_weight(data)
        outputs = []
        for replica, x_i in enumerate(tf.split(x, self.statistics.replicas)):
            with self.statistics.of(replica):
                outputs.append(self(x_i, training=False))
        loss = self.compute_loss(x, y, tf.concat(outputs, 0), weights)
        return self._told(x, y, outputs, weights, loss)

    def _told(self, x: Any, y: Any, outputs: Any, weights: Any, loss: Any) -> Any:
        if hasattr(self, "_loss_tracker"):  # Keras 3; in tf-keras the loss does this
            self._loss_tracker.update_state(loss, tf.shape(x)[0])
        return self.compute_metrics(x, y, tf.concat(outputs, 0), sample_weight=weights)


def compiled(model: Any, **arguments: Any) -> Any:
    """The model, compiled alike."""
    model.compile(
        OPTIMIZER(),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="weighted")],
        steps_per_execution=STEPS_PER_EXECUTION,
        **arguments,
    )
    return model


@contextlib.contextmanager
def models(
    size: int, *, joined: int = 1, norm: bool = True, make: Callable[..., Any] = network
) -> Iterator[tuple[Any, Any]]:
    """A cut model, and the reference, which begins with the same values; compiled.

    Args:
        joined: the reference trains on the batches of so many replicas at once.
        norm: with statistics, which are each replica's own.
        make: makes both, of their base classes.
    """
    partitions = size // joined
    smp.init({"microbatches": MICROBATCHES, "partitions": partitions, "horovod": joined > 1})
    try:
        tf.keras.utils.set_random_seed(1)
        reference = make(Microbatched, norm=norm)
        reference(X[:BATCH])
        shown = reference.norm.non_trainable_weights if hasattr(reference, "norm") else []
        reference.statistics = Statistics(shown, joined)
        model = make(smp.DistributedModel, norm=norm)
        model.build((None, 6))
        if not model.variables:  # Keras 3 builds such models when they are called
            model(tf.keras.Input((6,)))
        model.set_weights(reference.get_weights())
        yield compiled(model), compiled(reference)
    finally:
        smp.reset()
        gc.collect()


class RequireOwn(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """In the middle of `fit` a rank has values and slots of its own variables alone."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Looks at all variables, and at those of the optimizer."""
        self.times += 1
        model = self.model
        foreign = [each for each in model.smp_all_variables if is_elsewhere(each)]
        assert foreign or smp.pp_size() == 1
        for each in map(raw, foreign):
            if tf.raw_ops.VarIsInitializedOp(resource=each.handle):
                value = tf.raw_ops.ReadVariableOp(resource=each.handle, dtype=each.dtype)
                assert tf.size(value) == 0, each.path
        own = sum(int(np.prod(each.shape)) for each in model.trainable_variables)
        variables = model.optimizer.variables
        variables = variables() if callable(variables) else variables
        slots = sum(int(np.prod(each.shape)) for each in variables)
        assert slots - 2 <= 2 * own, [each.name for each in variables]


def require_as(
    model: Any, reference: Any, found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """The same history, and the same values of the variables that are here."""
    statistics = getattr(reference, "statistics", None)
    with statistics.of(smp.dp_rank()) if statistics else contextlib.nullcontext():
        _require_as(model, reference, found, expected, rtol, atol)


def _require_as(
    model: Any, reference: Any, found: Any, expected: Any, rtol: float, atol: float
) -> None:
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol, atol, err_msg=name)
    pairs = list(zip(model.smp_all_variables, reference.variables, strict=True))
    for mine, other in pairs:
        if not is_elsewhere(mine):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol, atol)


def callbacks() -> list[Any]:
    """Callbacks that decide from what is logged."""
    of_keras = tf.keras.callbacks
    return [
        of_keras.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.95),
        of_keras.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=9.0, cooldown=0),
        of_keras.EarlyStopping(monitor="val_loss", patience=9, restore_best_weights=True),
    ]


def check_fit_is_as_plain_keras(rank: int, size: int) -> None:
    with models(size) as (model, reference):
        arguments = {"epochs": EPOCHS, "batch_size": BATCH, "verbose": 0, "shuffle": False}
        arguments |= {"sample_weight": WEIGHTS, "validation_data": (X[:16], Y[:16], WEIGHTS[:16])}
        expected = reference.fit(X, Y, callbacks=callbacks(), **arguments)
        looking = RequireOwn()
        found = model.fit(X, Y, callbacks=[*callbacks(), looking], **arguments)
        assert looking.times * STEPS_PER_EXECUTION >= ROWS // BATCH * EPOCHS
        require_as(model, reference, found.history, expected.history)

        arguments = {"batch_size": BATCH, "verbose": 0, "class_weight": {0: 2.0, 1: 0.5, 2: 1.0}}
        # Batches of 5, 5 and 1, whose sizes fit does not know before it has them.
        arguments["validation_data"] = tf.data.Dataset.from_tensor_slices((X[:11], Y[:11])).batch(5)
        expected = reference.fit(X, Y, shuffle=False, **arguments)
        found = model.fit(X, Y, shuffle=False, **arguments)
        require_as(model, reference, found.history, expected.history)
        _check_what_does_not_divide(model, reference)
        if STEPS_PER_EXECUTION == 1:  # else tf-keras wants as many batches
            _check_single_batches(model, reference)
            _check_that_rows_are_shuffled_alike(model)


def _check_what_does_not_divide(model: Any, reference: Any) -> None:
    """5 rows, and 3 and 2: exact."""
    for size in (3, 32):
        arguments = {"batch_size": size, "verbose": 0}
        found = model.evaluate(X[:5], Y[:5], sample_weight=WEIGHTS[:5], **arguments)
        expected = reference.evaluate(X[:5], Y[:5], sample_weight=WEIGHTS[:5], **arguments)
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
        found, expected = (each.predict(X[:5], **arguments) for each in (model, reference))
        assert found.shape == (5, 3)
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


def _check_single_batches(model: Any, reference: Any) -> None:
    for name, arguments in (
        ("train_on_batch", (X[:BATCH], Y[:BATCH])),
        ("test_on_batch", (X[:3], Y[:3])),
        ("predict_on_batch", (X[:3],)),
    ):
        found, expected = (getattr(each, name)(*arguments) for each in (model, reference))
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6, err_msg=name)


def _check_that_rows_are_shuffled_alike(model: Any) -> None:
    context.context()._set_global_seed(None)  # as if the script had set none
    model.optimizer.learning_rate = 0.0
    # A batch of an epoch, so that its loss tells which rows are in it.
    arguments = {"batch_size": BATCH, "epochs": 3, "verbose": 0, "steps_per_epoch": 1}
    losses = [model.fit(X, Y, **arguments).history["loss"] for _ in range(2)]
    for each in smp.allgather(losses, smp.MP_GROUP):
        np.testing.assert_allclose(each, losses, 1e-6)
    assert len({round(each, 5) for one in losses for each in one}) > 4, losses


def check_that_a_rank_may_have_nothing_to_train(rank: int, size: int) -> None:
    """All layers that rank 0 has are frozen between two compiles."""
    with models(size) as (model, reference):
        arguments = {"batch_size": BATCH, "verbose": 0, "shuffle": False}
        for each in (model, reference):
            each.fit(X[:BATCH], Y[:BATCH], **arguments)
        here = [not is_elsewhere(layer.weights[0]) for layer in model.layers]
        frozen = smp.allgather(here, smp.MP_GROUP)[0]
        for each in (model, reference):
            for layer, is_frozen in zip(each.layers, frozen, strict=True):
                layer.trainable = not is_frozen
            compiled(each)
        assert bool(model.trainable_variables) == (rank != 0)
        found, expected = (each.fit(X, Y, **arguments) for each in (model, reference))
        require_as(model, reference, found.history, expected.history)


def check_words_that_a_batch_has_often(rank: int, size: int) -> None:
    """20 steps of Adam with sparse gradients, as plain Keras has them of the whole batch."""
    with models(size, make=network_of_words) as (model, reference):
        arguments = {"epochs": EPOCHS, "batch_size": BATCH, "verbose": 0, "shuffle": False}
        found, expected = (each.fit(X, Y, **arguments) for each in (model, reference))
        require_as(model, reference, found.history, expected.history)


def check_a_train_step_of_the_scripts(rank: int, size: int) -> None:
    with models(size, make=network_that_trains_itself) as (model, reference):

        def batches() -> Iterator[Any]:
            """Of a generator: tf-keras builds the model with the first one."""
            return (tuple(each[at : at + BATCH] for each in (X, Y)) for at in range(0, 32, BATCH))

        arguments = {"steps_per_epoch": 4, "verbose": 0}
        found, expected = (each.fit(batches(), **arguments) for each in (model, reference))
        require_as(model, reference, found.history, expected.history)
        type(model).mode = "outside of steps"
        compiled(model)
        text = raised(Exception, model.fit, X[:BATCH], Y[:BATCH], verbose=0)
        assert "loss, outputs, gradients = self.gradients_of(*data)" in text, text


def check_what_fit_refuses(rank: int, size: int) -> None:
    with models(size) as (model, _):

        def refused(kind: type[Exception], *args: Any, **kwargs: Any) -> str:
            return raised(kind, model.fit, *args, verbose=0, **kwargs)

        text = refused(ValueError, X[:37], Y[:37], batch_size=BATCH)
        assert "argument x: the last batch of its 37 rows in batches of 8 has size 5" in text, text
        assert "not divisible by 2 microbatches" in text, text
        text = refused(ValueError, X, Y, batch_size=BATCH, validation_data=(X[:5], Y[:5]))
        assert "argument validation_data: batches of its 5 rows have size 5" in text, text
        text = refused(ValueError, tf.data.Dataset.from_tensor_slices((X, Y)).batch(5, True))
        assert "argument x: its batches have size 5" in text, text
        assert smp.state.model is model
        everyone = smp.allgather(len(model.trainable_variables), smp.MP_GROUP)
        assert len(set(everyone)) == 1, "nothing has been decided before these errors"

        model.compile("sgd", tf.keras.losses.MeanSquaredError(reduction="sum"))
        text = refused(ValueError, X, X[:, :3], batch_size=BATCH)
        assert "is not averaged over a batch" in text, text
        if hasattr(model, "_loss_tracker"):  # Keras 3 alone has it
            loss = tf.keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
            model.compile("sgd", loss)
            weights = WEIGHTS[:BATCH]
            text = refused(ValueError, X[:BATCH], X[:BATCH, :3], sample_weight=weights)
            assert "divided by the sum of a batch's sample weights" in text, text
        compiled(model, jit_compile=True, experimental_run_tf_function=False)  # the old argument
        assert not model.jit_compile
        text = str(refused(Exception, X[: 8 if rank == 0 else 16], Y[: 8 if rank == 0 else 16]))
        assert "begins fit(8 rows" in text, text
        assert "begins fit(16 rows" in text, text

        rows = ROWS if rank == 0 else ROWS - BATCH
        data = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(BATCH, True)
        text = refused(Exception, data)
        assert "has no batch left in this epoch" in text, text
        assert "drop_remainder=True" in text, text


def check_replicas_train_as_one(rank: int, size: int) -> None:
    joined = size // PARTITIONS
    random = np.random.default_rng(1)
    x = random.standard_normal((joined * ROWS, 6)).astype(np.float32)
    y = random.integers(0, 3, joined * ROWS)
    weights = random.random(joined * ROWS).astype(np.float32)
    few = slice(2 * joined * BATCH)

    def mine(data: Any) -> Any:
        """What this replica has of batches that are joined."""
        rows = data.reshape(-1, joined, BATCH, *data.shape[1:])[:, smp.dp_rank()]
        return rows.reshape(-1, *data.shape[1:])

    with models(size, joined=joined) as (model, reference):
        arguments = {"epochs": EPOCHS, "verbose": 0, "shuffle": False}

        def fit_alone() -> Any:
            return reference.fit(
                x, y, sample_weight=weights, batch_size=joined * BATCH, callbacks=callbacks()[:1],
                validation_data=(x[few], y[few]), **arguments,
            )  # fmt: skip

        expected = _on_rank_0(reference, fit_alone)
        looking = RequireOwn()
        found = model.fit(
            mine(x), mine(y), sample_weight=mine(weights), batch_size=BATCH,
            callbacks=[*callbacks()[:1], looking],
            validation_data=(mine(x[few]), mine(y[few])), **arguments,
        )  # fmt: skip
        assert looking.times == ROWS // BATCH * EPOCHS
        require_as(model, reference, found.history, expected)
        _check_statistics_are_averaged(model, reference)


def _on_rank_0(reference: Any, fit: Callable[[], Any]) -> Any:
    """The history of one process, whose values all ranks have then."""
    variables = [*reference.variables, *itertools.chain(*reference.statistics.kept)]
    history = fit().history if smp.rank() == 0 else None
    values = [np.asarray(each) for each in variables]
    history, values = smp.allgather((history, values), smp.WORLD)[0]
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return history


def _check_statistics_are_averaged(model: Any, reference: Any) -> None:
    """Until then they are each replica's."""
    kept = [[each.numpy() for each in of_one] for of_one in reference.statistics.kept]
    assert all((one != other).any() for one, other in zip(*kept, strict=True))
    smp.average_statistics(model)
    here = 0
    for mine, *theirs in zip(model.norm.non_trainable_weights, *kept, strict=True):
        if not is_elsewhere(mine):
            here += 1
            np.testing.assert_allclose(np.asarray(mine), np.mean(theirs, 0), 1e-5, 1e-6)
    assert sum(smp.allgather(here, smp.MP_GROUP)) == 2, "a mean and a variance"
