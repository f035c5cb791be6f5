# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks run that make steps in other ways than as plain functions. For `test_steps.py`."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from one_process import require_close
from refusing_ranks import Heard, Model, dense
from tape_ranks import LABELS, WIDTH, X, a_job, two_alike

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.step import step_function
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.variables import raw
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

FuncGraph = tf.__internal__.FuncGraph


def _total(model: Any, x: Any) -> Any:
    return tf.reduce_sum(model(x))


class Trainer(dict):  # type: ignore[type-arg]  # a container, which is not to be cut
    """Has steps of all kinds."""

    def __init__(self, model: Any, scale: float) -> None:
        super().__init__(numbers=np.zeros(3, np.float32))
        self.model, self.scale = model, scale

    @smp.step
    def method(self, x: Any, times: float = 1.0) -> Any:
        """A docstring."""
        if tf.reduce_sum(x) > -1e9:  # AutoGraph converts it
            x = x + 0.0
        return _total(self.model, x) * self.scale * times

    @smp.step(input_signature=[tf.TensorSpec([None, WIDTH], tf.float32)], autograph=False)
    def described(self, x: Any) -> Any:
        return _total(self.model, x) * self.scale

    @smp.step
    def without_self(x: Any) -> Any:  # noqa: N805
        return tf.reduce_sum(x)

    @smp.step(non_split_inputs=["this"])
    def with_another_name(this: Any, x: Any) -> Any:  # noqa: N805
        return tf.reduce_sum(x) * this.scale

    @staticmethod
    @smp.step
    def static(x: Any) -> Any:
        return tf.reduce_sum(x)

    @classmethod
    @smp.step
    def of_class(cls, x: Any) -> Any:
        return tf.reduce_sum(x) * len(cls.__name__)


def check_attributes_and_methods(rank: int, size: int) -> None:
    with a_job(partitions=size):
        model = Model((0, dense("a")), (size - 1, dense("b")))
        one, two = Trainer(model, 1.0), Trainer(model, 3.0)
        total = float(one.method(X).reduce_sum())
        for _ in range(2):
            np.testing.assert_allclose(two.method(X).reduce_sum(), 3.0 * total, rtol=1e-5)
            np.testing.assert_allclose(two.method(X, times=2.0).reduce_sum(), 6 * total, rtol=1e-5)
            np.testing.assert_allclose(two.described(X).reduce_sum(), 3.0 * total, rtol=1e-5)
            np.testing.assert_allclose(one.described(X[:4]).reduce_sum().shape, ())
        np.testing.assert_allclose(Trainer.method(two, X).reduce_sum(), 3.0 * total, rtol=1e-5)
        in_graph = tf.function(lambda x: one.method(x).reduce_sum())
        np.testing.assert_allclose(in_graph(X), total, rtol=1e-5)
        for step in (one.without_self, Trainer.without_self, one.static, Trainer.static):
            np.testing.assert_allclose(step(X).reduce_sum(), X.sum(), rtol=1e-5)
        np.testing.assert_allclose(one.of_class(X).reduce_sum(), 7.0 * X.sum(), rtol=1e-5)
        # The instance is not passed: functions without self are called through instances, too.
        text = raised(TypeError, one.with_another_name, X)
        assert (
            "If with_another_name is a method, call its first parameter self and not this" in text
        )
        np.testing.assert_allclose(one.with_another_name(two, X).reduce_sum(), 3 * X.sum(), 1e-5)
        text = raised(TypeError, one.with_another_name, two, X, X)
        assert "If with_another_name" not in text
        assert Trainer.method.__doc__ == one.method.__doc__ == "A docstring."
        assert one.method is one.method
        gone = weakref.ref(two)
        del two
        gc.collect()
        assert gone() is None
        assert len(Trainer.__dict__["method"]._methods) == 1


class _Called:
    """An object that is called, and has no name."""

    def __call__(self, x: Any) -> Any:
        return tf.reduce_sum(x)


def check_what_has_no_name(rank: int, size: int) -> None:
    """Until 2026-11 steps of these were known by an address, which is another on each rank."""
    with a_job(partitions=size):
        model = Model((0, dense("a")), (size - 1, dense("b")))
        total = float(smp.step(lambda x: _total(model, x))(X).reduce_sum())
        part = functools.partial(functools.partial(_total, model))
        np.testing.assert_allclose(smp.step(part)(X).reduce_sum(), total, rtol=1e-5)
        np.testing.assert_allclose(smp.step(_Called())(X).reduce_sum(), X.sum(), rtol=1e-5)


