# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks run that try promises which need a few lines. For `test_small_promises.py`.

The last check turns XLA on, for good.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from failing_ranks import BATCH, MICROBATCHES, WIDTH, a_job, batch, keras
from refusing_ranks import BY_HAND, Heard, Model, dense, in_graph_of, training, two_layers

import smdistributed.compat.horovod.tensorflow as hvd
import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.step.pipeline import CHECK_VARIABLE
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

# Read when the first function of the process runs; XLA is off until the last check.
os.environ["TF_XLA_FLAGS"] = "--tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
IS_KERAS_3 = not keras.Model.__module__.startswith("tf_keras")


@contextlib.contextmanager
def debug_lines() -> Iterator[list[str]]:
    """What the library says at level DEBUG, of what steps send."""
    found: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("smdistributed")
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: "this rank sends" in record.getMessage())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield found
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def check_bytes_of_a_step(rank: int, size: int) -> None:
    """Once for each signature, at level DEBUG: what goes to which rank."""
    of_one = BATCH // MICROBATCHES * WIDTH * 4  # of an activation
    with a_job(**BY_HAND):
        model = two_layers()
        predict = smp.step(lambda x: model(x), input_signature=[tf.TensorSpec([None, WIDTH])])
        predict(batch(0))  # nobody listens
        train = training(model)
        with debug_lines() as lines:
            for number in range(2):
                train(batch(number))
            assert len(lines) == 1, lines
            total = 4 * of_one
            what = ("forward of a to rank 1", "forward of b to rank 0")[rank]
            expected = f"step train(x: float32 (8, 4)): this rank sends {total * (1 + rank)} bytes"
            assert lines[0].startswith(expected + " in each step: "), lines
            assert f"{what}, {total}" in lines[0], lines
            assert ("backward of b to rank 0, 128" in lines[0]) == (rank == 1), lines
            train(batch(0, 2 * BATCH))
            assert f"sends {2 * total * (1 + rank)} bytes" in lines[1], lines
            assert len(lines) == 2, lines


def check_a_step_that_returns_nothing_of_the_model(rank: int, size: int) -> None:
    with a_job(**BY_HAND):
        model = two_layers()
        seen = keras.metrics.Mean()

        @smp.step
        def silent(x: Any, returned: Any = None) -> Any:
            seen(model(x))
            return returned

        def number_of_rows(x: Any) -> Any:
            model(x)
            return tf.shape(x)[0], model.trainable_variables[0]

        with Heard() as lines:
            training(model)(batch(0))
            smp.step(lambda x: tf.reduce_sum(x))(batch(0))  # has nothing to do with the model
            assert lines == []
            for returned in (None, None, 1.0):
                silent(batch(0), returned)
            values = smp.allgather(float(seen.result()), smp.MP_GROUP)
            assert values[0] == values[1] != 0.0
            assert len(lines) == (rank == 0), lines
            smp.step(number_of_rows)(batch(0))
            assert len(lines) == 2 * (rank == 0), lines
        for line, name in zip(lines, ("silent", "number_of_rows"), strict=False):
            assert f"step {name} calls the model, and returns nothing that" in line, line
            assert "Return the loss, or what the model gives." in line, line


def check_one_rank_may_return_nothing(rank: int, size: int) -> None:
    """It has no variables, so gradients are those of the other; that is no reason to warn."""
    with a_job(**BY_HAND), Heard() as lines:
        model = Model((1, dense("a")))

        @smp.step
        def train(x: Any) -> Any:
            loss = tf.reduce_mean(model(x) ** 2)
            return keras.optimizers.SGD(0.1).get_gradients(loss, model.trainable_variables)

        assert len(train(batch(0))) == 2 * rank
        assert lines == []


def check_inputs_are_compared_unless_switched_off(rank: int, size: int) -> None:
    """Of the row of `SMP_CHECK_INPUTS` in docs/environment.md."""
    assert CHECK_VARIABLE not in os.environ
    for value, is_warned in (("0", False), ("1", True), (None, True)):
        if value is not None:
            os.environ[CHECK_VARIABLE] = value
        with a_job(**BY_HAND):
            model = two_layers()
            for step in (training(model), in_graph_of(training(model))):
                with Heard() as lines:
                    for number in range(5):
                        step(batch(number + 7 * rank))
                has_warned = [line for line in lines if "feed different batches" in line] != []
                assert has_warned == (is_warned and rank == 0), (value, lines)
        os.environ.pop(CHECK_VARIABLE, None)


def check_an_early_keras_3(rank: int, size: int) -> None:
    """Before 3.5 its variables draw their values where nobody can keep them from it."""
    if not IS_KERAS_3:
        return
    import keras as keras_3

    name = "_initialize_with_initializer"
    version = keras_3.__version__
    methods = {cls: vars(cls)[name] for cls in keras_3.Variable.__mro__ if name in vars(cls)}
    with a_job(**BY_HAND):
        keras_3.__version__ = "3.4.1"
        for cls in methods:
            delattr(cls, name)
        try:
            text = raised(NotImplementedError, two_layers)
        finally:
            keras_3.__version__ = version
            for cls, method in methods.items():
                setattr(cls, name, method)
        assert "Keras 3.4.1 has no keras.Variable._initialize_with_initializer" in text, text
        assert "Use Keras 3.5 or later, or tf-keras" in text, text
    with a_job(**BY_HAND):
        training(two_layers())(batch(0))


