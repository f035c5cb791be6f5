# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_deadlocks.py run: collectives whose order TensorFlow could change.

Each rank delays what goes into its collectives at random, so that they get ready in another order
on every rank. Each collective carries its own number: were two of them to meet in another order on
some rank, sums would be wrong on all.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tf_ranks import job, require_same_bits

import smdistributed.dataparallel.tensorflow as sdp

CALLS = 8
BATCH = 4
WIDTH = 24
LAYERS = 6
LEARNING_RATE = 0.01
DELAY_S = 0.002


@contextlib.contextmanager
def around_checks(rank: int, size: int) -> Iterator[tuple[Rank]]:
    """A job with as many threads as the test says, between operations and within them."""
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ["INTER_OP_THREADS"]))
    tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["INTRA_OP_THREADS"]))
    with job(rank, size):
        yield (Rank(),)


class Rank:
    """What the checks are written with."""

    def __init__(self) -> None:
        self.rank, self.size = sdp.rank(), sdp.size()
        self.total = self.size * (self.size + 1) // 2
        self.delay_probability = 0.3
        self._random = random.Random(self.rank)

    def function(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """A `tf.function` of something that AutoGraph need not rewrite, which takes long."""
        made: Callable[..., Any] = tf.function(function, autograph=False, **options)
        return made

    def value(self, number: float) -> Any:
        """What this rank puts into a collective; the sum of all ranks' is `number * total`."""
        return tf.constant([float(number) * (self.rank + 1)])

    def sum(self, tensor: Any) -> Any:
        return sdp.oob_allreduce(tensor, op=sdp.ReduceOp.SUM)

    def delay(self, tensor: Any) -> Any:
        """The same tensor, on some calls later."""
        result = tf.py_function(self._sleep, [tensor], tensor.dtype)
        result.set_shape(tensor.shape)
        return result

    def delay_gradient(self, tensor: Any) -> Any:
        @tf.custom_gradient
        def run(x: Any) -> Any:
            return tf.identity(x), self.delay

        return run(tensor)

    def _sleep(self, tensor: Any) -> Any:
        if self._random.random() < self.delay_probability:
            time.sleep(DELAY_S)
        return tensor

    def late(self, number: float) -> Any:
        """The sum over ranks of `value(number)`, which gets ready at some time."""
        return self.sum(self.delay(self.value(number)))

    def expect(self, function: Callable[[], Any], *numbers: float, calls: int = CALLS) -> None:
        """Each call of the function returns these multiples of `total`."""
        wanted = [number * self.total for number in numbers]
        for call in range(calls):
            found = [float(tf.reduce_sum(each)) for each in function()]
            np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=f"call {call}")


def check_independent(r: Rank) -> None:
    """Nothing but the order of the program says which of them comes first."""

    @r.function
    def run() -> Any:
        return r.late(1), r.late(2), r.sum(r.value(3)), r.late(4)

    r.expect(run, 1, 2, 3, 4)


def check_unused_results(r: Rank) -> None:
    """A collective takes part on all ranks, whether this one looks at its result or not."""

    @r.function
    def run() -> Any:
        first = r.late(1)
        if r.rank == 0:
            tf.debugging.assert_near(first, [float(r.total)])
        r.late(5)
        second = r.late(2)
        r.sum(r.value(6))
        return second, r.sum(r.value(7))

    r.expect(run, 2, 7)


def check_nested_functions(r: Rank) -> None:
    """Grappler inlines them."""

    @r.function
    def inner(x: Any) -> Any:
        return r.sum(r.delay(x)), r.sum(r.delay(2 * x))

    @r.function
    def other(x: Any) -> Any:
        r.sum(r.delay(x))
        first, second = inner(x)
        return r.sum(3 * x), first + second

    @r.function
    def run() -> Any:
        before = r.late(10)
        a, b = inner(r.value(1))
        between = r.late(11)
        c, d = other(r.value(2))
        e, f = inner(r.value(5))
        return before, a, b, between, c, d, e, f, r.late(12)

    r.expect(run, 10, 1, 2, 11, 6, 6, 5, 10, 12)


