# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_keras.py check: training with Keras 3 and, in another start, tf-keras.

Every check runs on all ranks of 2 or 4. Most compare with the same training in one process, on the
batches of all ranks joined. Names with `_keras3_` or `_tf_keras_` are for that one alone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tf_ranks import raised, require_same_bits

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
    SMDDPMismatch,
    SMDDPUnsupported,
)
from smdistributed.dataparallel.tensorflow import keras as sdp_keras
from smdistributed.dataparallel.tensorflow.keras.logs import average_logs
from smdistributed.dataparallel.tensorflow.optimizers import reducer as reducer_module

K = tf.keras
IS_KERAS_3 = os.environ.get("TF_USE_LEGACY_KERAS") != "1"
BATCH = 8  # of all ranks together
STEPS = 6


def data(steps: int = STEPS) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(steps * BATCH, 5)).astype("float32")
    return x, (x[:, :1] * 2 - x[:, 1:2] * x[:, 2:3]).astype("float32")


def share(array: Any, rank: int, size: int) -> Any:
    """A rank's part of each batch."""
    batches = array.reshape(-1, size, BATCH // size, *array.shape[1:])
    return batches[:, rank].reshape(-1, *array.shape[1:])


def small_model(seed: int = 7) -> Any:
    K.utils.set_random_seed(seed)
    return K.Sequential(
        [K.layers.Input((5,)), K.layers.Dense(6, activation="tanh"), K.layers.Dense(1)]
    )


def fit(model: Any, x: Any, y: Any, size: int = 1, **kwargs: Any) -> Any:
    return model.fit(x, y, batch_size=BATCH // size, shuffle=False, verbose=0, **kwargs)


def distributed_callbacks() -> list[Any]:
    return [
        sdp_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        sdp_keras.callbacks.MetricAverageCallback(),
    ]


def optimizer_arrays(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    return [np.asarray(v) for v in (variables() if callable(variables) else variables)]


def require_close(weights: Any, expected: Any, steps: int) -> None:
    """1e-6 relative per step, of the scale of each tensor; and the same bits on all ranks."""
    for mine, theirs in zip(weights, expected, strict=True):
        scale = np.abs(theirs).max() + 1e-3
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6 * steps * scale)
    require_same_bits(*weights)


def on_rank_0(rank: int, compute: Any) -> list[Any]:
    """Arrays that rank 0 computes while the others leave it the processors."""
    from smdistributed.dataparallel.tensorflow import job

    payload = pickle.dumps(compute()) if rank == 0 else b""
    length = np.array([len(payload)])
    group = job.communicator("a test")
    group.broadcast(length, 0)
    content = np.frombuffer(payload or bytes(length[0]), np.uint8).copy()
    group.broadcast(content, 0)
    arrays: list[Any] = pickle.loads(content.tobytes())
    return arrays


def loop(model: Any, optimizer: Any, x: Any, y: Any, size: int = 1, epochs: int = 1) -> None:
    """A loop of one's own, eagerly: many times quicker than `fit`, which traces."""
    batch = BATCH // size
    for start in list(range(0, len(x), batch)) * epochs:
        with tf.GradientTape() as tape:
            error = model(x[start : start + batch], training=True) - y[start : start + batch]
            loss = tf.reduce_mean(tf.square(error))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def loop_both(
    rank: int, size: int, make_optimizer: Any, make_model: Any = small_model, **arguments: Any
) -> Any:
    """The optimizer, having trained a model; compared with one process."""
    x, y = data()

    def reference() -> list[Any]:
        model = make_model()
        loop(model, make_optimizer(), x, y, epochs=2)
        weights: list[Any] = model.get_weights()
        return weights

    model = make_model()
    optimizer = sdp.DistributedOptimizer(make_optimizer(), **arguments)
    loop(model, optimizer, share(x, rank, size), share(y, rank, size), size, epochs=2)
    require_close(model.get_weights(), on_rank_0(rank, reference), 2 * STEPS)
    return optimizer


def fit_both(
    rank: int,
    size: int,
    make_optimizer: Any,
    make_model: Any = small_model,
    **compiling: Any,
) -> tuple[Any, Any]:
    """(model, history) of `fit` with the callbacks; compared with one process."""
    x, y = data()
    compiling = {"loss": "mse", "metrics": ["mae"], **compiling}

    def reference() -> list[Any]:
        model = make_model()
        model.compile(optimizer=make_optimizer(), **compiling)
        history = fit(model, x, y, epochs=2).history
        return [model.get_weights(), optimizer_arrays(model.optimizer), history]

    weights, state, expected = on_rank_0(rank, reference)
    model = make_model()
    model.compile(optimizer=sdp.DistributedOptimizer(make_optimizer()), **compiling)
    found = fit(
        model,
        share(x, rank, size),
        share(y, rank, size),
        size,
        epochs=2,
        callbacks=distributed_callbacks(),
    ).history
    require_close(model.get_weights(), weights, 2 * STEPS)
    for mine, theirs in zip(optimizer_arrays(model.optimizer), state, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    assert found.keys() == expected.keys()
    for key, values in found.items():
        np.testing.assert_allclose(values, expected[key], rtol=1e-5)
    return model, found


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
    job.communicator("a test").all_gather(gathered, np.array([float(value)]))
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


def check_loops_of_ones_own(rank: int, size: int) -> None:
    for make in (
        lambda: K.optimizers.SGD(0.05, momentum=0.9),
        lambda: K.optimizers.Adam(0.01),
    ):
        optimizer = loop_both(rank, size, make)
        # The documented line, in both Kerases, and that of Keras 3.
        sdp.broadcast_variables(optimizer.variables(), root_rank=0)
        sdp.broadcast_variables(optimizer.variables, root_rank=0)


def check_a_loop_in_a_function(rank: int, size: int) -> None:
    x, y = data()

    def train(model: Any, optimizer: Any, xs: Any, ys: Any, batch: int) -> list[Any]:
        @tf.function
        def step(xb: Any, yb: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(xb, training=True) - yb))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        for start in range(0, len(xs), batch):
            step(xs[start : start + batch], ys[start : start + batch])
        weights: list[Any] = model.get_weights()
        return weights

    expected = on_rank_0(rank, lambda: train(small_model(), K.optimizers.Adam(0.01), x, y, BATCH))
    optimizer = sdp.DistributedOptimizer(K.optimizers.Adam(0.01))
    mine = share(x, rank, size), share(y, rank, size)
    require_close(train(small_model(), optimizer, *mine, BATCH // size), expected, STEPS)


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


def check_clipping_follows_reduction(rank: int, size: int) -> None:
    for clip in ({"clipnorm": 0.05}, {"global_clipnorm": 0.05}, {"clipvalue": 0.01}):
        loop_both(rank, size, lambda clip=clip: K.optimizers.SGD(0.1, **clip))


def check_arguments(rank: int, size: int) -> None:
    small = 128 / 1024 / 1024
    loop_both(rank, size, lambda: K.optimizers.SGD(0.05), bucket_cap_mb=small, op=None)
    model = small_model()
    start = model.get_weights()
    optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(1.0), op=sdp.ReduceOp.SUM, name="mine")
    assert optimizer.get_config()["name"] == "mine"
    gradients = [np.full(each.shape, rank + 1.0, "float32") for each in start]
    optimizer.apply_gradients(
        zip(map(tf.constant, gradients), model.trainable_variables, strict=True)
    )
    for old, new in zip(start, model.get_weights(), strict=True):
        np.testing.assert_allclose(old - new, size * (size + 1) / 2, rtol=1e-5)

    # A third is not a number of 16 bits: this shows what was sent.
    variable = tf.Variable([0.0])
    optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(1.0), compression=sdp.Compression.fp16)
    optimizer.apply_gradients([(tf.constant([1 / 3]), variable)])
    np.testing.assert_allclose(variable.numpy(), [-float(np.float16(1 / 3))], rtol=0)


def check_reduced_once_with_a_tape(rank: int, size: int) -> None:
    model = small_model()
    start = model.get_weights()
    # SUM in the optimizer would show in the weights.
    optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(1.0), op=sdp.ReduceOp.SUM)
    variables = model.trainable_variables

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(each) for each in variables]) * float(rank + 1)
        tape = sdp.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
        step()
        step.python_function()
    texts = [str(each.message) for each in caught if "DistributedGradientTape" in str(each.message)]
    assert len(texts) == 1, texts
    assert "Use one of the two" in texts[0]
    for old, new in zip(start, model.get_weights(), strict=True):
        np.testing.assert_allclose(old - new, 3 * (size + 1) / 2, rtol=1e-5)


