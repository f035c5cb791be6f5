# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks run that use the library wrongly, or do not do the same.

Used by `test_failing_steps.py`.
"""

from __future__ import annotations

import gc
import importlib
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from failing_ranks import BATCH, MICROBATCHES, SOON_S, WIDTH, a_job, batch, keras

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.modelparallel.exceptions import (
    ConfigError,
    MultipleDistributedModelError,
    StepAborted,
)
from smdistributed.modelparallel.tensorflow.remedies.requirements import (
    NOT_PUBLIC,
    require_what_is_not_public,
)
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks

__all__ = ["around_checks"]

BY_HAND = {"partitions": 2, "auto_partition": False, "default_partition": 0}
TOLD = (StepAborted, SMDDPMismatch)
STAGING = (Exception,)  # AutoGraph makes errors of its own of some classes


class Model(smp.DistributedModel):
    """Layers one after the other, each where it says.

    Args:
        layers: and their partitions; the last one gives the loss its numbers.
    """

    def __init__(self, *layers: tuple[int, Any]) -> None:
        super().__init__(name="m")
        self.inner = [layer for _, layer in layers]
        self.partitions = [partition for partition, _ in layers]

    def call(self, x: Any) -> Any:
        for partition, layer in zip(self.partitions, self.inner, strict=True):
            with smp.partition(partition):
                x = layer(x)
        return x


def dense(name: str = "dense", units: int = WIDTH) -> Any:
    return keras.layers.Dense(units, name=name)


class Apply(keras.layers.Layer):
    """A layer of one function."""

    def __init__(self, function: Callable[[Any], Any], name: str = "apply") -> None:
        super().__init__(name=name)
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


def two_layers() -> Model:
    return Model((0, dense("a")), (1, dense("b")))


def training(model: Any, **arguments: Any) -> Any:
    """A step that gives loss and gradients."""
    optimizer = keras.optimizers.SGD(0.1)

    @smp.step(**arguments)
    def train(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x)))
        return loss, optimizer.get_gradients(loss, model.trainable_variables)

    return train


def raised(kind: Any, function: Callable[..., Any], *args: Any, **kw: Any) -> str:
    """The text of the error that a call must raise."""
    try:
        function(*args, **kw)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function} did not raise {kind}")


def has(text: str, *words: str) -> None:
    """Fails unless all of them are in the text."""
    assert [each for each in words if each not in text] == [], text


def told(rank: int, function: Callable[..., Any], *args: Any, kind: Any = TOLD) -> str:
    """The text of the error that all ranks must have, soon."""
    begin = time.monotonic()
    text = raised(kind, function, *args)
    assert time.monotonic() - begin < SOON_S
    return text


def in_graph_of(step: Any) -> Any:
    """The same in a `tf.function`, with the mean of each result."""

    def call(x: Any) -> Any:
        loss, gradients = step(x)
        return loss.reduce_mean(), [each.accumulate() for each in gradients]

    return tf.function(call)


def loss_of(results: Any) -> float:
    loss = results[0]
    return float(loss.reduce_mean() if isinstance(loss, smp.StepOutput) else loss)


class Heard(logging.Handler):
    """What the library warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("smdistributed").addHandler(self)
        return self.lines

    def __exit__(self, *_: Any) -> None:
        logging.getLogger("smdistributed").removeHandler(self)


# --- batches -------------------------------------------------------------------------------------


