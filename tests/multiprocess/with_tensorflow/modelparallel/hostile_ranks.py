# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_hostile.py."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import tempfile
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from with_tensorflow.tf_ranks import no_job, raised

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.checkpoints import files, keras_methods
from smdistributed.modelparallel.tensorflow.step.gradients import gradients_in_step
from smdistributed.modelparallel.tensorflow.step.marks import mark_of
from smdistributed.modelparallel.tensorflow.step.pipeline import Pipeline, current_pipeline

around_checks = no_job
K = tf.keras.layers
X = np.random.RandomState(0).randn(8, 6).astype("f4")
Y = np.random.RandomState(1).randn(8, 3).astype("f4")


@contextlib.contextmanager
def pipeline(size: int) -> Iterator[Any]:
    """A job without seeds, and a model with one layer on the first and one on the last rank."""
    smp.init(
        {"partitions": size, "microbatches": 4, "auto_partition": False, "default_partition": 0}
    )

    class Model(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.first = K.Dense(5, activation="tanh", kernel_initializer="ones")
            self.second = K.Dense(3, kernel_initializer="ones")

        def call(self, x: Any) -> Any:
            with smp.partition(0):
                x = self.first(x)
            with smp.partition(size - 1):
                return self.second(x)

    try:
        yield Model()
    finally:
        smp.reset()


def same_everywhere(*values: Any) -> None:
    mine = [np.asarray(each).tolist() for each in values]
    assert smp.allgather(mine, smp.WORLD) == [mine] * smp.size()


def check_a_state_of_nobody_in_two_partitions(rank: int, size: int) -> None:
    if not hasattr(tf.keras, "random"):  # of Keras 3
        return
    with pipeline(size) as model:
        counter = tf.Variable(0.0)
        noise = tf.keras.random.normal

        @smp.step
        def drawn_outside(x: Any, y: Any) -> Any:
            jitter = noise([2, 3])
            loss = tf.reduce_mean((model(x) - y - jitter) ** 2)
            return loss, jitter, gradients_in_step(loss, model.trainable_variables)

        loss, jitter, _ = drawn_outside(X, Y)
        same_everywhere(loss.stack(), jitter.stack())

        def both(change: Any) -> Any:
            original = model.second.call
            model.first.activation = lambda x: x + change()
            model.second.call = lambda x: original(x) + change()
            try:
                return raised(ValueError, smp.step(lambda x: model(x)), X)
            finally:
                model.first.activation, model.second.call = tf.tanh, original

        assert "SeedGenerator of its own" in both(lambda: noise([]))
        assert "Make it in the model" in both(lambda: counter.assign_add(1.0))
        assert drawn_outside(X, Y)[0].stack().shape == (4,)


def check_what_is_drawn_outside_of_the_model(rank: int, size: int) -> None:
    generator = tf.random.Generator.from_non_deterministic_state()
    with pipeline(size) as model:

        @tf.function
        def noisy(y: Any) -> Any:
            return y + tf.random.normal(tf.shape(y))

        @smp.step
        def step(x: Any, y: Any) -> Any:
            part, order = tf.random.uniform([]), tf.random.shuffle(tf.range(2))
            jitter = tf.numpy_function(lambda: np.float32(np.random.rand()), [], tf.float32)
            labels = tf.zeros([1, 1], tf.int64)
            sampled = tf.random.log_uniform_candidate_sampler(labels, 1, 9, True, 10**6)[0]
            box = tf.image.sample_distorted_bounding_box([999, 999, 3], tf.ones([1, 1, 4]) / 2)[0]
            now = tf.timestamp()
            picture = tf.reshape(tf.range(900.0), [1, 30, 30, 1])
            pooled = tf.nn.fractional_max_pool(picture, [1.0, 1.44, 1.73, 1.0])[0]
            counts = generator.binomial([9], 1e6, 0.5)
            extras = sampled, box, now, pooled, counts
            extras = [tf.reduce_sum(tf.cast(each, tf.float32)) for each in extras]
            target = noisy(tf.gather(y, order)) + jitter + tf.add_n(extras) * 0.0
            logits = model(tf.gather(x, order) * part)
            loss = tf.reduce_mean((logits - target * part) ** 2)
            (by_logits,) = tf.gradients(loss, [logits])
            gradients = gradients_in_step(loss, model.trainable_variables)
            drawn = part, order, sampled, box, now, pooled, counts
            return loss, drawn, target, logits, by_logits, gradients

        loss, drawn, target, logits, by_logits, _ = step(X, Y)
        same_everywhere(*(each.stack() for each in (loss, *drawn, target, logits)))
        part = drawn[0]
        assert len(set(part.stack().numpy())) == 4
        difference = logits.stack() - target.stack() * part.stack()[:, None, None]
        np.testing.assert_allclose(loss.stack(), np.mean(difference**2, (1, 2)), 1e-5)
        np.testing.assert_allclose(by_logits.stack(), difference / 3, 1e-5, 1e-6)


@contextlib.contextmanager
def warnings_with(text: str) -> Iterator[list[str]]:
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: text in record.getMessage())
    logging.getLogger("smdistributed").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("smdistributed").removeHandler(handler)


