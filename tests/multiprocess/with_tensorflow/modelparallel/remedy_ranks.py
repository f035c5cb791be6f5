# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The process of test_remedies.py."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from with_tensorflow.tf_ranks import no_job, raised

from smdistributed.dataparallel.tensorflow.patching import REMEDIES
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.tensorflow import compat, remedies, updates
from smdistributed.modelparallel.tensorflow.remedies import hooks, kerases

K = tf.keras
IS_KERAS_3 = not K.Model.__module__.startswith("tf_keras")
updates.install()
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
    with in_a_step(elsewhere=hooks.raw(layer.bias), is_tracing=False):
        optimizer.apply_gradients([(None, layer.bias)])
        step = tf.Variable(5)
        optimizer.apply_gradients([(None, layer.bias)], global_step=step)
        assert step.numpy() == 6


def check_hints(rank: int, size: int) -> None:
    """What has no remedy says what to write."""
    policies = K.mixed_precision
    text = raised(AttributeError, getattr, policies, "experimental")
    assert 'set_global_policy("mixed_float16")' in text
    assert "nothing_of_the_kind" in raised(AttributeError, getattr, policies, "nothing_of_the_kind")
    model = dense_model()
    if not IS_KERAS_3:
        assert callable(model.fit_generator)
        assert raised(ValueError, K.optimizers.SGD, decay=0.1)
        return
    for name in ("fit_generator", "evaluate_generator", "predict_generator", "reset_states"):
        text = raised(AttributeError, getattr, model, name)
        assert f"has no {name}() in Keras 3" in text
        assert "TF_USE_LEGACY_KERAS=1" in text
        assert not hasattr(model, name)
    text = raised(ValueError, model.save_weights, "prefix")
    assert 'save_weights("prefix.weights.h5")' in text
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(f"{folder}/a.weights.h5")
    assert "TF_USE_LEGACY_KERAS" in raised(ImportError, K.optimizers.legacy.SGD)
    with errors_of_the_log() as said:
        K.optimizers.SGD(0.1, decay=0.5)
    assert ["InverseTimeDecay(learning_rate, 1, 0.5)" in line for line in said] == [True]


@contextlib.contextmanager
def errors_of_the_log() -> Iterator[list[str]]:
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smdistributed").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("smdistributed").removeHandler(handler)


def check_gradients_are_clipped_when_they_are_applied(rank: int, size: int) -> None:
    layer, optimizer = dense(), K.optimizers.SGD(1.0, clipvalue=0.25)

    @tf.function
    def train() -> Any:
        loss = tf.reduce_sum(layer(tf.constant([[1.0, 2.0]])))
        gradients = optimizer.get_gradients(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return gradients

    assert train()[0].numpy().tolist() == [[1.0], [2.0]]
    assert layer.kernel.numpy().tolist() == [[0.75], [0.75]]


def check_what_needs_no_remedy(rank: int, size: int) -> None:
    assert tf.config.experimental.list_physical_devices("CPU")
    assert tf.math.accumulate_n([tf.ones([2]), tf.ones([2])]).numpy().tolist() == [2, 2]
    tf.config.optimizer.set_jit(False)
    loss = K.losses.SparseCategoricalCrossentropy(from_logits=True)
    images, labels = tf.ones([2, 2], tf.float64) / 255.0, tf.constant([0, 1], tf.uint8)
    model = K.Sequential([K.layers.Input((2,)), K.layers.Dense(2)])
    assert loss(labels, model(images)).dtype == tf.float32
    metric = K.metrics.SparseCategoricalAccuracy()
    metric(labels, model(images))
    assert 0 <= float(metric.result()) <= 1


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
    """In any order with the rules that stay, and Keras is then as it was."""
    layer, optimizer = dense(), K.optimizers.SGD(0.5)
    pairs = [(tf.ones([2, 1]), layer.kernel)]
    changed = all_remedies()
    compat.install()
    assert all_remedies() == changed
    assert K.optimizers.SGD.get_gradients._smdistributed_open is True
    for _ in range(2):
        compat.uninstall()
        remedies.install()  # as the next model does
        assert not REMEDIES.changed()
    assert not hasattr(optimizer, "get_gradients")
    if IS_KERAS_3:
        assert not callable(optimizer.variables)
        assert not hasattr(optimizer, "lr")
        assert not hasattr(K.metrics.Mean, "reset_states")
        raised(TypeError, optimizer.apply_gradients, pairs, name="train")
        raised(TypeError, dense_model().compile, experimental_run_tf_function=False)
    with in_a_step():
        raised(RuntimeError, optimizer.apply_gradients, pairs)
    with in_a_step(elsewhere=layer.bias, is_tracing=False):
        optimizer.apply_gradients([(None, layer.bias)])
    compat.install()
    assert all_remedies() == changed
    optimizer.apply_gradients(pairs, name="train")
    assert layer.kernel.numpy().tolist() == [[0.5], [0.5]]
    with in_a_step():
        raised(RuntimeError, optimizer.apply_gradients, pairs)


def all_remedies() -> list[str]:
    return sorted(f"{owner}.{name}" for owner, name in REMEDIES.changed())


def dense_model() -> Any:
    return K.Sequential([K.layers.Input((2,)), K.layers.Dense(1)])