def check_a_batch_that_does_not_divide(rank: int, size: int) -> None:
    with a_job(**BY_HAND):
        train = training(two_layers())
        train(batch(0))
        for function in (train, in_graph_of(train)):
            text = raised(ValueError, function, batch(0, 30))
            assert "x: 30 elements along axis 0" in text, text
            assert "4 microbatches" in text, text
            assert "drop_remainder=True" in text, text
        spec = [tf.TensorSpec([None, WIDTH])]
        in_graph = tf.function(lambda x: train(x)[0].reduce_mean(), input_signature=spec)
        expected = in_graph(batch(0))
        text = raised(tf.errors.AbortedError, in_graph, batch(0, 30))
        assert "x: 30 elements along axis 0" in text, text
        assert "drop_remainder=True" in text, text
        assert in_graph(batch(0)) == expected
        if size > 1:  # on one rank alone
            for function, kind in ((train, ValueError), (in_graph, tf.errors.OpError)):
                kinds = (*TOLD, tf.errors.AbortedError, *((kind,) if rank == 1 else ()))
                text = told(rank, function, batch(0, 30 if rank == 1 else 32), kind=kinds)
                assert "30 elements" in text, text
        assert in_graph(batch(0)) == expected


def check_different_batches(rank: int, size: int) -> None:
    """Each of the first three calls of a step is warned of, and some of those after them."""
    with a_job(**BY_HAND):
        model = two_layers()
        for step in (training(model), in_graph_of(training(model))):
            with Heard() as lines:
                for number in range(5):
                    step(batch(number + 7 * rank))
            if rank == 0:
                assert 3 <= len(lines) <= 5, lines
            for line in lines:
                has(line, "step train(x: float32 (8, 4)): ranks 0 and 1 are of one replica")
                has(line, "feed different batches", "seed=smp.dp_rank()")


def state_model() -> Any:
    return smp.state.model


def check_different_sizes(rank: int, size: int) -> None:
    mine, other = f"x: float32 ({8 + 4 * rank}, 4)", f"x: float32 ({12 - 4 * rank}, 4)"
    with a_job(**BY_HAND):
        train = training(two_layers())
        for function in (train, in_graph_of(train)):
            text = told(rank, function, batch(0, BATCH + MICROBATCHES * rank))
            has(text, mine, other)
            has(text, "rank 0", "rank 1")
        begin = loss_of(train(batch(0)))  # nothing has come of it
        sizes = (BATCH, BATCH + MICROBATCHES) if rank == 0 else (BATCH, BATCH)
        for function in (train, in_graph_of(train)):  # one has a program, the other traces
            function(batch(0, sizes[0]))
            text = told(rank, function, batch(0, sizes[1]), kind=(*TOLD, tf.errors.OpError))
            assert "traces step train(x: float32 (12, 4))" in text, text
            assert "step train(x: float32 (8, 4))" in text, text
            assert loss_of(function(batch(0))) == begin


def check_different_sizes_that_a_graph_does_not_know(rank: int, size: int) -> None:
    with a_job(**BY_HAND):
        train = training(two_layers())
        spec = [tf.TensorSpec([None, WIDTH])]
        in_graph = tf.function(lambda x: train(x)[0].reduce_mean(), input_signature=spec)
        for _ in range(2):
            kind = (*TOLD, tf.errors.AbortedError)
            text = told(rank, in_graph, batch(0, BATCH + MICROBATCHES * rank), kind=kind)
            has(text, "x: float32 (8, 4)", "x: float32 (12, 4)")
            has(text, "rank 0", "rank 1")
            in_graph(batch(0))


# --- programs that differ ------------------------------------------------------------------------


def check_models_that_differ(rank: int, size: int) -> None:
    a, b = (0, dense("a")), (1, dense("b"))
    norm = (1, keras.layers.LayerNormalization(name="c"))
    factor = (0, Apply(lambda x: x * (1.0 + rank)))
    for one, other, words in (
        ((a, b, norm), (a, norm, b), ("rank 0 has ", "rank 1 has ")),
        ((a, b), (a, (1, dense("b", 5))), ("4", "5")),
        ((a, b), (a,), ("rank 0 has ", "rank 1 has ")),
        ((a, factor, b), (a, factor, b), ("Const", "apply")),
    ):
        with a_job(**BY_HAND):
            train = training(Model(*(one if rank == 0 else other)))
            for function in (train, in_graph_of(train)):
                text = told(rank, function, batch(0))
                assert "The first difference: rank 0 has " in text, text
                for word in words:
                    assert word in text, (word, text)
            assert not [each for each in state_model()._smp_book.records if each.is_decided]