def check_batches_that_differ_later(rank: int, size: int) -> None:
    with pipeline(size) as model, warnings_with("feed different batches") as found:

        @smp.step
        def step(x: Any) -> Any:
            return model(x)

        for number in range(6):
            is_behind = number == 5 and rank == 1
            step(X * (number - 1 if is_behind else number))
            assert len(found) == (number == 5 and rank == 0), number


def check_threads_that_trace_at_once(rank: int, size: int) -> None:
    with pipeline(size) as model:
        has_begun, is_asked = threading.Event(), threading.Event()

        @smp.step
        def one(x: Any) -> Any:
            has_begun.set()
            is_asked.wait(60)
            return model(x)

        two = smp.step(lambda x: model(x) * 2.0)

        def in_graph(step: Any) -> Any:
            return tf.function(lambda x: step(x).concat())

        functions = [in_graph(each) for each in (one, two, one)]
        with concurrent.futures.ThreadPoolExecutor() as threads:
            first = threads.submit(functions[0].get_concrete_function, tf.constant(X))
            assert has_begun.wait(60)
            others = [
                threads.submit(each.get_concrete_function, tf.constant(X)) for each in functions[1:]
            ]
            concurrent.futures.wait(others, 0.2)
            is_asked.set()
            for each in (first, *others):
                each.result()
        found = [each(tf.constant(X)).numpy() for each in functions]
        expected = one(X).concat().numpy()
        for each, factor in zip(found, (1, 2, 1), strict=True):
            np.testing.assert_allclose(each, expected * factor, 1e-6)


def check_threads_that_begin_at_once(rank: int, size: int) -> None:
    """Until 2026-11 each had a pipeline of its own, and took the messages of the other's."""
    with pipeline(size) as model, concurrent.futures.ThreadPoolExecutor() as threads:
        has_begun, is_asked = threading.Event(), threading.Event()
        original = Pipeline.__init__

        def made(self: Any, job: Any) -> None:
            has_begun.set()
            is_asked.wait(60)
            original(self, job)

        with mock.patch.object(Pipeline, "__init__", made):
            first = threads.submit(current_pipeline, "a test")
            assert has_begun.wait(60)
            second = threads.submit(current_pipeline, "a test")
            concurrent.futures.wait([second], 0.2)
            is_asked.set()
            assert first.result() is second.result()
        assert smp.step(lambda x: model(x))(X).concat().shape == (8, 3)


