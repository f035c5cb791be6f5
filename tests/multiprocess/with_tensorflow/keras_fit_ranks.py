# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_keras.py: `compile` and `fit`, the callbacks, and models that are saved."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from keras_training import (
    BATCH,
    IS_KERAS_3,
    K,
    data,
    distributed_callbacks,
    fit,
    fit_both,
    loop,
    optimizer_arrays,
    share,
    small_model,
)
from tf_ranks import job, raised, require_same_bits

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import (
    SMDDPMismatch,
    SMDDPUnsupported,
)
from smdistributed.dataparallel.tensorflow import keras as sdp_keras
from smdistributed.dataparallel.tensorflow.keras.logs import average_logs


def check_fit_equals_one_process(rank: int, size: int) -> None:
    model, _ = fit_both(rank, size, lambda: K.optimizers.Adam(0.01))
    assert any(
        np.abs(new - old).max() > 1e-2
        for new, old in zip(model.get_weights(), small_model().get_weights(), strict=True)
    ), "it learnt something"
    require_same_bits(*optimizer_arrays(model.optimizer))


def check_fit_with_steps_per_execution(rank: int, size: int) -> None:
    fit_both(rank, size, lambda: K.optimizers.SGD(0.05, momentum=0.9), steps_per_execution=3)


def check_fit_eagerly(rank: int, size: int) -> None:
    fit_both(rank, size, lambda: K.optimizers.SGD(0.05), run_eagerly=True)