def check_python_errors_while_tracing(rank: int, size: int) -> None:
    for error in (ZeroDivisionError("mine"), StopIteration("mine"), SystemExit("mine")):
        with a_job(**BY_HAND):
            is_wrong = [True]

            def fail(x: Any, error: BaseException = error, is_wrong: list[bool] = is_wrong) -> Any:
                if is_wrong[0] and rank == 1:
                    raise error
                return x

            train = training(Model((0, dense("a")), (1, Apply(fail)), (1, dense("b"))))
            for function in (train, in_graph_of(train)):
                kind = (type(error), *STAGING) if rank == 1 else StepAborted
                text = told(rank, function, batch(0), kind=kind)
                if rank == 0:
                    assert "rank 1 (partition 1, host " in text, text
                    assert f"{type(error).__name__}: " in text, text
                assert "mine" in text, text
            is_wrong[0] = False
            assert np.isfinite(loss_of(in_graph_of(train)(batch(0))))


def check_steps_in_another_order(rank: int, size: int) -> None:
    with a_job(**BY_HAND):
        model = two_layers()
        train = training(model)

        @smp.step
        def evaluate(x: Any) -> Any:
            return model(x)

        for _ in range(2):
            text = told(rank, train if rank else evaluate, batch(0))
            has(text, "step train", "step evaluate")
        train(batch(0))
        evaluate(batch(0))
        text = told(rank, train if rank else evaluate, batch(0))
        has(text, "step train(", "step evaluate(")
        train(batch(0))


# --- partitions ----------------------------------------------------------------------------------


def check_partitions_that_cannot_be(rank: int, size: int) -> None:
    shared = dense("shared")

    class Tied(keras.layers.Layer):
        """Uses another layer's variable."""

        def call(self, x: Any) -> Any:
            return tf.matmul(x, tf.convert_to_tensor(shared.kernel), transpose_b=True)

    def loop(x: Any) -> Any:
        def body(number: Any, x: Any) -> Any:
            with smp.partition(1):
                return number + 1, tf.tanh(x)

        return tf.while_loop(lambda number, _: number < 3, body, [0, x])[1]

    a = (0, dense("a"))
    for layers, words in (
        ([a, (2, dense("b"))], ("smp.partition(2)", "0 to 1")),
        ([a, (-1, dense("b"))], ("smp.partition(-1)", "0 to 1")),
        ([(0, shared), (1, shared)], ("shared", "0", "1")),
        ([(0, shared), (1, Tied(name="tied"))], ("shared", "tied", "0", "1")),
        ([a, (0, Apply(loop, "loop"))], ("loop", "smp.partition(1)", "expected it around")),
    ):
        with a_job(**BY_HAND):
            train = training(Model(*layers))
            for function in (train, in_graph_of(train)):
                text = told(rank, function, batch(0), kind=ValueError)
                for word in words:
                    assert word in text, (word, text)


def check_what_cannot_travel(rank: int, size: int) -> None:
    class Listing(Model):
        def call(self, x: Any) -> Any:
            shape = [WIDTH]
            with smp.partition(0):
                cells = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=shape)
            with smp.partition(1):
                x = tf.raw_ops.TensorListStack(
                    input_handle=cells, element_shape=shape, element_dtype=tf.float32
                )
            return super().call(x)

    class Looking(Model):
        def call(self, x: Any) -> Any:
            with smp.partition(0):
                table = tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.int64)
            with smp.partition(1):
                size = tf.raw_ops.LookupTableSizeV2(table_handle=table)
                x = x * tf.cast(size, tf.float32)
            return super().call(x)

    for kind, words in (
        (Listing, ("TensorListStack", "cannot be sent", "smp.partition")),
        (Looking, ("LookupTableSizeV2", "cannot be sent", "smp.partition")),
    ):
        with a_job(**BY_HAND):
            train = training(kind((0, dense("a")), (1, dense("b"))))
            text = told(rank, train, batch(0), kind=ValueError)
            has(text, *words)