def check_arguments_of_a_tf_function(rank: int, size: int) -> None:
    """Until 2026-11 the plain function ran, in one piece, as TensorFlow unwraps its arguments."""
    with a_job(partitions=size, microbatches=2):
        model = Model((0, dense("a")), (size - 1, dense("b")))
        one, two = Trainer(model, 1.0), Trainer(model, 3.0)
        rows = smp.step(lambda x: (tf.shape(x)[0], _total(model, x)))
        other = smp.step(lambda x: (2 * tf.shape(x)[0], _total(model, x)))
        traced = []

        @tf.function
        def call(x: Any, step: Any) -> Any:
            traced.append(step)
            return [each.stack() for each in step(x)]

        @tf.function
        def call_default(x: Any, step: Any = rows) -> Any:
            return [each.stack() for each in step(x)]

        for _ in range(2):
            for step, times in ((rows, 1), (other, 2)):
                assert call(X, step)[0].numpy().tolist() == [times * len(X) // 2] * 2
            assert call_default(X)[0].numpy().tolist() == [len(X) // 2] * 2
            assert call_default(X, other)[0].numpy().tolist() == [len(X)] * 2
        assert [each is rows for each in traced] == [True, False]
        total = tf.function(lambda x, step: step(x).reduce_sum())
        once = float(total(X, one.method))
        np.testing.assert_allclose(once, one.method(X).reduce_sum(), rtol=1e-5)
        np.testing.assert_allclose(total(X, two.method), 3.0 * once, rtol=1e-5)
        gone = weakref.ref(other)
        del other, step
        traced.clear()
        gc.collect()
        assert gone() is None


def check_a_trace_goes_when_its_step_is_made(rank: int, size: int) -> None:
    with a_job(partitions=size):
        model = Model((0, dense("a")), (size - 1, dense("b")))

        @smp.step
        def short_lived(x: Any) -> Any:
            total = _total(model, x)
            return total, gradients_in_step(total, model.trainable_variables)

        short_lived(X)
        gc.collect()
        graphs = (each for each in gc.get_objects() if isinstance(each, FuncGraph))
        names = [each.name for each in graphs]
        assert "smp_step_short_lived" not in names, names
        short_lived(X)


def check_arguments_of_tf_function(rank: int, size: int) -> None:
    with a_job(partitions=size), Heard() as lines:
        step = smp.step(func=lambda x: tf.reduce_sum(x), jit_compile=False, reduce_retracing=False)
        np.testing.assert_allclose(step(X).reduce_sum(), X.sum(), rtol=1e-5)
        assert not lines, lines

        @smp.step(experimental_implements="f", reduce_retracing=True)
        def ignored(x: Any) -> Any:
            return tf.reduce_sum(x)

        assert ignored.python_function.__name__ == "ignored"
        assert len(lines) == 2, lines
        assert "reduce_retracing has no effect" in lines[0], lines
        assert "write input_signature" in lines[0], lines
        assert "experimental_implements has no effect" in lines[1], lines
        del lines[:]
        before = step_function._OF_TF_FUNCTION
        step_function._OF_TF_FUNCTION = before - {"experimental_relax_shapes"}
        try:
            smp.step(experimental_relax_shapes=True)
        finally:
            step_function._OF_TF_FUNCTION = before
        assert "experimental_relax_shapes is dropped: TensorFlow" in lines[0], lines


def check_options_of_autograph(rank: int, size: int) -> None:
    def positive(x: Any) -> Any:
        assert tf.reduce_sum(x) > 0.0, "not positive"
        return tf.reduce_sum(x)

    with a_job(partitions=size):
        options = tf.autograph.experimental.Feature.ASSERT_STATEMENTS
        step = smp.step(positive, experimental_autograph_options=options)
        np.testing.assert_allclose(step(X**2).reduce_sum(), (X**2).sum(), rtol=1e-5)
        assert "not positive" in raised(Exception, step, -(X**2))
        assert "symbolic" in raised(TypeError, smp.step(positive), X)


def check_averages_of_tensorflow(rank: int, size: int) -> None:
    """`tf.train.ExponentialMovingAverage` keeps the averages where the variables are."""
    with a_job(partitions=size):
        theirs, mine = two_alike()
        sides = []
        for model, step in ((theirs, smp.step), (mine, lambda function: function)):
            average = tf.train.ExponentialMovingAverage(0.5)
            sides.append((model, average, _updates(model, average, step)))
        for number in range(3):
            for _, _, update in sides:
                update(tf.constant(X) + float(number), tf.constant(LABELS))
        shadows = [
            [average.average(raw(each)) for each in model.everything()[:-2]]
            for model, average, _ in sides
        ]
        here = {id(raw(each)) for each in theirs.trainable_variables}
        for variable, one, other in zip(theirs.everything()[:-2], *shadows, strict=True):
            assert (one is not None) == (id(variable) in here)
            if one is not None:
                require_close(one.numpy(), other.numpy(), 1e-5, variable.name)


def _updates(model: Any, average: Any, step: Any) -> Any:
    """Changes weights, and averages them, in a function."""

    @step
    def gradients_of(x: Any, words: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, words) ** 2)
        return tape.gradient(loss, model.everything()[:-2])

    @tf.function
    def update(x: Any, words: Any) -> None:
        found = gradients_of(x, words)
        if step is smp.step:
            found = [each.accumulate() for each in found]
        pairs = zip(found, model.everything()[:-2], strict=True)
        pairs = [(each, variable) for each, variable in pairs if each is not None]
        for gradient, variable in pairs:
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        average.apply([variable for _, variable in pairs])

    return update


def check_what_is_used_inside_and_outside_of_the_model(rank: int, size: int) -> None:
    """A table that embeds words and makes logits; and a penalty on all weights, by a tape."""

    def loss_of(model: Any, x: Any, words: Any, variables: Any) -> Any:
        table = tf.convert_to_tensor(model.words.embeddings)[:, :3]
        loss = tf.reduce_mean(tf.matmul(model(x, words), table, transpose_b=True) ** 2)
        return loss + 0.1 * sum(tf.nn.l2_loss(tf.convert_to_tensor(v)) for v in variables)

    with a_job(partitions=size):
        theirs, mine = two_alike()

        @smp.step
        def step(x: Any, words: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(theirs, x, words, theirs.trainable_variables)
            return tape.gradient(loss, theirs.trainable_variables)

        with tf.GradientTape() as tape:
            loss = loss_of(mine, X, LABELS, mine.trainable_variables)
        everything = mine.everything()
        expected = tape.gradient(loss, everything)
        found = step(X, LABELS)
        places = {id(raw(each)): place for place, each in enumerate(theirs.everything())}
        for variable, gradient in zip(theirs.trainable_variables, found, strict=True):
            one = tf.convert_to_tensor(gradient.accumulate())
            other = tf.convert_to_tensor(expected[places[id(raw(variable))]])
            require_close(one.numpy(), other.numpy(), 1e-5, variable.name)
        assert sum(smp.allgather(len(found), smp.MP_GROUP)) == len(everything)


class Tables(smp.DistributedModel):
    """Of three parts, of which a test needs the first alone; the last one reads no input."""

    def __init__(self, size: int) -> None:
        super().__init__(name="m")
        self.first, self.second = dense("a"), dense("b")
        self.table = self.add_weight(name="table", shape=(3,), initializer="ones")
        self.last = size - 1

    def call(self, x: Any, training: Any = None) -> Any:
        with smp.partition(0):
            y = self.first(x)
        if training:
            with smp.partition(1):
                y = self.second(y)
        with smp.partition(self.last):
            return y, tf.convert_to_tensor(self.table) * 2.0


def check_tests_that_do_not_reach_a_partition(rank: int, size: int) -> None:
    with a_job(partitions=size, auto_partition=False, default_partition=0):
        model = Tables(size)

        @smp.step
        def test(x: Any) -> Any:
            y, table = model(x, training=False)
            return y, table

        @smp.step
        def only_the_table(x: Any) -> Any:
            return model(x, training=False)[1]

        @smp.step
        def train(x: Any) -> Any:
            with tf.GradientTape() as tape:
                y, table = model(x, training=True)
                loss = tf.reduce_sum(y**2) + tf.reduce_sum(table)
            return loss, tape.gradient(loss, model.trainable_variables)

        in_graph = tf.function(lambda x: [each.outputs for each in test(x)])
        for _ in range(2):
            y, table = test(X)
            assert y.merge().shape == (8, WIDTH)
            np.testing.assert_array_equal(table.stack(), np.full((2, 3), 2.0))
            np.testing.assert_array_equal(only_the_table(X)[1], [2.0] * 3)
            np.testing.assert_array_equal(in_graph(X)[0][0], y[0])
            loss, gradients = train(X)
            assert np.isfinite(loss.reduce_mean())
            assert all(each.is_local for each in gradients)


def check_sparse_gradients_of_a_captured_list(rank: int, size: int) -> None:
    """Those of another rank are no gradients here, sparse ones too."""
    with a_job(partitions=size):
        model, _ = two_alike()
        optimizer = tf.keras.optimizers.SGD(0.1)
        everything = model.everything()[:-2]

        @smp.step
        def step(x: Any, words: Any) -> Any:
            loss = tf.reduce_sum(model(x, words))
            return optimizer.get_gradients(loss, everything)

        here = [any(one is raw(each) for each in model.variables) for one in everything]
        found = step(X, LABELS)
        assert [each.is_local for each in found] == here
        assert [each.accumulate() is not None for each in found] == here
        counts = smp.allgather(sum(here), smp.MP_GROUP)
        assert sum(counts) == len(everything), counts
        sparse = [isinstance(each.accumulate(), tf.IndexedSlices) for each in found]
        assert sum(smp.allgather(sum(sparse), smp.MP_GROUP)) == 1