def check_functions_that_are_not_inlined(r: Rank) -> None:
    @functools.partial(r.function, experimental_attributes={"_noinline": True})
    def inner(x: Any) -> Any:
        return r.sum(r.delay(x)), r.sum(r.delay(2 * x))

    @r.function
    def run() -> Any:
        a, b = inner(r.value(1))
        c, d = inner(r.value(3))
        return a, b, c, d, r.late(4)

    r.expect(run, 1, 2, 3, 6, 4)


def check_branches(r: Rank) -> None:
    step = tf.Variable(0)

    @tf.function
    def run() -> Any:
        step.assign_add(1)
        before = r.late(1)

        def one_way() -> Any:
            x, y = r.late(2), r.late(3)
            return x, y

        def other_way() -> Any:
            y, x = r.late(3), r.late(2)
            r.late(8)
            return x, y

        x, y = tf.cond(step % 2 == 0, one_way, other_way)
        if step % 3 == 0:
            r.late(9)
        if r.sum(r.value(1))[0] > 1.0:  # a branch that hangs on a collective
            r.late(7)
        return before, x, y, r.late(4)

    r.expect(run, 1, 2, 3, 4)


def check_loops(r: Rank) -> None:
    """Iterations may overlap as far as TensorFlow is concerned."""

    def body(i: Any, x: Any) -> Any:
        weight = tf.cast(i + 1, tf.float32)
        first, second = r.sum(r.delay(weight * r.value(1))), r.late(2)
        return i + 1, x + weight * first - second

    @tf.function
    def run() -> Any:
        before = r.late(1)
        a, b = tf.zeros([1]), tf.zeros([1])
        for i in tf.range(4):
            weight = tf.cast(i + 1, tf.float32)
            a += weight * r.sum(r.delay(weight * r.value(1)))
            b += r.late(2)
            r.sum(r.value(3))
        _, c = tf.while_loop(
            lambda i, x: i < 4, body, [tf.constant(0), tf.zeros([1])], parallel_iterations=10
        )
        # A loop whose end the ranks agree on.
        _, d = tf.while_loop(
            lambda i, x: r.sum(tf.cast(i, tf.float32)) < 3.0 * r.size,
            lambda i, x: (i + 1, x + r.late(1)),
            [tf.constant(0), tf.zeros([1])],
        )
        e = tf.map_fn(lambda x: r.sum(r.delay(x * r.value(1))), tf.constant([1.0, 2.0, 3.0]))
        return before, a, b, c, d, e, r.late(4)

    r.expect(run, 1, 30, 8, 22, 3, 6, 4, calls=CALLS // 2)


def check_loop_over_a_dataset(r: Rank) -> None:
    """The loop is an operation of tf.data then, and its body a function that tf.data runs."""
    data = tf.data.Dataset.range(1, 5).map(lambda x: tf.cast(x, tf.float32))
    data = data.map(r.delay, num_parallel_calls=2).prefetch(2)

    @tf.function
    def run() -> Any:
        before = r.late(1)
        a, b = tf.zeros([1]), tf.zeros([1])
        for x in data:
            a += r.sum(x * r.value(1))
            b += r.late(2)
        return before, a, b, r.late(4)

    r.expect(run, 1, 10, 8, 4, calls=CALLS // 2)


def check_eager_between_calls(r: Rank) -> None:
    """While a pipeline of tf.data runs Python functions beside."""
    data = tf.data.Dataset.range(CALLS).map(r.delay, num_parallel_calls=4).prefetch(4)

    @r.function
    def run() -> Any:
        return r.late(1), r.late(2)

    for number in data:
        assert float(r.sum(r.value(3))[0]) == 3 * r.total
        r.expect(run, 1, 2, calls=1)
        both = r.sum([r.value(4), r.value(int(number))])
        assert [float(each[0]) for each in both] == [4 * r.total, int(number) * r.total]
    tf.config.run_functions_eagerly(True)
    r.expect(run, 1, 2, calls=2)
    tf.config.run_functions_eagerly(False)


def check_retracing_on_one_rank(r: Rank) -> None:
    """Batches of one rank have another length now and then; and the tape sees new tensors."""
    for reduce_retracing in (False, True):
        weights = [tf.Variable(tf.ones([3])), tf.Variable(tf.ones([2])), tf.Variable(1.0)]

        @functools.partial(r.function, reduce_retracing=reduce_retracing)
        def run(x: Any, weights: Any = weights) -> Any:
            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_sum(each) for each in weights) * tf.reduce_mean(r.delay(x))
            tape = sdp.DistributedGradientTape(tape, op=sdp.ReduceOp.SUM)
            return *tape.gradient(loss, weights), r.sum(tf.reduce_mean(x))

        for call in range(5):
            rows = 3 + call if call % 2 and r.rank == 1 else 4
            x = tf.fill([rows, 2], float(r.rank + 1))
            found = [float(tf.reduce_sum(each)) for each in run(x)]
            assert found == [3 * r.total, 2 * r.total, r.total, r.total], found


def check_gradients_in_one_function(r: Rank) -> None:

    @r.function
    def run() -> Any:
        x, y = r.value(1), r.value(2)
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            a, b = r.sum(r.delay_gradient(x)) * 2, r.sum(r.delay_gradient(y)) * 5
            loss = tf.reduce_sum(a + b) * (r.rank + 1)
        return a, b, *tape.gradient(loss, [x, y])

    r.expect(run, 2, 10, 2, 5)


def _pair(r: Rank, x: Any, y: Any) -> Any:
    """Two collectives, whose gradients get ready at some time."""
    return r.delay_gradient(r.sum(x)) * 2, r.delay_gradient(r.sum(y)) * 5


def _gradients_of_pairs(r: Rank, factors: Sequence[int]) -> Callable[[], Any]:
    """A tape around calls of a nested function, one for each factor of its results."""

    @r.function
    def pair(x: Any, y: Any) -> Any:
        return _pair(r, x, y)

    def run() -> Any:
        x, y = tf.ones([1]), tf.ones([1])
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            sums = [factor * sum(pair(x, y)) for factor in factors]
            loss = tf.reduce_sum(sum(sums)) * (r.rank + 1)
        return tape.gradient(loss, [x, y])

    return run


def check_gradients_of_a_nested_function(r: Rank) -> None:
    r.expect(r.function(_gradients_of_pairs(r, [1, 10])), 22, 55)


def check_gradients_of_a_function_by_an_eager_tape(r: Rank) -> None:
    """TensorFlow adds no control dependencies to a backward function that it builds for this."""
    r.expect(_gradients_of_pairs(r, [1]), 2, 5)


def check_gradients_of_branches_and_loops(r: Rank) -> None:
    step = tf.Variable(0)

    @tf.function
    def run() -> Any:
        step.assign_add(1)
        x, y = tf.ones([1]), tf.ones([1])
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            a, b = x, y
            for i in tf.range(2):
                a, b = r.delay_gradient(r.sum(a)) / r.size, r.delay_gradient(r.sum(b)) / r.size
                if i % 2 == 0:
                    b = r.delay_gradient(r.sum(b)) / r.size
            a, b = tf.cond(
                step % 2 == 0, lambda: _pair(r, a, b), lambda: tuple(reversed(_pair(r, b, a)))
            )
            loss = tf.reduce_sum(a + b) * (r.rank + 1)
        return [sum(tape.gradient(loss, [x, y]))]

    r.expect(run, 7)


def check_training(r: Rank) -> None:
    """Many of the documented training step."""
    steps = int(os.environ["STEPS"])
    # Ranks begin apart, and the first batch's broadcast joins them: rank 0's weights win.
    weights = [tf.Variable(each) for each in initial_weights(r.rank)]
    momenta = [tf.Variable(tf.fill(each.shape, float(r.rank))) for each in weights]
    count = tf.Variable(7 * r.rank, dtype=tf.int64)

    @r.function
    def training_step(x: Any, y: Any, first_batch: bool) -> Any:
        with tf.GradientTape() as tape:
            hidden = x
            for number, weight in enumerate(weights):
                hidden = tf.tanh(hidden @ weight)
                if number % 3 == 1:
                    hidden = r.delay_gradient(hidden)
            loss = tf.reduce_mean((hidden - y) ** 2)
        tape = sdp.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, weights)
        for weight, momentum, gradient in zip(weights, momenta, gradients, strict=True):
            momentum.assign(0.0 * momentum if first_batch else 0.5 * momentum)
            momentum.assign_add(gradient)
            weight.assign_sub(LEARNING_RATE * momentum)
        count.assign_add(1)
        if first_batch:
            sdp.broadcast_variables(weights, root_rank=0)
            sdp.broadcast_variables([*momenta, count], root_rank=0)
        return sdp.oob_allreduce(loss)

    usual_probability, r.delay_probability = r.delay_probability, 0.03
    data = batches(r.size)
    losses = []
    for step in range(steps):
        x, y = data[step % len(data)]
        rows = slice(r.rank * BATCH, (r.rank + 1) * BATCH)
        loss = training_step(tf.constant(x[rows]), tf.constant(y[rows]), step == 0)
        if step % 100 == 0:
            losses.append(float(loss))
    r.delay_probability = usual_probability
    assert int(count) == steps, int(count)
    state = [each.numpy() for each in (*weights, *momenta)]
    require_same_bits(*state)
    if r.rank == 0:
        norm, expected_losses = reference(r.size, steps)
        found_norm = sum(float(np.linalg.norm(each)) for each in state)
        np.testing.assert_allclose([found_norm, *losses], [norm, *expected_losses], rtol=1e-4)


