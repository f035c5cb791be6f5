# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks run whose steps fail, with real models. Used by `test_failing_steps.py`.

Faults are in the data: all ranks of a pipeline are fed the same, and the operation that minds is on
one of them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from machine_speed import soon_s

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

SOON_S = soon_s()
MICROBATCHES = 4
BATCH = 8
STEPS = 3
WIDTH = 4
KINDS = ("inverse", "numbers", "index", "backward")
SAYS = {
    "inverse": "Input is not invertible",
    "numbers": "found in the activations",
    "index": "indices",
    "backward": "found in the gradients",
}
keras = tf.keras
if hasattr(keras.backend, "experimental"):  # tf-keras: states of dropout are in variables then
    keras.backend.experimental.enable_tf_random_generator()


@contextlib.contextmanager
def a_job(**parameters: Any) -> Iterator[None]:
    """From `smp.init()` to `smp.reset()`; nothing of ours is left afterwards."""
    keras.utils.set_random_seed(1)
    smp.init({"microbatches": MICROBATCHES, **parameters})
    try:
        yield
    finally:
        smp.reset()
        names = [each.name for each in threading.enumerate()]
        assert not [each for each in names if each.startswith("smp")], names


class Fragile(keras.layers.Layer):
    """Hands on what it gets, unless a column of `faults` has a 1."""

    def call(self, x: Any, faults: Any) -> Any:
        inverse, numbers, index, backward = tf.unstack(faults, axis=1)
        identity = tf.linalg.inv(tf.eye(2) * (1.0 - tf.reduce_max(inverse)))
        x = x * identity[0, 0]
        x = tf.debugging.check_numerics(x / (1.0 - numbers[:, None]), "found in the activations")
        x = x * tf.gather(tf.ones([1]), tf.cast(5.0 * index, tf.int32))[:, None]
        return _checks_gradients(x, backward)


@tf.custom_gradient
def _checks_gradients(x: Any, fault: Any) -> Any:
    def gradient(upstream: Any) -> Any:
        upstream = upstream / (1.0 - fault[:, None])
        return tf.debugging.check_numerics(upstream, "found in the gradients"), None

    return tf.identity(x), gradient


class Model(smp.DistributedModel):
    """One block on each partition."""

    def __init__(self, partitions: int) -> None:
        super().__init__(name="m")
        layers = keras.layers
        self.blocks = [
            [
                layers.Dense(WIDTH, activation="tanh", name=f"dense_{each}"),
                layers.BatchNormalization(name=f"norm_{each}"),
                layers.Dropout(0.3, seed=each, name=f"drop_{each}"),
                Fragile(name=f"fragile_{each}"),
            ]
            for each in range(partitions)
        ]

    def call(self, x: Any, faults: Any, training: Any = None) -> Any:
        for number, (dense, norm, drop, fragile) in enumerate(self.blocks):
            with smp.partition(number):
                x = norm(dense(x), training=training)
                x = fragile(drop(x, training=training), faults[:, number])
        return x


def batch(number: int, size: int = BATCH) -> Any:
    """The same on all ranks."""
    return np.random.RandomState(number).randn(size, WIDTH).astype(np.float32)


def faults(kind: str | None = None, victim: int = 0, size: int = BATCH) -> Any:
    """None, or one in microbatch 2."""
    found = np.zeros([size, 4, len(KINDS)], np.float32)
    if kind is not None:
        found[2 * size // MICROBATCHES, victim, KINDS.index(kind)] = 1.0
    return found


def training(partitions: int) -> tuple[Model, Callable[..., Any]]:
    """A model and a step that gives the loss and this rank's gradients."""
    model = Model(partitions)

    @smp.step
    def train(x: Any, faults: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x, faults, training=True)))
        return loss, gradients_in_step(loss, model.trainable_variables)

    def call(x: Any, faults: Any) -> list[Any]:
        loss, gradients = train(x, faults)
        return [loss.reduce_mean(), *(each.accumulate() for each in gradients)]

    return model, call