def check_threads_whose_batches_are_compared(rank: int, size: int) -> None:
    """Until 2026-11 another thread's step could run between what is compared and what runs."""
    with pipeline(size) as model, concurrent.futures.ThreadPoolExecutor() as threads:
        step, found, order = smp.step(lambda x: model(x)), current_pipeline("a test"), []
        has_begun, is_asked = threading.Event(), threading.Event()
        compare, run = found._compare, found.driver.run

        def comparing(*args: Any) -> None:
            order.append("compares")
            compare(*args)
            has_begun.set()
            is_asked.wait(60)

        def running(*args: Any, **kwargs: Any) -> Any:
            order.append("runs")
            return run(*args, **kwargs)

        with (
            mock.patch.object(found, "_compare", comparing),
            mock.patch.object(found.driver, "run", running),
        ):
            first = threads.submit(step, X)
            assert has_begun.wait(60)
            second = threads.submit(step, X)
            concurrent.futures.wait([second], 0.2)
            is_asked.set()
            np.testing.assert_array_equal(first.result().concat(), second.result().concat())
        assert order == ["compares", "runs"] * 2


def check_lists_on_other_threads_while_a_model_is_saved(rank: int, size: int) -> None:
    """Until 2026-11 who trained meanwhile paired gradients with variables of other ranks."""
    with (
        pipeline(size) as model,
        concurrent.futures.ThreadPoolExecutor() as threads,
        tempfile.TemporaryDirectory() as folder,
    ):
        smp.step(lambda x: model(x))(X)
        seen = []

        def listed() -> list[int]:
            return [id(each) for each in model.trainable_variables]

        def write(*_: Any) -> None:
            seen.append((len(listed()), threads.submit(listed).result()))

        with mock.patch.object(files, "write_whole", write):
            model.save_weights(f"{folder}/model.weights.h5")
        assert seen == ([(4, listed())] if rank == 0 else [])


def check_threads_that_gather_at_once(rank: int, size: int) -> None:
    """Until 2026-11 their exchanges mixed: errors, and groups that could not be used again."""
    with pipeline(size) as model, concurrent.futures.ThreadPoolExecutor() as threads:
        smp.step(lambda x: model(x))(X)
        has_begun, is_asked, begun = threading.Event(), threading.Event(), []
        contents = keras_methods._contents

        def begins(model: Any) -> Any:
            begun.append(model)
            has_begun.set()
            is_asked.wait(60)
            return contents(model)

        with mock.patch.object(keras_methods, "_contents", begins):
            first = threads.submit(model.get_weights)
            assert has_begun.wait(60)
            second = threads.submit(model.get_weights)
            concurrent.futures.wait([second], 0.2)
            assert len(begun) == 1
            is_asked.set()
            for one, other in zip(first.result(), second.result(), strict=True):
                np.testing.assert_array_equal(one, other)
        assert len(begun) == 2


def check_a_number_that_changes_with_each_call(rank: int, size: int) -> None:
    smp.init({"partitions": size, "microbatches": 1})
    with warnings_with("signatures") as found:

        @smp.step
        def step(x: Any, factor: float) -> Any:
            return tf.reduce_sum(x) * factor

        for number in range(9):
            assert step(tf.ones([2]), number / 2).reduce_mean() == number
            assert len(found) == (number >= 7), number
    smp.reset()


def check_marks_of_batches(rank: int, size: int) -> None:
    images = np.random.RandomState(0).randint(0, 256, (32, 28, 28)).astype("f4")
    others = np.random.RandomState(1).randint(0, 256, (32, 28, 28)).astype("f4")
    for one, other in (
        (images, others),
        ([1, 2], [2, 1]),
        (["a", "b"], ["a", "c"]),
        ("a", "b"),
        (True, False),
        (1j, 2j),
        (tf.cast([1, 2], tf.bfloat16), tf.cast([1, 3], tf.bfloat16)),
    ):
        one, other = tf.constant(one), tf.constant(other)
        assert mark_of([one]) == mark_of([tf.identity(one)]) != mark_of([other])
        assert mark_of([one, other]) != mark_of([other, one])
    assert mark_of([tf.zeros([0, 3]), tf.constant([], tf.string), tf.constant("")]) == 0
    assert mark_of([]) == 0