def check_metrics_are_averaged(rank: int, size: int) -> None:
    local: list[dict[str, Any]] = []
    averaged: list[dict[str, Any]] = []

    class Before(K.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs.update(note=f"rank {rank}", flag=True, count=rank, each=np.array([rank, 2.0]))
            local.append(dict(logs))

    class After(K.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            averaged.append(dict(logs))

    x, y = data()
    model = small_model()
    model.compile(
        optimizer=sdp.DistributedOptimizer(K.optimizers.SGD(0.01)), loss="mse", metrics=["mae"]
    )
    mine = share(x, rank, size), share(y, rank, size)
    history = fit(
        model,
        *mine,
        size,
        epochs=2,
        validation_data=mine,
        callbacks=[Before(), sdp_keras.callbacks.MetricAverageCallback(), After()],
    )
    assert len(local) == len(averaged) == 2
    for before, after in zip(local, averaged, strict=True):
        assert {"loss", "mae", "val_loss", "val_mae"} <= before.keys() == after.keys()
        for key in ("loss", "mae", "val_loss", "val_mae", "count"):
            of_all = of_ranks(before[key], size)
            assert key == "loss" or len(set(of_all)) > 1, f"{key} is a matter of the rank"
            np.testing.assert_allclose(after[key], np.mean(of_all), rtol=1e-12)
            assert type(after[key]) is float
        assert (after["note"], after["flag"]) == (f"rank {rank}", True)
        assert after["each"].tolist() == [(size - 1) / 2, 2.0]
    assert history.history["val_mae"] == [each["val_mae"] for each in averaged]


def of_ranks(value: float, size: int) -> list[float]:
    from smdistributed.dataparallel.tensorflow import job

    gathered = np.empty(size)
    job.resolve_group(None, "a test").communicator("a test").all_gather(
        gathered, np.array([float(value)])
    )
    return gathered.tolist()


def check_logs_that_differ_between_ranks(rank: int, size: int) -> None:
    logs = {"loss": 1.0, "accuracy": 0.5} if rank else {"loss": 1.0, "val_loss": 2.0}
    text = raised(SMDDPMismatch, average_logs, dict(logs))
    assert "rank 0 also has val_loss" in text
    assert "rank 1 also has accuracy" in text
    assert "Compile the model alike" in text
    text = raised(SMDDPMismatch, average_logs, {"loss": 1.0} if rank else {})
    assert "rank 1 also has loss" in text
    text = raised(SMDDPMismatch, average_logs, {"a": np.zeros(2 + (rank == 1))})
    assert "rank 1 also has a [3]" in text
    logs = {"b": 2.0 * rank, "a": 1.0}
    average_logs(logs)
    assert logs == {"b": float(size - 1), "a": 1.0}
    average_logs({})


def check_the_broadcast_callback(rank: int, size: int) -> None:
    root = size - 1
    seen: list[list[Any]] = []

    class Before(K.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append([*self.model.get_weights(), *optimizer_arrays(self.model.optimizer)])

    model = small_model(seed=rank)
    optimizer = K.optimizers.Adam(0.001 * (rank + 1))
    model.compile(optimizer=sdp.DistributedOptimizer(optimizer), loss="mse")
    x, y = data(1)
    callback = sdp_keras.callbacks.BroadcastGlobalVariablesCallback(root, device="")
    fit(model, x[: BATCH // size], y[: BATCH // size], size, callbacks=[Before(), callback])
    after = [*model.get_weights(), *optimizer_arrays(model.optimizer)]
    require_same_bits(*after)
    for mine, found in zip(seen[0], after, strict=True):
        assert rank != root or np.array_equal(mine, found), "those of the root stay"
    assert rank == root or not np.array_equal(seen[0][0], after[0])
    np.testing.assert_allclose(float(np.asarray(model.optimizer.learning_rate)), 0.001 * size)

    # Once: what becomes different later stays different.
    model.layers[0].bias.assign(tf.fill([6], float(rank)))
    fit(model, x[: BATCH // size], y[: BATCH // size], size, callbacks=[callback])
    spread = of_ranks(model.layers[0].bias.numpy()[0], size)
    assert len(set(spread)) == size

    # Once for each model: of another one the same callback makes the ranks alike, too.
    other = small_model(seed=rank)
    other.compile(
        optimizer=sdp.DistributedOptimizer(K.optimizers.Adam(0.001 * (rank + 1))), loss="mse"
    )
    fit(other, x[: BATCH // size], y[: BATCH // size], size, callbacks=[callback])
    require_same_bits(*other.get_weights(), *optimizer_arrays(other.optimizer))


def check_the_broadcast_leaves_what_is_of_a_rank(rank: int, size: int) -> None:
    from smdistributed.dataparallel.tensorflow.keras import callbacks

    K.utils.set_random_seed(rank)
    model = K.Sequential(
        [
            K.layers.Input((5,)),
            K.layers.BatchNormalization(),
            K.layers.Dropout(0.5),
            K.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=sdp.DistributedOptimizer(K.optimizers.SGD(0.01)), loss="mse", metrics=["mae"]
    )
    fit(model, *data(1))
    chosen = {id(each) for each in callbacks._variables(model)}
    assert {id(each) for each in model.weights} <= chosen
    counted = [each for metric in model.metrics for each in metric.variables]
    assert counted
    assert not chosen & {id(each) for each in counted}
    if IS_KERAS_3:
        seeds = [v for v in model.variables if "seed" in v.path]
        assert seeds
        assert not chosen & {id(each) for each in seeds}


def check_custom_train_step(rank: int, size: int) -> None:
    class WithStep(K.Model):
        def train_step(self, both: Any) -> dict[str, Any]:
            x, y = both
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            gradients = tape.gradient(loss, self.trainable_variables)
            if IS_KERAS_3:  # its `apply_gradients` calls this, too
                self.optimizer.apply(gradients, self.trainable_variables)
            else:
                self.optimizer.apply_gradients(
                    zip(gradients, self.trainable_variables, strict=True)
                )
            return {"loss": loss}

    def make() -> Any:
        plain = small_model()
        return WithStep(plain.inputs, plain.outputs)

    fit_both(rank, size, lambda: K.optimizers.SGD(0.05, momentum=0.9), make, metrics=None)


def check_normalisation_dropout_evaluate_predict(rank: int, size: int) -> None:
    K.utils.set_random_seed(rank)
    model = K.Sequential(
        [
            K.layers.Input((5,)),
            K.layers.Dense(16),
            K.layers.BatchNormalization(),
            K.layers.Dropout(0.3),
            K.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=sdp.DistributedOptimizer(K.optimizers.Adam(0.01)), loss="mse", metrics=["mae"]
    )
    x, y = data()
    mine = share(x, rank, size), share(y, rank, size)
    found = fit(
        model, *mine, size, epochs=2, validation_data=mine, callbacks=distributed_callbacks()
    )
    assert all(np.isfinite(values).all() for values in found.history.values())
    require_same_bits(*[np.asarray(each) for each in model.trainable_variables])
    assert len(model.evaluate(*mine, verbose=0)) == 2
    assert model.predict(x, verbose=0).shape == (len(x), 1)


def check_save_and_load(rank: int, size: int) -> None:
    x, y = data()
    mine = share(x, rank, size), share(y, rank, size)
    model = small_model()
    model.compile(optimizer=sdp.DistributedOptimizer(K.optimizers.Adam(0.01)), loss="mse")
    loop(model, model.optimizer, *mine, size)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        loaded = K.models.load_model(path)
        weights = os.path.join(folder, "all.weights.h5")
        model.save_weights(weights)
        other = small_model(seed=1)
        other.load_weights(weights)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        restored = small_model(seed=1)
        optimizer = sdp.DistributedOptimizer(K.optimizers.Adam(0.01))
        restored.compile(optimizer=optimizer, loss="mse")
        loop(restored, restored.optimizer, *mine, size)
        tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).restore(
            checkpoint.write(os.path.join(folder, "checkpoint"))
        )
    assert type(loaded.optimizer) is K.optimizers.Adam
    for each in (loaded, other, restored):
        for found, expected in zip(each.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(found, expected)
    # A model that is compiled already goes on as if nothing had been.
    assert sdp.DistributedOptimizer(loaded.optimizer) is loaded.optimizer
    for each in (model, loaded, restored):
        loop(each, each.optimizer, *mine, size)
    for each in (loaded, restored):
        require_same_bits(*each.get_weights())
        for found, expected in zip(each.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(found, expected)


def save_trained_model(rank: int, size: int, path: str) -> None:
    with job(rank, size):
        model = small_model()
        model.compile(optimizer=sdp.DistributedOptimizer(K.optimizers.Adam(0.01)), loss="mse")
        loop(model, model.optimizer, *data())
        if rank == 0:
            model.save(path)


def check_a_folder_is_a_saved_model(rank: int, size: int) -> None:
    x, y = data(1)
    model = small_model()
    model.compile(optimizer=sdp.DistributedOptimizer(K.optimizers.SGD(0.1)), loss="mse")
    fit(model, x[: BATCH // size], y[: BATCH // size], size)
    with tempfile.TemporaryDirectory() as folder:
        for name, save in (("1", model.save), ("2", lambda path: K.models.save_model(model, path))):
            path = os.path.join(folder, name)
            save(path)
            loaded = tf.saved_model.load(path)
            serve = loaded.signatures["serving_default"]
            (found,) = serve(tf.constant(x)).values()
            np.testing.assert_allclose(found, model.predict(x, verbose=0), atol=1e-6)


def check_jit_compile(rank: int, size: int) -> None:
    def make() -> Any:
        return sdp.DistributedOptimizer(K.optimizers.SGD(0.1))

    model = small_model()
    text = raised(
        SMDDPUnsupported,
        lambda: (
            model.compile(optimizer=make(), loss="mse", jit_compile=True),
            fit(model, *data(1)),
        ),
    )
    assert "jit_compile=False or leave it out" in text
    model = small_model()
    model.compile(optimizer=make(), loss="mse", jit_compile=False)
    fit(model, *data(1))


def check_keras3_jit_compile_is_not_chosen(rank: int, size: int) -> None:
    import keras

    trainer = next(base for base in keras.Model.__mro__ if base.__name__ == "Trainer")
    chosen = trainer._resolve_auto_jit_compile
    trainer._resolve_auto_jit_compile = lambda self: True  # as on a machine with a GPU
    try:
        plain, model = small_model(), small_model()
        plain.compile(optimizer="sgd", loss="mse")
        assert plain.jit_compile is True
        optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(0.1))
        model.compile(optimizer, "mse", experimental_run_tf_function=False)
        assert model.jit_compile is False
        fit(model, *data(1))
    finally:
        trainer._resolve_auto_jit_compile = chosen


def fit_in_sessions(rank: int, world_size: int) -> tuple[list[float], list[float], str]:
    """Of tf-keras without eager execution: weights, losses, and what the warm-up says."""
    tf.compat.v1.disable_eager_execution()
    sdp.init()
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,), use_bias=False)])
    model.set_weights([np.full([2, 1], float(rank + 1), np.float32)])
    optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.125))
    model.compile(optimizer, loss="mse")
    inputs, outputs = np.full([2, 2], rank + 1.0, np.float32), np.zeros([2, 1], np.float32)
    history = model.fit(
        inputs,
        outputs,
        epochs=2,
        verbose=0,
        callbacks=[
            sdp_keras.callbacks.BroadcastGlobalVariablesCallback(0),
            sdp_keras.callbacks.MetricAverageCallback(),
        ],
    )
    warm_up = sdp_keras.callbacks.LearningRateWarmupCallback(0.125, steps_per_epoch=1)
    refusal = raised(SMDDPUnsupported, model.fit, inputs, outputs, verbose=0, callbacks=[warm_up])
    weights = model.get_weights()[0].ravel().tolist()
    sdp.shutdown()
    return weights, history.history["loss"], refusal
