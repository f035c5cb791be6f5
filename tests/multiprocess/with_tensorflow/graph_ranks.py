# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_graphs.py."""

from __future__ import annotations

import gc
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tf_ranks import raised

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.collectives import ReduceOp
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.gradient_reduction import reduce_gradients
from smdistributed.dataparallel.tensorflow.groups import WORLD

keras = tf.keras


def graphs_alive() -> int:
    gc.collect()
    func_graph = type(tf.function(lambda: 1).get_concrete_function().graph)
    gc.collect()
    return sum(func_graph in type(each).__mro__ for each in gc.get_objects())


def check_traces_are_forgotten_with_their_functions(rank: int, size: int) -> None:
    table = tf.Variable(tf.ones([5, 2]), name="table")

    def trace() -> None:
        @tf.function
        def forward(x: Any) -> Any:
            for _ in tf.range(2):
                x = sdp.oob_allreduce(x)
            if tf.reduce_sum(x) > -1e9:
                x = sdp.broadcast(x, 0)
            return x + operations.all_gather(x, "rows", group=WORLD)[: tf.shape(x)[0]]

        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(tf.gather(table, [rank, 1]) * forward(x))
            return reduce_gradients(
                tape.gradient(loss, [table, x]), variables=[table, x], sparse_as_dense=False
            )

        x = tf.ones([2, 2])
        step(x)
        with tf.GradientTape() as tape:  # whose backward function is another graph
            tape.watch(x)
            loss = tf.reduce_sum(forward(x))
        tape.gradient(loss, x)

    trace()  # TensorFlow keeps a few of its own
    before = graphs_alive()
    for _ in range(3):
        trace()
    assert graphs_alive() == before


class Communicating(tf.Module):
    """Functions that communicate in one way each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable([1.0])

    @tf.function
    def directly(self, x: Any) -> Any:
        return sdp.oob_allreduce(x * self.weight)

    @tf.function
    def through_another(self, x: Any) -> Any:
        return self.directly(x) + 1.0

    @tf.function
    def in_a_branch(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 0.0:
            x = sdp.oob_allreduce(x * self.weight)
        return x

    @tf.function
    def in_a_loop(self, x: Any) -> Any:
        for _ in tf.range(2):
            x = sdp.broadcast(x * self.weight, 0)
        return x

    @tf.function
    def over_a_dataset(self, x: Any) -> Any:
        for _ in tf.data.Dataset.range(2):
            x = sdp.oob_allreduce(x * self.weight)
        return x

    @tf.function
    def of_a_tape(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = self.weight * x
        return sdp.DistributedGradientTape(tape).gradient(y, self.weight)


def check_what_communicates_is_not_saved(rank: int, size: int) -> None:
    for name, function in vars(Communicating).items():
        if isinstance(function, type(Communicating.directly)):
            module = Communicating()
            getattr(module, name)(tf.constant([1.0]))
            with tempfile.TemporaryDirectory() as folder:
                text = raised(ValueError, tf.saved_model.save, module, folder)
            assert "SMDDPUnsupported: it communicates" in text, f"{name}: {text}"
            assert "name.keras" in text


class AverageLayer(keras.layers.Layer):
    """Communicates in what is saved."""

    def call(self, inputs: Any) -> Any:
        return sdp.oob_allreduce(inputs)


def check_layers_that_communicate_are_not_exported(rank: int, size: int) -> None:
    model = keras.Sequential([keras.Input([3]), AverageLayer()])
    with tempfile.TemporaryDirectory() as folder:
        assert "SMDDPUnsupported: it communicates" in raised(ValueError, model.export, folder)


def check_what_was_trained_is_saved(rank: int, size: int) -> None:
    """Neither `fit` nor a loop of one's own leaves anything in a model that keeps it from that."""
    x = tf.ones([4, 3]) * (rank + 1.0)
    for uses_fit in (True, False):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        optimizer = keras.optimizers.Adam(0.1)
        if uses_fit:
            model.compile(sdp.DistributedOptimizer(optimizer), "mse")
            model.fit(x, tf.ones([4, 2]), batch_size=2, verbose=0)
            model.evaluate(x, tf.ones([4, 2]), verbose=0)
        else:
            train(model, optimizer, x)
        wanted = model(x)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/whole.keras")
            np.testing.assert_array_equal(
                keras.models.load_model(f"{folder}/whole.keras", compile=False)(x), wanted
            )
            model.export(f"{folder}/exported")
            loaded = tf.saved_model.load(f"{folder}/exported")
            np.testing.assert_allclose(loaded.serve(x), wanted, 1e-6)
            model.save(f"{folder}/documented")  # as scripts of before Keras 3 do
            tf.saved_model.save(model, f"{folder}/saved")
            for name in ("documented", "saved"):
                assert tf.saved_model.contains_saved_model(f"{folder}/{name}")