def check_results_that_are_not_of_the_trace(rank: int, size: int) -> None:
    with pipeline(size) as model:
        eager, variable, kept = tf.constant([3.0]), tf.Variable(2.0), {}

        @smp.step
        def eager_results(x: Any) -> Any:
            return model(x), eager, variable, 5, tf.IndexedSlices(eager, tf.constant([0]))

        _, *found, slices = eager_results(X)
        assert [each.reduce_sum().numpy().tolist() for each in found] == [[12.0], 8.0, 20]
        assert slices.reduce_sum().values.numpy().tolist() == [3.0] * 4

        @smp.step
        def of_an_earlier_trace(x: Any, again: bool) -> Any:
            value = model(x)
            return kept.setdefault("value", value)

        of_an_earlier_trace(X, False)
        assert "another graph" in raised(TypeError, of_an_earlier_trace, X, True)


def check_variables_of_others_outside_of_call(rank: int, size: int) -> None:
    with pipeline(size) as model:

        @smp.step
        def step(x: Any, y: Any) -> Any:
            logits = model(x)
            both = [tf.convert_to_tensor(each.kernel) for each in (model.first, model.second)]
            decay = 0.1 * sum(tf.nn.l2_loss(each) for each in both)
            loss = tf.reduce_mean((logits - y) ** 2) + decay
            gradients = gradients_in_step(loss, model.trainable_variables)
            return decay, model.second.bias, [tf.norm(each) for each in gradients], gradients

        decay, bias, norms, gradients = step(X, Y)
        np.testing.assert_allclose(decay.stack(), [0.1 * (30 + 15) / 2] * 4, 1e-6)
        assert bias.stack().shape == (4, 3)
        for norm, gradient in zip(norms, gradients, strict=True):
            expected = [np.linalg.norm(each) for each in gradient.outputs]
            np.testing.assert_allclose(norm.stack(), expected, 1e-5)


def check_assertions_and_effects_in_branches(rank: int, size: int) -> None:
    with pipeline(size) as model:
        model.first.counts = [tf.Variable(0.0, trainable=False) for _ in range(2)]
        original = model.first.call

        def call(x: Any) -> Any:
            in_branch, in_loop = model.first.counts
            tf.debugging.assert_less(tf.reduce_max(x), 100.0)

            def more() -> Any:
                in_branch.assign_add(1.0)
                return 1.0

            def again(number: Any) -> Any:
                in_loop.assign_add(1.0)
                return number + 1

            one = tf.cond(tf.reduce_sum(x) < 1e9, more, lambda: 1.0)
            tf.while_loop(lambda number: number < 3, again, [0])
            return original(x) * one

        model.first.call = call
        outside = tf.Variable(0.0)

        @smp.step
        def step(x: Any) -> Any:
            tf.debugging.assert_greater(tf.reduce_sum(x**2), 0.0)
            if tf.reduce_sum(x) < 1e9:
                outside.assign_add(1.0)
            logits = model(x)
            return logits, gradients_in_step(tf.reduce_sum(logits), model.trainable_variables)

        step(X)
        for wrong in (X * 0, X + 200):
            assert "assertion failed" in raised(Exception, step, wrong)
        step(X)
        assert outside.numpy() == 8.0
        if rank == 0:
            assert [each.numpy() for each in model.first.counts] == [8.0, 24.0]


def check_python_branches_in_call(rank: int, size: int) -> None:
    if hasattr(tf.keras, "random"):  # Keras 3 converts no `call`, in a `tf.function` neither
        return
    smp.init({"partitions": size, "microbatches": 2})

    class Doubles(K.Layer):
        def call(self, x: Any) -> Any:
            if tf.reduce_mean(x) > 0:
                return x * 2
            return x * 3

    class Model(smp.DistributedModel):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = K.Dense(3), Doubles(), K.Dense(1)

        def call(self, x: Any) -> Any:
            x = self.first(x) * 0 + x
            if tf.reduce_mean(x) > 0:
                x = x * 10
            return self.third(x) * 0 + self.second(x)

    model = Model()

    @smp.step
    def step(x: Any) -> Any:
        return model(x)

    found = step(np.float32([[1, 1, 1], [-1, -1, -1]])).concat()
    assert found[:, 0].numpy().tolist() == [20.0, -3.0]
    smp.reset()