@functools.cache
def _undisturbed(size: int) -> list[list[Any]]:
    with a_job(partitions=size, auto_partition=False, default_partition=0):
        model, step = training(size)
        return [
            [each.numpy() for each in [*step(batch(number), faults()), *model.variables]]
            for number in range(STEPS)
        ]


def _require_told(rank: int, victim: int, kind: str, error: BaseException, is_eager: bool) -> None:
    text = str(error)
    phase = "backward" if kind == "backward" else "forward"
    line = f"rank {victim} (partition {victim}, host "
    names = [f"dense_{victim}", f"fragile_{victim}"]
    first, last = names if phase == "forward" else names[::-1]
    assert f"{phase} of {first} ... {last}, microbatch 2: " in text, text
    assert SAYS[kind] in text, text
    assert "Detected at node" not in text, text
    if not is_eager:
        assert isinstance(error, tf.errors.AbortedError), repr(error)
        assert text.startswith(f"StepAborted: {line}"), text
        assert "InvalidArgumentError" in text, text
    elif rank == victim:
        assert isinstance(error, tf.errors.InvalidArgumentError), repr(error)
        assert text.startswith(line), text
    else:
        assert type(error) is StepAborted, repr(error)
        assert text.startswith(line), text
        assert "InvalidArgumentError: " in text, text


def _check_operations(rank: int, size: int, is_eager: bool) -> None:
    expected = _undisturbed(size)
    with a_job(partitions=size, auto_partition=False, default_partition=0):
        model, step = training(size)
        step = step if is_eager else tf.function(step)
        for number in range(STEPS):
            if number:
                for kind in KINDS:
                    victim = (KINDS.index(kind) + number) % size
                    begin = time.monotonic()
                    try:
                        step(batch(9), faults(kind, victim))
                        raise AssertionError("the step went well")
                    except (StepAborted, tf.errors.OpError) as error:
                        _require_told(rank, victim, kind, error, is_eager)
                    assert time.monotonic() - begin < SOON_S
            found = [*step(batch(number), faults()), *model.variables]
            for mine, wanted in zip(found, expected[number], strict=True):
                assert (mine.numpy() == wanted).all(), (number, mine, wanted)


def check_operations_that_raise(rank: int, size: int) -> None:
    _check_operations(rank, size, is_eager=True)


def check_operations_that_raise_in_a_function(rank: int, size: int) -> None:
    _check_operations(rank, size, is_eager=False)


def check_a_first_trace_that_fails_in_a_function(rank: int, size: int) -> None:
    """TensorFlow takes an empty function for one that had made a variable; ours makes none."""
    expected = _undisturbed(size)[0][0]
    with a_job(partitions=size, auto_partition=False, default_partition=0):
        model, optimizer = Model(size), keras.optimizers.SGD(0.1)
        is_first = True

        @smp.step
        def gradients(x: Any, faults: Any) -> Any:
            if is_first and rank == size - 1:
                raise LookupError("while it is traced")
            loss = tf.reduce_mean(tf.square(model(x, faults, training=True)))
            return loss, gradients_in_step(loss, model.trainable_variables)

        @tf.function
        def train(x: Any, faults: Any) -> Any:
            loss, found = gradients(x, faults)
            averages = [each.accumulate() for each in found]
            optimizer.apply_gradients(zip(averages, model.trainable_variables, strict=True))
            return loss.reduce_mean()

        assert "while it is traced" in raised(Exception, train, batch(0), faults())
        is_first = False
        first, second = (float(train(batch(0), faults())) for _ in range(2))
        assert first == float(expected), (first, expected)
        assert second != first, "nothing has been trained"


def check_a_function_of_which_nothing_would_run(rank: int, size: int) -> None:
    made = []

    @tf.function
    def broken() -> Any:
        made.append(tf.Variable(1.0))
        raise LookupError("after a variable was made")

    raised(Exception, broken)
    text = raised(RuntimeError, broken)
    assert "whose first call failed while it was traced" in text, text