# --- what steps and models refuse ----------------------------------------------------------------


def check_a_model_outside_of_a_step(rank: int, size: int) -> None:
    with a_job(**BY_HAND):
        model = two_layers()
        for function in (model, tf.function(lambda x: model(x))):
            for _ in range(2):
                text = raised(RuntimeError, function, batch(0))
                assert "Model was called outside of a step" in text, text
                has(text, "@smp.step", "return model(x, training=False)")
            training(model)(batch(0))


def check_a_step_in_a_step(rank: int, size: int) -> None:
    with a_job(**BY_HAND):
        train = training(two_layers())

        @smp.step
        def outer(x: Any) -> Any:
            return train(x)

        for function in (outer, tf.function(outer)):
            text = raised(RuntimeError, function, batch(0))
            assert "train was called inside of a step" in text, text
            assert "its __wrapped__" in text, text
        train(batch(0))


def check_updates_and_collectives_in_a_step(rank: int, size: int) -> None:
    import smdistributed.dataparallel.tensorflow as sdp

    sdp.init()
    with a_job(**BY_HAND):
        model = two_layers()
        optimizer = keras.optimizers.SGD(0.1)

        def loss_and_gradients(x: Any) -> Any:
            loss = tf.reduce_mean(tf.square(model(x)))
            return loss, optimizer.get_gradients(loss, model.trainable_variables)

        @smp.step
        def updates(x: Any) -> Any:
            loss, gradients = loss_and_gradients(x)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @smp.step
        def assigns(x: Any) -> Any:
            loss, gradients = loss_and_gradients(x)
            for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
                variable.assign_sub(gradient)
            return loss

        @smp.step
        def reduces(x: Any) -> Any:
            return sdp.allreduce(loss_and_gradients(x)[0], 0, 1)

        @smp.step
        def gathers(x: Any) -> Any:
            loss_and_gradients(x)
            return tf.cond(x[0, 0] > 0, lambda: sdp.allgather(x), lambda: x)

        for function, words in (
            (updates, ("apply_gradients", "outside")),
            (assigns, ("a/kernel", "after the step")),
            (reduces, ("a collective (", "@smp.step", ".accumulate()")),
            (gathers, ("a collective (", "@smp.step")),
        ):
            for each in (function, tf.function(function)):
                text = told(rank, each, batch(0), kind=RuntimeError)
                for word in words:
                    assert word in text, (word, text)
        before = [each.numpy() for each in training_variables(model, batch(0))]
        for variable, value in zip(model.variables, before, strict=True):
            assert (variable.numpy() == value).all()
    sdp.shutdown()


def training_variables(model: Any, x: Any) -> list[Any]:
    training(model)(x)
    return list(model.variables)


def check_a_step_output_is_no_tensor(rank: int, size: int) -> None:
    with a_job(**BY_HAND):
        model = two_layers()
        loss, gradients = training(model)(batch(0))
        for function in (
            lambda: tf.reduce_mean(loss),
            lambda: keras.metrics.Mean()(loss),
            lambda: keras.optimizers.SGD(0.1).apply_gradients(
                zip(gradients, model.trainable_variables, strict=True)
            ),
        ):
            text = raised((TypeError, RuntimeError), function)
            has(text, "StepOutput", "reduce_mean()")


