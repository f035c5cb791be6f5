# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of test_remedies.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from with_tensorflow.tf_ranks import no_job, raised

from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.tensorflow import remedies
from smdistributed.modelparallel.tensorflow.remedies import hooks, kerases, patching

K = tf.keras
IS_KERAS_3 = not K.Model.__module__.startswith("tf_keras")
remedies.install()
around_checks = no_job


def dense() -> Any:
    layer = K.layers.Dense(1, kernel_initializer="ones")
    layer.build((None, 2))
    return layer


@contextlib.contextmanager
def in_a_step(elsewhere: Any = None, is_tracing: bool = True) -> Iterator[list[Any]]:
    """As if a step were traced, and a variable were another rank's."""
    asked: list[Any] = []

    def gradients(loss: Any, params: Any) -> list[Any]:
        asked.append(loss)
        return [None if each is elsewhere else tf.ones(each.shape) * 3 for each in params]

    saved = hooks._is_tracing, hooks._is_elsewhere, hooks._gradients
    remedies.set_hooks(lambda: is_tracing, lambda variable: variable is elsewhere, gradients)
    try:
        yield asked
    finally:
        remedies.set_hooks(*saved)


def check_get_gradients(rank: int, size: int) -> None:
    layer, optimizer = dense(), K.optimizers.SGD(0.5)
    assert "@smp.step" in raised(
        RuntimeError, optimizer.get_gradients, tf.ones([]), layer.trainable_variables
    )

    @tf.function
    def in_a_graph() -> Any:
        loss = tf.reduce_sum(layer(tf.constant([[1.0, 2.0]])))
        return optimizer.get_gradients(loss, layer.trainable_variables)

    kernel, bias = in_a_graph()
    assert (kernel.numpy().tolist(), bias.numpy().tolist()) == ([[1], [2]], [1])

    unused = tf.Variable(1.0, name="unused")

    def of_an_unused_variable() -> Any:
        with tf.__internal__.FuncGraph("step").as_default():
            return optimizer.get_gradients(tf.constant(1.0), [unused])

    assert "unused" in raised(ValueError, of_an_unused_variable)

    with in_a_step(elsewhere=layer.bias) as asked, tf.__internal__.FuncGraph("step").as_default():
        loss = tf.constant(1.0)
        pair = optimizer.get_gradients(loss, [layer.kernel, layer.bias])
        assert (pair[0].shape, pair[1], asked) == ([2, 1], None, [loss])
        pairs = optimizer.compute_gradients(loss, [layer.kernel, layer.bias])
        assert [each[1] for each in pairs] == [layer.kernel, layer.bias]
    if IS_KERAS_3:
        raised(RuntimeError, optimizer.compute_gradients, tf.ones([]), [layer.kernel])
    else:
        raised(ValueError, optimizer.compute_gradients, tf.ones([]), [layer.kernel])


def check_apply_gradients(rank: int, size: int) -> None:
    layer, optimizer = dense(), K.optimizers.SGD(0.5)
    optimizer.apply_gradients([])
    with in_a_step():
        text = raised(RuntimeError, optimizer.apply_gradients, [])
        assert "Return the gradients from the step" in text
    gradient = tf.ones([2, 1])
    with in_a_step(elsewhere=layer.bias, is_tracing=False):
        optimizer.apply_gradients(
            zip([gradient, None], [layer.kernel, layer.bias], strict=True), name="train"
        )
        assert layer.kernel.numpy().tolist() == [[0.5], [0.5]]
        optimizer.apply_gradients([(None, layer.bias)])
    if IS_KERAS_3:
        optimizer.apply_gradients([(gradient, layer.kernel)], experimental_aggregate_gradients=True)
        assert layer.kernel.numpy().tolist() == [[0.0], [0.0]]
    if not IS_KERAS_3:
        legacy = K.optimizers.legacy.SGD(0.5)
        with in_a_step():
            raised(RuntimeError, legacy.apply_gradients, [(gradient, layer.kernel)])
    raised(ValueError, optimizer.apply_gradients, [(None, layer.kernel)])  # as without us


def check_old_names(rank: int, size: int) -> None:
    layer = dense()
    optimizer = K.optimizers.SGD(lr=0.25, momentum=0.9)
    assert float(np.array(optimizer.learning_rate)) == 0.25
    assert float(np.array(optimizer.lr)) == 0.25
    optimizer.lr = 0.5
    assert float(np.array(optimizer.learning_rate)) == 0.5
    K.optimizers.SGD(0.5).apply_gradients([(tf.ones([2, 1]), layer.kernel)])
    optimizer.build([layer.kernel])
    assert layer.kernel.numpy().tolist() == [[0.5], [0.5]]
    assert len(optimizer.variables()) == len(optimizer.get_weights()) > 1
    assert all(isinstance(each, np.ndarray | np.generic) for each in optimizer.get_weights())
    metric = K.metrics.Mean()
    metric.update_state([1.0])
    metric.reset_states()
    assert float(metric.result()) == 0
    raised((TypeError, ValueError), K.optimizers.SGD, learning_rat=0.1)  # type: ignore[arg-type]


def check_optimizers_of_tensorflow_1(rank: int, size: int) -> None:
    layer = dense()
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.5)

    @tf.function
    def train() -> None:
        loss = tf.reduce_sum(layer(tf.constant([[1.0, 2.0]])))
        pairs = optimizer.compute_gradients(loss, layer.trainable_variables)
        optimizer.apply_gradients(
            zip([gradient for gradient, _ in pairs], layer.trainable_variables, strict=True)
        )

    train()
    assert layer.kernel.numpy().tolist() == [[0.5], [0.0]]
    with in_a_step(), tf.__internal__.FuncGraph("step").as_default():
        pairs = optimizer.compute_gradients(tf.constant(1.0), [layer.kernel])
        assert pairs[0][0].shape == [2, 1]
        assert "var_list" in raised(ValueError, optimizer.compute_gradients, tf.constant(1.0))
        raised(RuntimeError, optimizer.apply_gradients, pairs)
    with in_a_step(elsewhere=layer.bias, is_tracing=False):
        optimizer.apply_gradients([(None, layer.bias)])


def check_one_keras(rank: int, size: int) -> None:
    remedies.require_one_keras(dense(), K.optimizers.SGD(0.1), object())
    other = type("Layer", (), {"__module__": "tf_keras.layers" if IS_KERAS_3 else "keras.layers"})
    assert "Two Kerases" in raised(ConfigError, remedies.require_one_keras, other())

    class Nothing(ModuleType):
        @staticmethod
        def find_spec(name: str) -> None:
            return None

    saved_util, saved = kerases.importlib.util, os.environ.get("TF_USE_LEGACY_KERAS")
    kerases.importlib.util = Nothing("util")  # type: ignore[assignment]
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    try:
        assert "pip install tf-keras~=" in raised(ConfigError, remedies.require_one_keras)
    finally:
        kerases.importlib.util = saved_util
        os.environ["TF_USE_LEGACY_KERAS"] = saved or "0"


def check_remedies_may_be_removed(rank: int, size: int) -> None:
    remedies.install()
    count = len(patching._replaced)
    remedies.install()
    assert len(patching._replaced) == count > 0
    assert K.optimizers.SGD.get_gradients._smdistributed_open is True
    remedies.uninstall()
    assert not hasattr(K.optimizers.SGD, "get_gradients")
    assert hasattr(K.optimizers.SGD, "lr") != IS_KERAS_3
    remedies.install()
    assert hasattr(K.optimizers.SGD, "get_gradients")