def train(model: Any, optimizer: Any, x: Any) -> None:
    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        gradients = sdp.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        sdp.broadcast_variables(model.variables, root_rank=0)

    step()
    model.step = step  # where `tf.saved_model.save` would find it
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder)
        assert "SMDDPUnsupported" in raised(ValueError, tf.saved_model.save, model, folder)
    del model.step


def collectives(x: Any) -> Any:
    """Of three values by rank; of each collective, rows that are picked: sparse from above."""
    (total,) = operations.all_reduce([x], ReduceOp.SUM, "sum", group=WORLD)
    (received,) = operations.broadcast([x * x], 0, "received", group=WORLD)
    gathered = operations.all_gather(x, "rows", group=WORLD)
    return [tf.gather(each, [0, 2]) for each in (total * total, received, gathered)]


def derivatives(size: int, rank: int, x: Any) -> list[Any]:
    """By hand: of the sums of those, added up over all ranks, by this rank's x."""
    picked = np.array([1, 0, 1]) * size
    total = sum(values_of(each) for each in range(size))
    is_first = float(rank == 0)
    return [2 * total * picked, 2 * x * picked * is_first, picked * is_first]


def values_of(rank: int) -> Any:
    return np.arange(3.0) + rank


def check_gradients_however_they_are_taken(rank: int, size: int) -> None:
    x = values_of(rank)
    wanted = derivatives(size, rank, x)

    def by_tape(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            results = collectives(x)
        return [tape.gradient(each, x) for each in results]

    def by_tape_of_a_function(x: Any) -> Any:
        function = tf.function(collectives)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            results = function(x)
        return [tape.gradient(each, x) for each in results]

    ways = [by_tape, tf.function(by_tape), by_tape_of_a_function]
    ways.append(tf.function(lambda x: [tf.gradients(each, x)[0] for each in collectives(x)]))
    for way in ways:
        for found, each in zip(way(tf.constant(x)), wanted, strict=True):
            np.testing.assert_allclose(found, each)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.constant(x)
        for result, each in zip(collectives(given), wanted, strict=True):
            np.testing.assert_allclose(session.run(tf.gradients(result, given)[0]), each)


def check_gradients_of_gradients(rank: int, size: int) -> None:
    def second(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                (total,) = operations.all_reduce([x], ReduceOp.SUM, "sum", group=WORLD)
                cubes = total**3
            first = inner.gradient(cubes, x)
        return outer.gradient(first, x)

    x = values_of(rank)
    total = sum(values_of(each) for each in range(size))
    for way in (second, tf.function(second)):
        # Each rank adds its cubes to what all ranks want: twice `size`, once for each order.
        np.testing.assert_allclose(way(tf.constant(x)), 6 * total * size**2)


def check_the_least_has_no_gradient(rank: int, size: int) -> None:
    x = tf.constant([1.0])
    for way in (tf.function, lambda function: function):

        def gradient() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = sdp.oob_allreduce(x, op=sdp.ReduceOp.MIN)
            return tape.gradient(y, x)

        assert "expected AVERAGE or SUM" in raised(SMDDPUnsupported, way(gradient))


def check_numbers_of_every_float(rank: int, size: int) -> None:
    """NumPy makes no array of a bfloat16 that has no dimension, where TensorFlow asks for one."""
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        mean = sdp.oob_allreduce(tf.cast(rank + 1, dtype))
        assert mean.dtype == dtype
        assert float(mean) == (size + 1) / 2


def check_what_a_plain_graph_is_told_to_wait_for_is_known(rank: int, size: int) -> None:
    """A collective that needs to be fed through another one is not brought along by a third."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        fed = v1.placeholder(tf.float32, [3])
        with tf.control_dependencies([sdp.oob_allreduce(fed, name="fed")]):
            sdp.oob_allreduce(tf.ones([2]), name="after it")
        alone = sdp.oob_allreduce(tf.ones([2]), name="alone")
        with v1.Session() as session:
            np.testing.assert_array_equal(session.run(alone), [1.0, 1.0])