def check_a_gradient_that_some_ranks_lack(rank: int, size: int) -> None:
    for scaled in (False, True):
        first, second = tf.Variable([1.0]), tf.Variable([1.0])
        optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(1.0))
        if scaled:
            optimizer = K.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1.0)
        pairs = [
            (tf.constant([2.0]), first),
            (tf.constant([4.0]) if rank == 1 else None, second),
        ]
        optimizer.apply_gradients(pairs)
        np.testing.assert_allclose(first.numpy(), [-1.0])
        np.testing.assert_allclose(second.numpy(), [1 - 4.0 / size])


def check_sparse_gradients(rank: int, size: int) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 20, size=(STEPS * BATCH, 3))
    y = rng.normal(size=(STEPS * BATCH, 1)).astype("float32")

    def make() -> Any:
        K.utils.set_random_seed(2)
        return K.Sequential(
            [
                K.layers.Input((3,), dtype="int64"),
                K.layers.Embedding(20, 4),
                K.layers.Flatten(),
                K.layers.Dense(1),
            ]
        )

    def train(optimizer: Any, xs: Any, ys: Any, size: int = 1) -> list[Any]:
        model = make()
        loop(model, optimizer, xs, ys, size)
        weights: list[Any] = model.get_weights()
        return weights

    expected = on_rank_0(rank, lambda: train(K.optimizers.SGD(0.1), words, y))
    for as_dense in (True, False):
        optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(0.1), sparse_as_dense=as_dense)
        mine = share(words, rank, size), share(y, rank, size)
        require_close(train(optimizer, *mine, size), expected, STEPS)