def check_compiling_a_model_by_xla(rank: int, size: int) -> None:
    """Once for each `compile` that would have had it."""
    x = batch(0)
    with a_job(partitions=2):
        model = two_layers()
        with Heard() as lines:
            for asked, count in ((True, 1), (False, 1), (True, 2)):
                model.compile("sgd", "mse", jit_compile=asked)
                assert not model.jit_compile
                model.fit(x, x, batch_size=BATCH, epochs=2, verbose=0)
                model.evaluate(x, x, batch_size=BATCH, verbose=0)
                assert len(lines) == count, lines
            assert lines[0] == lines[1]
            expected = (
                "Model is not compiled by XLA (jit_compile is False): its steps communicate, and"
                " XLA cannot compile that."
            )
            assert lines[0] == expected, lines


def check_checkpoints_with_optimizers_of_tensorflow_1(rank: int, size: int) -> None:
    """With several partitions they are refused, and nothing is written."""
    folder = Path(os.environ["TEST_FOLDER"], os.environ["TF_USE_LEGACY_KERAS"])
    kinds = {
        "Adam": lambda: tf.compat.v1.train.AdamOptimizer(0.1),
        "Momentum": lambda: tf.compat.v1.train.MomentumOptimizer(0.1, 0.9),
    }
    for name, make in kinds.items():
        with a_job(**BY_HAND):
            model, optimizer = two_layers(), make()
            model.a, model.b = model.inner  # names for Keras 3, which has none in lists

            @smp.step
            def train(x: Any) -> Any:
                loss = tf.reduce_mean(tf.square(model(x)))  # noqa: B023
                return optimizer.compute_gradients(loss, model.trainable_variables)  # noqa: B023

            checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
            manager = smp.CheckpointManager(checkpoint, folder / name)
            found = train(batch(0))
            before = [np.array(each) for each in model.variables]
            pairs = [
                (each.accumulate(), variable)
                for (each, _), variable in zip(found, model.trainable_variables, strict=True)
            ]
            optimizer.apply_gradients(pairs)
            for one, other in zip(before, model.variables, strict=True):
                assert (one != np.array(other)).any()
            text = raised(Exception, manager.save)
            assert f"{name}Optimizer keeps its slots by names of a graph, which" in text, text
            assert "Use tf.keras.optimizers." in text, text
            smp.barrier()
            assert not list(folder.glob(f"{name}/*"))
            # The model alone is kept.
            alone = smp.CheckpointManager(
                tf.train.Checkpoint(model=model), folder / f"{name}-alone"
            )
            prefix = alone.save()
            assert alone.restore(prefix) == prefix
            text = raised(Exception, manager.restore, prefix)
            assert "keeps its slots by names of a graph" in text, text


def check_xla_of_the_whole_process(rank: int, size: int) -> None:
    """`tf.config.optimizer.set_jit(True)`: segments may be compiled; what communicates is not."""

    class Outside(keras.layers.Layer):
        """An index beyond the end is an error of TensorFlow; XLA takes the last element."""

        def call(self, x: Any) -> Any:
            return x * tf.gather(tf.ones([2]), tf.cast(tf.reduce_max(x) * 0.0, tf.int32) + 5)

    def losses_of(*more: Any) -> list[float]:
        with a_job(**BY_HAND, active_microbatches=2):
            model = Model((0, dense("a")), (1, dense("b")), *more)
            optimizer = keras.optimizers.SGD(0.1)

            @smp.step
            def train(x: Any) -> Any:
                loss = tf.reduce_mean(tf.square(model(x)))
                return loss, optimizer.get_gradients(loss, model.trainable_variables)

            def update(x: Any) -> Any:
                loss, gradients = train(x)
                gradients = [each.accumulate() for each in gradients]
                gradients, _ = smp.clip_by_global_norm(gradients, 1.0)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return loss.reduce_mean()

            found = [float(update(batch(number))) for number in range(2)]
            in_graph = tf.function(update)
            found += [float(in_graph(batch(number))) for number in range(4)]
            predict = smp.step(lambda x: model(x))
            found.append(float(tf.function(lambda x: tf.reduce_sum(predict(x).merge()))(batch(0))))
            return found

    def of_replicas() -> list[float]:
        with a_job(partitions=1, horovod=True):
            step = training(Model((0, dense("a")), (0, dense("b"))))

            @tf.function
            def reduced(x: Any) -> Any:
                loss, gradients = step(x)
                found = [hvd.allreduce(each.accumulate()) for each in gradients]
                return [hvd.allreduce(loss.reduce_mean()), *map(tf.reduce_sum, found)]

            return [float(each) for each in reduced(batch(rank))]

    expected = losses_of(), of_replicas()
    with pytest.raises(Exception, match="indices"):
        losses_of((1, Outside()))
    tf.config.optimizer.set_jit(True)
    found = losses_of(), of_replicas()
    np.testing.assert_allclose(found[0], expected[0], 1e-5)
    np.testing.assert_allclose(found[1], expected[1], 1e-5)
    np.testing.assert_allclose(losses_of((1, Outside())), expected[0], 1e-5)
