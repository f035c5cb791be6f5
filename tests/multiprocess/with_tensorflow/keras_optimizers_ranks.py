# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_keras.py: what the optimizers do to gradients, in loops of one's own."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf
from keras_training import (
    BATCH,
    STEPS,
    K,
    accumulating,
    data,
    fit_both,
    loop,
    loop_both,
    on_rank_0,
    require_close,
    share,
    small_model,
)
from tf_ranks import raised

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
)
from smdistributed.dataparallel.tensorflow.optimizers import reducer as reducer_module


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
