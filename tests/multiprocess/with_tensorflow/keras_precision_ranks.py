# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_keras.py: 16 bits, and scales of losses that all ranks change alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from keras_training import (
    IS_KERAS_3,
    STEPS,
    K,
    accumulating,
    data,
    distributed_callbacks,
    fit,
    loop,
    on_rank_0,
    require_close,
    share,
    small_model,
)
from tf_ranks import require_same_bits

import smdistributed.dataparallel.tensorflow as sdp


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

    def spy(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        sent.extend(each.dtype for each in tensors if each.dtype.is_floating)
        return original(tensors, *args, **kwargs)

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


def check_tf_keras_legacy_loss_scaling(rank: int, size: int) -> None:
    legacy = K.optimizers.legacy
    x, y = (share(each, rank, size) for each in data(1))
    for optimizer in (
        sdp.DistributedOptimizer(loss_scaled(legacy.SGD(0.01))),
        loss_scaled(sdp.DistributedOptimizer(legacy.SGD(0.01))),
    ):
        require_skips_alike(rank, optimizer, x, y, run_eagerly=True)