def check_learning_rates(rank: int, size: int) -> None:
    def make() -> Any:
        schedule = K.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        return K.optimizers.SGD(schedule)

    loop_both(rank, size, make)
    optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(0.1))
    optimizer.learning_rate = 0.25
    assert float(np.asarray(optimizer.learning_rate)) == 0.25


def check_what_it_is(rank: int, size: int) -> None:
    plain = K.optimizers.Adam(0.01, beta_1=0.8)
    config = plain.get_config()
    optimizer = sdp.DistributedOptimizer(plain)
    assert isinstance(optimizer, K.optimizers.Adam)
    assert type(optimizer).__name__ == "Adam"
    assert {**optimizer.get_config(), "name": config["name"]} == config
    again = K.optimizers.deserialize(K.optimizers.serialize(optimizer))
    assert type(again) is K.optimizers.Adam
    assert again.get_config() == optimizer.get_config()
    assert type(optimizer).from_config(optimizer.get_config()).get_config() == (
        optimizer.get_config()
    )
    assert optimizer.name == "smdistributed.dataparallel.Adam"
    text = raised(SMDDPConfigInvalid, sdp.DistributedOptimizer, optimizer)
    assert "Wrap each optimizer once" in text
    scaled = K.mixed_precision.LossScaleOptimizer(optimizer)
    raised(SMDDPConfigInvalid, sdp.DistributedOptimizer, scaled)


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
        if (rank, size) == (0, 2):
            _require_loads_without_us(path)
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


def _require_loads_without_us(path: str) -> None:
    program = (
        "import sys; sys.modules['smdistributed'] = None\n"
        "import tensorflow as tf\n"
        f"model = tf.keras.models.load_model({path!r})\n"
        "print(type(model.optimizer).__name__, int(model.optimizer.iterations))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["Adam", str(STEPS)], done.stderr[-3000:]


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


@contextlib.contextmanager
def mixed_float16() -> Iterator[None]:
    K.mixed_precision.set_global_policy("mixed_float16")
    try:
        yield
    finally:
        K.mixed_precision.set_global_policy("float32")


def scale_of(optimizer: Any) -> float:
    scale = optimizer.dynamic_scale if IS_KERAS_3 else optimizer.loss_scale
    return float(np.asarray(scale))


def loss_scaled(optimizer: Any) -> Any:
    return K.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=64.0)


