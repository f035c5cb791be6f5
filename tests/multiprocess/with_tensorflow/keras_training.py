# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small models, trained with Keras; and by one process on the joined batches, to compare with.

Names of checks with `_keras3_` or `_tf_keras_` are for that Keras alone.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import tensorflow as tf
from tf_ranks import require_same_bits

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.tensorflow import keras as sdp_keras

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
    group = job.resolve_group(None, "a test").communicator("a test")
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


def accumulating(**kwargs: Any) -> Any:
    return K.optimizers.Adam(0.01, gradient_accumulation_steps=2, **kwargs)