def initial_weights(rank: int) -> list[Any]:
    generator = np.random.default_rng(3)
    return [
        (generator.standard_normal((WIDTH, WIDTH)) * (1 + rank / 4) / WIDTH**0.5).astype(np.float32)
        for _ in range(LAYERS)
    ]


def batches(ranks: int) -> list[tuple[Any, Any]]:
    """Inputs and targets of all ranks together."""
    generator = np.random.default_rng(4)
    shape = (BATCH * ranks, WIDTH)
    return [
        (
            generator.standard_normal(shape).astype(np.float32),
            generator.uniform(-0.9, 0.9, shape).astype(np.float32),
        )
        for _ in range(8)
    ]


def reference(ranks: int, steps: int) -> tuple[float, list[float]]:
    """What one process computes from the joined batches: the norm, and some losses.

    Every rank takes the first step's gradients from its own weights; rank 0's weights get them, and
    are those of all ranks from then on.
    """
    weights, losses = initial_weights(0), []
    momenta = [np.zeros_like(each, np.float64) for each in weights]
    data = batches(ranks)
    for step in range(steps):
        x, y = data[step % len(data)]
        if step:
            loss, gradients = _gradients(weights, x, y)
        else:
            parts = [
                _gradients(initial_weights(rank), each_x, each_y)
                for rank, (each_x, each_y) in enumerate(
                    zip(np.split(x, ranks), np.split(y, ranks), strict=True)
                )
            ]
            loss = float(np.mean([part[0] for part in parts]))
            gradients = [
                sum(each) / ranks for each in zip(*(part[1] for part in parts), strict=True)
            ]
        if step % 100 == 0:
            losses.append(loss)
        momenta = [0.5 * old + new for old, new in zip(momenta, gradients, strict=True)]
        weights = [old - LEARNING_RATE * new for old, new in zip(weights, momenta, strict=True)]
    return sum(float(np.linalg.norm(each)) for each in (*weights, *momenta)), losses


def _gradients(weights: Sequence[Any], x: Any, y: Any) -> tuple[float, list[Any]]:
    outputs = [x.astype(np.float64)]
    for weight in weights:
        outputs.append(np.tanh(outputs[-1] @ weight))
    loss = float(np.mean((outputs[-1] - y) ** 2))
    upstream, gradients = 2 * (outputs[-1] - y) / y.size, []
    for number in reversed(range(LAYERS)):
        upstream = upstream * (1 - outputs[number + 1] ** 2)
        gradients.append(outputs[number].T @ upstream)
        upstream = upstream @ weights[number].T
    return loss, gradients[::-1]