def check_mixed_precision(rank: int, size: int) -> None:
    x, y = data()
    mine = share(x, rank, size), share(y, rank, size)

    def train(optimizer: Any, *both: Any, **kwargs: Any) -> list[Any]:
        with mixed_float16():
            model = small_model()
            model.compile(optimizer=loss_scaled(optimizer), loss="mse")
            fit(model, *both, epochs=2, **kwargs)
        return [*model.get_weights(), np.array(scale_of(model.optimizer))]

    expected = on_rank_0(rank, lambda: train(K.optimizers.Adam(0.01), x, y))
    optimizer = sdp.DistributedOptimizer(K.optimizers.Adam(0.01))
    found = train(optimizer, *mine, size=size, callbacks=distributed_callbacks())
    require_same_bits(*found)
    # Halves have eleven bits, and the mean over a batch is taken in another order.
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-3)


def check_an_overflow_on_one_rank(rank: int, size: int) -> None:
    x, y = data(1)
    x, y = share(x, rank, size), share(y, rank, size)
    makers = {
        "by compile": lambda: sdp.DistributedOptimizer(K.optimizers.SGD(0.01)),
        "within": lambda: loss_scaled(sdp.DistributedOptimizer(K.optimizers.SGD(0.01))),
        "around": lambda: sdp.DistributedOptimizer(loss_scaled(K.optimizers.SGD(0.01))),
    }
    for how, make in makers.items():
        require_skips_alike(rank, make(), x, y, run_eagerly=how != "by compile")


def require_skips_alike(rank: int, optimizer: Any, x: Any, y: Any, **compiling: Any) -> None:
    """A step with an overflow on one rank changes no weight, and every rank's loss scale."""
    with mixed_float16():
        model = small_model()
        model.compile(optimizer=optimizer, loss="mse", **compiling)
        assert type(model.optimizer).__name__.startswith("LossScaleOptimizer")
        model.train_on_batch(x, y)
        before, scale = model.get_weights(), scale_of(model.optimizer)
        model.train_on_batch(x * (1e6 if rank == 1 else 1), y)
        for old, new in zip(before, model.get_weights(), strict=True):
            assert np.array_equal(old, new), "the step was not skipped"
        assert scale_of(model.optimizer) == scale / 2
        model.train_on_batch(x, y)
    assert not np.array_equal(before[0], model.get_weights()[0])
    assert scale_of(model.optimizer) == scale / 2
    require_same_bits(*model.get_weights())


def check_loss_scaling_with_a_tape(rank: int, size: int) -> None:
    model = small_model()
    optimizer = loss_scaled(K.optimizers.SGD(1.0))
    variables = model.trainable_variables
    start = model.get_weights()

    @tf.function
    def step(factor: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(each) for each in variables]) * factor
            scale = optimizer.scale_loss if IS_KERAS_3 else optimizer.get_scaled_loss
            scaled = scale(loss)
        gradients = sdp.DistributedGradientTape(tape).gradient(scaled, variables)
        if not IS_KERAS_3:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    step(tf.constant(rank + 1.0))
    for old, new in zip(start, model.get_weights(), strict=True):
        np.testing.assert_allclose(old - new, (size + 1) / 2, rtol=1e-5)
    before = model.get_weights()
    step(tf.constant(np.inf if rank == 1 else 1.0, tf.float32))
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert scale_of(optimizer) == 32.0


def check_halves_travel_as_halves(rank: int, size: int) -> None:
    from smdistributed.dataparallel.tensorflow import operations

    sent: list[Any] = []
    original = operations.all_reduce

    def spy(tensors: Any, *args: Any) -> Any:
        sent.extend(each.dtype for each in tensors if each.dtype.is_floating)
        return original(tensors, *args)

    variable = tf.Variable(np.zeros(3, "float16"))
    optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(1.0))
    operations.all_reduce = spy
    try:
        gradient = tf.constant([60000.0, 1.0, rank], tf.float16)
        optimizer.apply_gradients([(gradient, variable)])
    finally:
        operations.all_reduce = original
    assert sent == [tf.float16]
    np.testing.assert_array_equal(variable.numpy(), [-60000.0, -1.0, -(size - 1) / 2])


