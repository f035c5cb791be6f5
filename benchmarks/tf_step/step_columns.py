# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ways to make one training step of the small convnet of the documented MNIST script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.dataparallel.tensorflow as sdp

Step = Callable[[], Any]

_LEARNING_RATE = 0.001


def columns(strategy: Any, batch: int) -> dict[str, Step]:
    """By name. All have the same weights at first, and one batch per rank, always the same.

    Each step ends when the loss and the new weights are there.
    """
    generator = np.random.default_rng(sdp.rank())
    images = tf.constant(generator.random((batch, 28, 28, 1)), tf.float32)
    labels = tf.constant(generator.integers(0, 10, batch), tf.int64)
    made = {
        "compute": _step(_Plain()),
        "tape": _step(_Tape()),
        "group": _step(_TapeInGroup()),
        "optimizer": _step(_Optimizer()),
        "strategy": _strategy_step(strategy),
    }
    return {name: (lambda step=step: step(images, labels)) for name, step in made.items()}


def _model() -> Any:
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(5)
    return tf.keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, [3, 3], activation="relu"),
            layers.Conv2D(64, [3, 3], activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )


class _Plain:
    """Nothing is communicated."""

    def __init__(self) -> None:
        self.model = _model()
        self.optimizer = tf.keras.optimizers.Adam(_LEARNING_RATE)

    def tape(self, tape: Any) -> Any:
        return tape

    def loss(self, loss: Any) -> Any:
        return loss


class _Tape(_Plain):
    """The documented step."""

    def tape(self, tape: Any) -> Any:
        return sdp.DistributedGradientTape(tape)

    def loss(self, loss: Any) -> Any:
        return sdp.oob_allreduce(loss)


class _TapeInGroup(_Plain):
    """The same in a group of its own, of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._group = sdp.new_group(range(sdp.size()))

    def tape(self, tape: Any) -> Any:
        return sdp.DistributedGradientTape(tape, group=self._group)

    def loss(self, loss: Any) -> Any:
        return sdp.oob_allreduce(loss, group=self._group)


class _Optimizer(_Plain):
    """Gradients are averaged by the optimizer, as with `model.fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = sdp.DistributedOptimizer(self.optimizer)

    def loss(self, loss: Any) -> Any:
        return sdp.oob_allreduce(loss)


def _step(way: _Plain) -> Any:
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()
    variables = way.model.trainable_variables
    way.optimizer.build(variables)

    @tf.function(autograph=False)
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, way.model(images, training=True))
        gradients = way.tape(tape).gradient(loss, variables)
        way.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return way.loss(loss)

    return step


def _strategy_step(strategy: Any) -> Any:
    """A custom loop, since `model.fit` of Keras 3 does not take this strategy.

    Gradients are averaged by the replica's context, in one call for all, which packs them.
    """
    with strategy.scope():
        model = _model()
        optimizer = tf.keras.optimizers.Adam(_LEARNING_RATE)
        variables = model.trainable_variables
        optimizer.build(variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(reduction="none")

    def replica(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_of(labels, model(images, training=True)))
        gradients = tape.gradient(loss, variables)
        # Keras's optimizers sum over replicas, so each gives its share.
        optimizer.apply_gradients(
            [
                (g / strategy.num_replicas_in_sync, v)
                for g, v in zip(gradients, variables, strict=True)
            ]
        )
        return loss

    @tf.function(autograph=False)
    def step(images: Any, labels: Any) -> Any:
        loss = strategy.run(replica, args=(images, labels))
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, loss, axis=None)

    return step