def check_models_that_cannot_be_made(rank: int, size: int) -> None:
    class Forgetful(smp.DistributedModel):
        def __init__(self) -> None:
            self.layer = dense()

        def call(self, x: Any) -> Any:
            return self.layer(x)

    class Broken(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            raise ZeroDivisionError("mine")

    with a_job(**BY_HAND):
        text = raised((RuntimeError, AttributeError, TypeError), Forgetful)
        assert "super().__init__()" in text, text
        assert "class Forgetful" in text or "Forgetful.__init__" in text, text
        raised(ZeroDivisionError, Broken)
        inputs = keras.Input([WIDTH])
        text = raised(TypeError, smp.DistributedModel, inputs=inputs, outputs=dense()(inputs))
        has(text, "functional model", "self.inner = tf.keras.Model")
        text = raised(TypeError, smp.DistributedModel, inputs, dense()(inputs))
        has(text, "functional model", "self.inner = tf.keras.Model")

        model = two_layers()
        for _ in range(2):
            text = raised(MultipleDistributedModelError, two_layers)
            assert "a second smp.DistributedModel, Model" in text, text
            assert "smp.reset()" in text, text
        train = training(model)
        train(batch(0))
        is_alive = weakref.ref(model)
        del model, train
    gc.collect()
    assert is_alive() is None
    with a_job(**BY_HAND):
        training(two_layers())(batch(0))


def check_strategies_with_several_replicas(rank: int, size: int) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    with a_job(**BY_HAND), pytest.MonkeyPatch.context() as patch:
        with strategy.scope():
            model = two_layers()
        train = training(model)
        with strategy.scope():
            train(batch(0))
        patch.setattr(type(strategy), "num_replicas_in_sync", 2)
        with strategy.scope():
            text = raised(RuntimeError, train, batch(0))
        has(text, "was called under OneDeviceStrategy with 2 replicas", '"horovod": True')
        train(batch(0))
    with a_job(**BY_HAND), pytest.MonkeyPatch.context() as patch, strategy.scope():
        patch.setattr(type(strategy), "num_replicas_in_sync", 2)
        has(raised(RuntimeError, two_layers), "Model was made under OneDeviceStrategy with 2")


def check_two_kerases(rank: int, size: int) -> None:
    is_legacy = "tf_keras" in keras.layers.Layer.__module__
    other = importlib.import_module("keras" if is_legacy else "tf_keras")

    class Mixed(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.parts = {"first": [dense()], "second": [other.layers.Dense(2)]}

    with a_job(**BY_HAND):
        text = raised(ConfigError, Mixed)
        has(text, "Two Kerases are in use", "TF_USE_LEGACY_KERAS=1")
        training(two_layers())(batch(0))


def check_a_tensorflow_that_lacks_something(rank: int, size: int) -> None:
    needed = (*NOT_PUBLIC, ("tensorflow", "__internal__.Nothing"), ("tensorflow.nothing", "do"))
    text = raised(ImportError, require_what_is_not_public, needed)
    assert "has no tensorflow.__internal__.Nothing, tensorflow.nothing.do, with" in text, text
    assert "one of the versions 2.16 to 2.21" in text, text


def check_a_variable_without_gradient(rank: int, size: int) -> None:
    class Wasteful(Model):
        def build(self, shape: Any) -> None:
            self.unused = self.add_weight(name="unused", shape=[2], initializer="ones")
            super().build(shape)

        def call(self, x: Any) -> Any:
            return super().call(x) + 0.0 * tf.stop_gradient(tf.reduce_sum(self.unused))

    with a_job(**BY_HAND):
        train = training(Wasteful((0, dense("a")), (1, dense("b"))))
        text = told(rank, train, batch(0), kind=(ValueError, StepAborted))
        assert "unused" in text, text


def check_compilation_is_refused_with_a_warning(rank: int, size: int) -> None:
    for argument in ("jit_compile", "experimental_compile"):
        with a_job(**BY_HAND), Heard() as lines:
            train = training(two_layers(), **{argument: True})
            train(batch(0))
            assert [line for line in lines if "jit_compile=True is ignored" in line], lines
    with a_job(**BY_HAND):
        train = training(two_layers())
        compiled = tf.function(lambda x: train(x)[0].reduce_mean(), jit_compile=True)
        text = told(rank, compiled, batch(0), kind=Exception)
        assert "jit_compile" in text, text
    with pytest.raises(TypeError, match=r"got nonsense; expected input_signature"):
        smp.step(nonsense=1)