def accumulating(**kwargs: Any) -> Any:
    return K.optimizers.Adam(0.01, gradient_accumulation_steps=2, **kwargs)


def check_keras3_gradient_accumulation(rank: int, size: int) -> None:
    fit_both(rank, size, accumulating)
    loop_both(rank, size, lambda: accumulating(clipnorm=0.05))

    # It communicates in the steps that update.
    calls: list[int] = []
    original = reducer_module.reduce_gradients

    def count(gradients: Any, **kwargs: Any) -> Any:
        calls.append(len(gradients))
        return original(gradients, **kwargs)

    reducer_module.reduce_gradients = count
    try:
        loop_both(rank, size, accumulating)
    finally:
        reducer_module.reduce_gradients = original
    assert calls == [4] * STEPS


def check_keras3_accumulation_with_loss_scaling(rank: int, size: int) -> None:
    x, y = data()

    def reference() -> list[Any]:
        model = small_model()
        loop(model, loss_scaled(accumulating()), x, y)
        weights: list[Any] = model.get_weights()
        return weights

    expected = on_rank_0(rank, reference)
    model = small_model()
    optimizer = loss_scaled(sdp.DistributedOptimizer(accumulating()))
    loop(model, optimizer, share(x, rank, size), share(y, rank, size), size)
    require_close(model.get_weights(), expected, STEPS)
    require_skips_alike(
        rank,
        loss_scaled(sdp.DistributedOptimizer(accumulating())),
        *(share(each, rank, size) for each in data(1)),
        run_eagerly=True,
    )


def check_keras3_averages_of_weights(rank: int, size: int) -> None:
    loop_both(
        rank,
        size,
        lambda: K.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2, weight_decay=0.01),
    )


def check_tf_keras_legacy_optimizers(rank: int, size: int) -> None:
    legacy = K.optimizers.legacy
    fit_both(rank, size, lambda: legacy.SGD(0.05, momentum=0.9))
    loop_both(rank, size, lambda: legacy.Adam(0.01, clipnorm=0.05))
    x, y = (share(each, rank, size) for each in data(1))
    for optimizer in (
        sdp.DistributedOptimizer(loss_scaled(legacy.SGD(0.01))),
        loss_scaled(sdp.DistributedOptimizer(legacy.SGD(0.01))),
    ):
        require_skips_alike(rank, optimizer, x, y, run_eagerly=True)


def check_tf_keras_copies_and_graphs(rank: int, size: int) -> None:
    import copy

    optimizer = copy.deepcopy(sdp.DistributedOptimizer(K.optimizers.legacy.SGD(1.0)))
    variable = tf.Variable([0.0])
    optimizer.apply_gradients([(tf.constant([float(rank)]), variable)])
    np.testing.assert_allclose(variable.numpy(), [-(size - 1) / 2])
    optimizer.apply_gradients(
        [(tf.constant([float(rank)]), variable)], experimental_aggregate_gradients=False
    )
    np.testing.assert_allclose(variable.numpy(), [-(size - 1) / 2 - rank])

    with tf.Graph().as_default():
        weight = tf.compat.v1.get_variable("weight", initializer=[0.0])
        optimizer = sdp.DistributedOptimizer(K.optimizers.legacy.SGD(1.0))
        (gradient,) = optimizer.get_gradients(weight * float(rank), [weight])
        update = optimizer.apply_gradients([(gradient, weight)])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(optimizer.weights[0].initializer)
            session.run(update)
            np.testing.assert_allclose(session.run(weight), [-(size - 1) / 2])
            np.testing.assert_allclose(session.run(gradient), [(size - 1) / 2])


def check_tf_keras_callers_who_reduced(rank: int, size: int) -> None:
    optimizer = sdp.DistributedOptimizer(K.optimizers.SGD(1.0))
    variable = tf.Variable([0.0])
    optimizer.apply_gradients(
        [(tf.constant([float(rank)]), variable)], skip_gradients_aggregation=True
    )
    np.testing.assert_allclose(variable.numpy(), [-float(rank)])


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
