# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_gradients.py check: the tape, None and sparse gradients, TF 1 optimizers.

Every check computes, on each rank, the gradients of all ranks by a plain tape: the reference.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tf_ranks import raised, require_same_bits, tagged

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import job, operations
from smdistributed.dataparallel.tensorflow.gradient_reduction import is_reduced, reduce_gradients
from smdistributed.dataparallel.tensorflow.operations import kernels


def make_variables(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    return [
        tf.Variable(tagged(index, shape, "float64") / 16, dtype=dtype, name=f"v{index}")
        for index, shape in enumerate(shapes)
    ]


def mean_of(size: int, function: Callable[[int], Any]) -> Any:
    """What must come out: the mean over the ranks of what each would have."""
    return np.mean([np.asarray(function(rank), "float64") for rank in range(size)], axis=0)


def near(actual: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(wanted), rtol=1e-6, atol=1e-7)


class Calls:
    """Within, counts this rank's collectives."""

    def __enter__(self) -> Calls:
        self.keys: list[str] = []
        self._original = operations.all_reduce

        def count(tensors: Any, op: Any, key: str, label: int, *, group: int) -> Any:
            self.keys.append(key)
            return self._original(tensors, op, key, label, group=group)

        operations.all_reduce = count
        return self

    def __exit__(self, *exception: Any) -> None:
        operations.all_reduce = self._original


def regression(variables: list[Any], rank: int) -> Any:
    x = tf.constant(tagged(rank, (4, 3)) / 16)
    hidden = tf.tanh(tf.matmul(x, variables[0]) + variables[1])
    return tf.reduce_sum(tf.square(tf.matmul(hidden, variables[2])))


def local_gradients(variables: list[Any], rank: int) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = regression(variables, rank)
    return tape.gradient(loss, variables)


def check_a_tape_gives_the_gradients_of_all(rank: int, size: int) -> None:
    variables = make_variables((3, 5), (5,), (5, 1))
    wanted = [
        mean_of(size, lambda each, index=index: local_gradients(variables, each)[index])
        for index in range(3)
    ]

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = regression(variables, rank)
        tape = sdp.DistributedGradientTape(tape)
        assert isinstance(tape, tf.GradientTape)
        return tape.gradient(loss, variables)

    for function in (step, tf.function(step)):
        gradients = function()
        for gradient, reference, variable in zip(gradients, wanted, variables, strict=True):
            near(gradient, reference)
            assert gradient.shape == variable.shape
            assert gradient.dtype == variable.dtype
        require_same_bits(*[gradient.numpy() for gradient in gradients])
    with tf.GradientTape() as tape:
        loss = regression(variables, rank)
    tape = sdp.DistributedGradientTape(tape, op=sdp.ReduceOp.SUM)
    totals = tape.gradient(loss, variables)
    for total, reference in zip(totals, wanted, strict=True):
        near(total, size * reference)


def check_the_tape_around_the_computation(rank: int, size: int) -> None:
    variable = tf.Variable(3.0)
    with sdp.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = variable * (rank + 1.0)
    near(tape.gradient(loss, variable), (size + 1) / 2)
    assert [each.name for each in tape.watched_variables()] == [variable.name]
    assert "only be used to compute one set" in raised(RuntimeError, tape.gradient, loss, variable)


def check_the_wrapped_tape_stays_as_it_was(rank: int, size: int) -> None:
    variable = tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as plain:
        loss = variable * (rank + 1.0)
    distributed = sdp.DistributedGradientTape(plain)
    near(plain.gradient(loss, variable), rank + 1.0)
    near(distributed.gradient(loss, variable), (size + 1) / 2)
    assert type(plain) is tf.GradientTape

    class Own(tf.GradientTape):
        def note(self) -> str:
            return "of a derived class"

    own = sdp.DistributedGradientTape(Own(watch_accessed_variables=False))
    assert isinstance(own, Own)
    assert own.note() == "of a derived class"
    with own:
        x = tf.constant(2.0)
        own.watch(x)
        y = x * x * variable * (rank + 1.0)
        with own.stop_recording():
            y = y + 0.0 * tf.stop_gradient(x)
    gradient = own.gradient(y, [x, variable])
    assert gradient == [None, None]  # y was computed while nothing was recorded


def check_wrapping_twice_averages_once(rank: int, size: int) -> None:
    variable = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = variable * (rank + 1.0)
    twice = sdp.DistributedGradientTape(sdp.DistributedGradientTape(tape), op=sdp.ReduceOp.SUM)
    with Calls() as calls:
        near(twice.gradient(loss, variable), size * (size + 1) / 2)
    if size > 1:
        assert [key for key in calls.keys if key.startswith("gradients")] == ["gradients 1 of 1"]


def check_persistent_tapes_and_structures(rank: int, size: int) -> None:
    variables = {"a": tf.Variable([1.0, 2.0]), "b": (tf.Variable(3.0), [tf.Variable([[4.0]])])}
    scale = rank + 1.0
    mean = (size + 1) / 2

    def step() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            first = tf.reduce_sum(variables["a"]) * scale
            second = variables["b"][0] * variables["b"][1][0] * scale
        tape = sdp.DistributedGradientTape(tape)
        return (
            tape.gradient([first, second], variables),
            tape.gradient(second, variables["b"][0]),
            tape.gradient(first, [variables["a"]], output_gradients=tf.constant(2.0 + rank)),
            tape.gradient(first, variables, unconnected_gradients="zero"),
        )

    for function in (step, tf.function(step)):
        both, single, weighted, zero = function()
        tf.nest.assert_same_structure(both, variables)
        near(both["a"], [mean, mean])
        near(both["b"][0], 4 * mean)
        near(both["b"][1][0], [[3 * mean]])
        near(np.reshape(single, []), 4 * mean)
        near(weighted[0], [mean_of(size, lambda each: (each + 1) * (2 + each))] * 2)
        near(zero["b"][1][0], [[0.0]])


def check_higher_orders_and_jacobians(rank: int, size: int) -> None:
    x = tf.Variable(2.0)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = x**3 * (rank + 1.0)
        # d/dx of the mean over ranks, of which each rank holds a share.
        first = sdp.DistributedGradientTape(inner).gradient(y, x)
    second = sdp.DistributedGradientTape(outer).gradient(first, x)
    mean = (size + 1) / 2
    near(first, 12 * mean)
    near(second, 12 * mean)

    v = tf.Variable([1.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        z = v * v * (rank + 1.0)
        batch = tf.reshape(v, [1, 2]) * (rank + 1.0)
    tape = sdp.DistributedGradientTape(tape)
    with Calls() as calls:
        near(tape.jacobian(z, v), np.diag([2.0, 4.0]) * (rank + 1))
        near(tape.jacobian(z, [v], experimental_use_pfor=False)[0][0], [2.0 * (rank + 1), 0.0])
    assert calls.keys == []
    near(tape.gradient(z, v), [2 * mean, 4 * mean])

    w = tf.constant([[1.0, 2.0]])
    with tf.GradientTape() as tape:
        tape.watch(w)
        z = w * w * (rank + 1.0)
    near(sdp.DistributedGradientTape(tape).batch_jacobian(z, w), [np.diag([2.0, 4.0]) * (rank + 1)])
    del batch


def check_a_backward_outside_of_the_function(rank: int, size: int) -> None:
    """A loss that communicates in a function, and a tape around it."""
    x = tf.Variable([1.0, 2.0])

    @tf.function
    def loss(scale: Any) -> Any:
        parts = [sdp.oob_allreduce(x * scale), sdp.oob_allreduce(x * x * scale)]
        return tf.reduce_sum(parts[0]) + tf.reduce_sum(parts[1])

    with tf.GradientTape() as tape:
        value = loss(tf.constant(rank + 1.0))
    gradient = sdp.DistributedGradientTape(tape).gradient(value, x)
    near(gradient, np.asarray([3.0, 5.0]) * (size + 1) / 2)


def check_collectives_that_wait_long(rank: int, size: int) -> None:
    """TensorFlow gets a ticket in place of results, forward and backward; each rank comes last."""
    weights = make_variables((3,), (9000,))

    @tf.function
    def forward(x: Any) -> Any:
        own, other = (tf.reduce_sum(weight * x) for weight in weights)
        return other + sdp.oob_allreduce(own)

    with mock.patch.object(kernels, "_PATIENCE_MS", 1):
        kernels._ways.cache_clear()
        for last in range(size):
            if rank == last:
                time.sleep(0.2)
            with tf.GradientTape() as tape:
                loss = forward(tf.constant(2.0))
            if rank == last:
                time.sleep(0.2)
            for gradient, wanted in zip(tape.gradient(loss, weights), (2.0, 2.0), strict=True):
                near(gradient, tf.fill(gradient.shape, wanted))
    kernels._ways.cache_clear()


def check_collectives_in_vectorized_code(rank: int, size: int) -> None:
    """TensorFlow makes loops of them, in one and the same order on all ranks; each comes late."""
    total = size * (size + 1) / 2
    rows = tagged(0, (5, 3), "float32")

    @tf.function
    def of_rows(x: Any) -> Any:
        return tf.vectorized_map(lambda row: sdp.oob_allreduce(row, op=sdp.ReduceOp.SUM), x)

    @tf.function
    def jacobian(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = sdp.oob_allreduce(x * x, op=sdp.ReduceOp.SUM) * (rank + 1.0)
        return tape.jacobian(y, x)

    for patience_ms in (kernels._PATIENCE_MS, 1):
        with mock.patch.object(kernels, "_PATIENCE_MS", patience_ms):
            kernels._ways.cache_clear()
            for run in (of_rows, jacobian):
                if rank == size - 1:
                    time.sleep(0.2)
                x = tf.constant(rows if run is of_rows else rows[1]) * (rank + 1.0)
                near(run(x), rows * total if run is of_rows else 2 * total * np.diag(x))
            of_rows, jacobian = (tf.function(each.python_function) for each in (of_rows, jacobian))
    kernels._ways.cache_clear()


def check_gradients_of_the_branches_of_tensorflow_1(rank: int, size: int) -> None:
    """Those of the branch that is not taken are dead, and must not take others with them."""
    v1 = tf.compat.v1
    v1.disable_control_flow_v2()
    try:
        for second in (lambda x: x * 2.0, lambda x: sdp.oob_allreduce(x * 2.0)):
            with tf.Graph().as_default(), v1.Session() as session:
                is_first = v1.placeholder(tf.bool, [])
                weights = v1.get_variable("w", initializer=[1.0, 1.0])
                result = tf.cond(
                    is_first,
                    lambda weights=weights: sdp.oob_allreduce(weights),
                    lambda weights=weights, second=second: second(weights),
                )
                (gradient,) = v1.gradients(tf.reduce_sum(result), weights)
                session.run(v1.global_variables_initializer())
                for value, wanted in ((True, 1.0), (False, 2.0)):
                    near(session.run(gradient, {is_first: value}), [wanted] * 2)
    finally:
        v1.enable_control_flow_v2()


def check_keras_variables_as_sources(rank: int, size: int) -> None:
    dense = tf.keras.layers.Dense(2, kernel_initializer="ones")
    dense.build([None, 3])
    x = tf.fill([2, 3], rank + 1.0)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(dense(x))
        return sdp.DistributedGradientTape(tape).gradient(loss, dense.trainable_variables)

    for function in (step, tf.function(step)):
        kernel, bias = function()
        near(kernel, np.full([3, 2], size + 1.0))
        near(bias, [2.0, 2.0])


def check_tapes_keep_no_memory(rank: int, size: int) -> None:
    variable = tf.Variable([1.0])
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    distributed = sdp.DistributedGradientTape(tape)
    distributed.gradient(loss, variable)
    held = weakref.ref(distributed)
    gc.disable()
    try:
        del distributed, tape
        assert held() is None, "a cycle, which keeps what the step has computed"
    finally:
        gc.enable()


def check_arguments_of_the_tape(rank: int, size: int) -> None:
    tape = tf.GradientTape()
    for name in ("device_dense", "device_sparse"):
        text = raised(SMDDPUnsupported, sdp.DistributedGradientTape, tape, **{name: "/gpu:0"})
        assert text == f"{name} is not supported"
    for op in (sdp.ReduceOp.MIN, sdp.ReduceOp.MAX, "average"):
        text = raised(ValueError, sdp.DistributedGradientTape, tape, op=op)
        assert "expected one of ReduceOp.AVERAGE, ReduceOp.SUM" in text
    assert "Compression.none" in raised(
        SMDDPConfigInvalid, sdp.DistributedGradientTape, tape, compression=16
    )
    assert "expected a tf.GradientTape" in raised(
        SMDDPConfigInvalid, sdp.DistributedGradientTape, [tape]
    )
    sdp.DistributedGradientTape(tape, "", None, sdp.Compression.fp16, False, None)
    text = raised(SMDDPConfigInvalid, reduce_gradients, [None, None], variables=[tf.Variable(1.0)])
    assert "2 gradients came with 1 variables" in text
    ragged = tf.ragged.constant([[1.0]])
    if size > 1:
        assert "flat_values" in raised(SMDDPUnsupported, reduce_gradients, [ragged])


def check_gradients_are_marked(rank: int, size: int) -> None:
    variable = tf.Variable([1.0])

    def step() -> Any:
        (gradient,) = reduce_gradients([variable * 2.0], variables=[variable])
        assert is_reduced(gradient) == (size > 1)
        assert not is_reduced(gradient * 1.0)
        return gradient

    step()
    tf.function(step)()
    assert not is_reduced(None)


def check_sixteen_bits(rank: int, size: int) -> None:
    big = tf.constant([60000.0], tf.float16)
    for given_, compression in (
        (big, sdp.Compression.none),
        (tf.cast(big, tf.float32), sdp.Compression.fp16),
        (tf.cast(big, tf.bfloat16), sdp.Compression.none),
    ):
        (result,) = reduce_gradients([given_], compression=compression)
        assert result.dtype == given_.dtype
        near(tf.cast(result, tf.float32), tf.cast(given_, tf.float32))
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        mine = [tf.cast([1.0, np.nan if rank == size - 1 else 1.0], dtype), tf.ones([3], dtype)]
        first, second = reduce_gradients(mine)
        assert np.isnan(np.float32(first)[1])
        near(tf.cast(second, tf.float32), np.ones(3))


def check_none_on_all_ranks_stays_none(rank: int, size: int) -> None:
    variables = make_variables((2,), (3,), ())

    def step() -> Any:
        gradients = [None, variables[1] * (rank + 1.0), None]
        return reduce_gradients(gradients, variables=variables)

    for function in (step, tf.function(step)):
        first, second, third = function()
        assert first is None
        assert third is None
        near(second, np.asarray(variables[1]) * (size + 1) / 2)
    assert reduce_gradients([None, None]) == [None, None]
    assert reduce_gradients([]) == []


def check_none_on_some_ranks_is_zero(rank: int, size: int) -> None:
    variables = make_variables((2,), (3, 2), (), (5,))

    def mine_of(each: int) -> list[Any]:
        return [
            tf.ones([2]) * (each + 1.0) if each == 0 else None,
            tf.ones([3, 2]),
            None,
            tf.ones([5]) * 2 if each == size - 1 else None,
        ]

    def step() -> Any:
        return reduce_gradients(mine_of(rank), variables=variables)

    for function in (step, tf.function(step), tf.function(step)):
        first, second, third, fourth = function()
        near(first, np.ones(2) / size)
        near(second, np.ones([3, 2]))
        assert third is None
        near(fourth, 2 * np.ones(5) / size)


def check_patterns_that_change_eagerly(rank: int, size: int) -> None:
    """Each rank by itself, in each step another way."""
    variables = make_variables((2,), (3,))
    for step in range(6):
        mine = [
            tf.ones([2]) if (rank + step) % 2 else None,
            tf.ones([3]) if (rank * step) % 3 == 1 else None,
        ]
        results = reduce_gradients(mine, variables=variables)
        for index, (modulus, rest) in enumerate(((2, 1), (3, 1))):
            having = [
                each
                for each in range(size)
                if ((each + step) if index == 0 else (each * step)) % modulus == rest
            ]
            if having:
                near(results[index], np.full([2 + index], len(having) / size))
            else:
                assert results[index] is None


def check_traces_of_some_ranks_ask_nobody(rank: int, size: int) -> None:
    """A last batch of another length on one rank; it traces again, the others do not."""
    variables = make_variables((3, 5), (5,), (5, 1), (2,))
    traces = 0

    @tf.function
    def step(x: Any) -> Any:
        nonlocal traces
        traces += 1
        with tf.GradientTape() as tape:
            hidden = tf.matmul(x, variables[0]) + (variables[1] if rank else 0.0)
            loss = tf.reduce_sum(tf.matmul(hidden, variables[2]))
        return sdp.DistributedGradientTape(tape).gradient(loss, variables)

    with Calls() as calls:
        step(tf.ones([4, 3]))
        first = list(calls.keys)
        results = step(tf.ones([2 if rank == size - 1 else 4, 3]))
    assert traces == (2 if rank == size - 1 else 1)
    if size > 1:
        assert sum(key.startswith("agreement") for key in first) == 1
        assert sum(key.startswith("agreement") for key in calls.keys) == 1
        assert ("this rank has none for v1:0, v3:0" in first[0]) == (rank == 0), first[0]
        rows = 2 + 4 * (size - 1)
        near(results[1], (rows - 4) / size * np.asarray(variables[2])[:, 0])
    assert results[3] is None


def check_patterns_that_change_on_all_ranks(rank: int, size: int) -> None:
    """A Python argument that freezes a part: traced again on all ranks, and None there again."""
    variables = make_variables((2,), (3,))

    @tf.function
    def step(trains_first: bool) -> Any:
        with tf.GradientTape() as tape:
            frozen = variables[0] if trains_first else tf.stop_gradient(variables[0])
            loss = (tf.reduce_sum(frozen) + tf.reduce_sum(variables[1])) * (rank + 1.0)
        return sdp.DistributedGradientTape(tape).gradient(loss, variables)

    for trains_first in (False, True, False, True):
        first, second = step(trains_first)
        near(second, np.full([3], (size + 1) / 2))
        if trains_first:
            near(first, np.full([2], (size + 1) / 2))
        else:
            assert first is None


def check_ranks_that_differ_may_differ_again(rank: int, size: int) -> None:
    """Tasks by rank: traces of some ranks alone, which the joint pattern covers."""
    variables = make_variables((2,), (2,))

    @tf.function
    def step(task: int) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variables[task])
        return sdp.DistributedGradientTape(tape).gradient(loss, variables)

    with Calls() as calls:
        step(rank % 2)
        for other in range(size):  # one rank after the other takes, and traces, the other task
            results = step((rank + (other == rank)) % 2)
            ones = sum((each + (other == each)) % 2 for each in range(size))
            if size > 1:
                near(results[1], np.full([2], ones / size))
                near(results[0], np.full([2], (size - ones) / size))
    assert sum(key.startswith("agreement") for key in calls.keys) == (size > 1)


def embedding_gradients(rank: int) -> Any:
    rows = tf.constant([rank % 5, 3, 3], tf.int64)
    values = tf.reshape(tf.range(6.0), [3, 2]) + rank
    return tf.IndexedSlices(values, rows, tf.constant([5, 2], tf.int64))


def dense_embedding_gradients(rank: int) -> Any:
    return np.asarray(tf.convert_to_tensor(embedding_gradients(rank)))


def check_sparse_gradients(rank: int, size: int) -> None:
    table = tf.Variable(tf.ones([5, 2]), name="table")
    other = tf.Variable([1.0], name="other")
    wanted = mean_of(size, dense_embedding_gradients)
    for sparse_as_dense in (True, False):
        for op, factor in ((None, 1), (sdp.ReduceOp.SUM, size)):
            for compression in (sdp.Compression.none, sdp.Compression.fp16):
                result, dense = reduce_gradients(
                    [embedding_gradients(rank), tf.constant([1.0 * rank])],
                    variables=[table, other],
                    sparse_as_dense=sparse_as_dense,
                    op=op,
                    compression=compression,
                )
                near(dense, [(size - 1) / 2 * factor])
                if size == 1 or not sparse_as_dense:
                    assert isinstance(result, tf.IndexedSlices)
                    assert result.values.shape[0] == 3 * size
                    assert result.indices.dtype == tf.int64
                else:
                    assert isinstance(result, tf.Tensor)
                np.testing.assert_allclose(tf.convert_to_tensor(result), wanted * factor, rtol=2e-3)


def check_embeddings_through_the_tape(rank: int, size: int) -> None:
    table = tf.Variable(tf.ones([7, 2]), name="table")

    def step(sparse_as_dense: bool) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [rank % 7, 1])
            loss = tf.reduce_sum(rows) * (rank + 1.0)
        tape = sdp.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense)
        return tape.gradient(loss, table)

    wanted = np.zeros([7, 2])
    for each in range(size):
        wanted[each % 7] += (each + 1) / size
        wanted[1] += (each + 1) / size
    compiled = tf.function(step)
    for sparse_as_dense in (True, False):
        for function in (step, compiled):
            result = function(sparse_as_dense)
            assert isinstance(result, tf.IndexedSlices) == (size == 1 or not sparse_as_dense)
            near(tf.convert_to_tensor(result), wanted)


def check_sparse_on_some_ranks(rank: int, size: int) -> None:
    variables = make_variables((5, 2), (5, 2))

    def step() -> Any:
        dense = tf.ones([5, 2]) if rank == 0 else embedding_gradients(rank)
        sparse = embedding_gradients(rank) if rank == 0 else None
        return reduce_gradients([dense, sparse], variables=variables, sparse_as_dense=False)

    for function in (step, tf.function(step)):
        first, second = function()
        assert isinstance(first, tf.Tensor)  # since one rank's is dense, all are
        assert isinstance(second, tf.IndexedSlices)
        assert second.values.shape[0] in (3, None)
        others = [dense_embedding_gradients(each) for each in range(1, size)]
        near(first, np.mean([np.ones([5, 2]), *others], axis=0))
        near(tf.convert_to_tensor(second), dense_embedding_gradients(0) / size)


def check_buckets(rank: int, size: int) -> None:
    variables = make_variables((64,), (64,), (0,), (), (7, 11), (64,))
    with Calls() as calls:
        results = reduce_gradients(
            [tf.convert_to_tensor(each) * (rank + 1.0) for each in variables],
            variables=variables,
            bucket_cap_bytes=512,
        )
    for result, variable in zip(results, variables, strict=True):
        near(result, np.asarray(variable) * (size + 1) / 2)
    if size > 1:
        buckets = [key for key in calls.keys if key.startswith("gradients")]
        # From the last: 256 + 308; 4 (+ 124) + 0 + 256 + 256.
        assert buckets == ["gradients 1 of 2", "gradients 2 of 2"], buckets


def check_the_last_layers_need_not_wait(rank: int, size: int) -> None:
    """In a function a bucket depends on its own gradients alone, and buckets keep their order."""
    variables = make_variables((64,), (64,), (64,))

    @tf.function
    def step() -> Any:
        return reduce_gradients(
            [each * 2.0 for each in variables], variables=variables, bucket_cap_bytes=128, what="g"
        )

    step()
    if size == 1:
        return
    graph = step.get_concrete_function().graph
    made = graph.get_operations()
    muls = [each for each in made if each.type == "Mul"]
    collectives = [each for each in made if each.type in ("SmddpAllReduceOrTicket", "PyFunc")]
    assert len(muls) == len(collectives) == 3
    seen: set[Any] = set()
    for count, collective in enumerate(collectives, start=1):
        stack = [collective]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            stack += [each.op for each in current.inputs] + list(current.control_inputs)
        assert sum(each in seen for each in muls) == count, f"bucket {count} waits for others"
        assert seen.issuperset(collectives[:count]), f"bucket {count} may come before the others"


FLOATS = ["float16", "bfloat16", "float32", "float64"]


# The same examples on all ranks, which must go through them together: chosen without chance, and
# neither repeated nor made smaller where one fails.
@settings(
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=8),
    dtypes=st.lists(st.sampled_from(FLOATS), min_size=8, max_size=8),
    cap=st.sampled_from([128, 256, 1024]),
    in_function=st.booleans(),
)
def bucketed_is_one_by_one(
    shapes: list[Any], dtypes: list[str], cap: int, in_function: bool
) -> None:
    rank = job.rank()
    mine = [
        tf.cast(np.random.default_rng([rank, index]).normal(size=shape), dtype)
        for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    ]

    def step(gradients: Any) -> Any:
        return reduce_gradients(gradients, bucket_cap_bytes=cap)

    together = (tf.function(step) if in_function else step)(mine)
    for one, gradient in zip(together, mine, strict=True):
        (alone,) = reduce_gradients([gradient])
        assert one.shape == gradient.shape
        assert one.numpy().tobytes() == alone.numpy().tobytes()
    require_same_bits(*[each.numpy() for each in together])


def check_bucketed_is_one_by_one_bit_for_bit(rank: int, size: int) -> None:
    bucketed_is_one_by_one()


def check_xla_is_refused(rank: int, size: int) -> None:
    variable = tf.Variable([1.0])

    @tf.function(jit_compile=True)
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = variable * 2.0
        return sdp.DistributedGradientTape(tape).gradient(loss, variable)

    if size > 1:
        text = raised(SMDDPUnsupported, step)
        assert "communication inside jit_compile=True is not available on this platform" in text


def check_the_documented_step(rank: int, size: int) -> None:
    """Digits that both differ by rank, weights that do: equal to one process with all data."""

    def train(my_ranks: list[int], seed: int, distributed: bool) -> Any:
        tf.keras.utils.set_random_seed(seed)
        model = tf.keras.Sequential([tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(1)])
        model.build([None, 3])
        if not distributed:
            tf.keras.utils.set_random_seed(seed)
        optimizer = tf.keras.optimizers.Adam(0.01)
        x = tf.concat([tagged(each, (4, 3)) / 16 for each in my_ranks], axis=0)
        y = tf.reduce_sum(x, axis=1, keepdims=True)

        @tf.function
        def step(first_batch: bool) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            if distributed:
                tape = sdp.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            if first_batch and distributed:
                sdp.broadcast_variables(model.variables, root_rank=0)
                sdp.broadcast_variables(optimizer.variables, root_rank=0)
            return sdp.oob_allreduce(loss) if distributed else loss

        losses = [float(step(batch == 0)) for batch in range(5)]
        return losses, model.get_weights()

    # Ranks start alike, as gradients of the first step are of the weights that each has.
    losses, weights = train([rank], 7, distributed=True)
    wanted_losses, wanted = train(list(range(size)), 7, distributed=False)
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    for one, other in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    require_same_bits(*weights)
    # And if they do not, the first batch makes them alike.
    _, weights = train([rank], rank, distributed=True)
    require_same_bits(*weights)


def check_optimizers_of_tensorflow_1(rank: int, size: int) -> None:
    v1 = tf.compat.v1
    for make in (
        lambda: v1.train.GradientDescentOptimizer(0.1),
        lambda: v1.train.AdamOptimizer(0.1),
        lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    ):

        def train(my_ranks: list[int], wrap: Any, make: Any = make) -> list[Any]:
            with tf.Graph().as_default():
                weights = v1.get_variable("w", initializer=tf.constant([[1.0], [2.0], [3.0]]))
                table = v1.get_variable("table", initializer=tf.ones([6, 1]))
                v1.get_variable("unused", initializer=tf.ones([2]))
                x = tf.concat([tagged(each, (4, 3)) / 16 for each in my_ranks], axis=0)
                rows = tf.concat([[each % 6, 5] for each in my_ranks], axis=0)
                loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) - 1.0))
                loss += tf.reduce_mean(tf.gather(table, rows))
                optimizer = wrap(make())
                assert isinstance(optimizer, type(make()))
                train_op = optimizer.minimize(loss)
                with v1.Session() as session:
                    session.run(v1.global_variables_initializer())
                    for _ in range(4):
                        session.run(train_op)
                    names = sorted(each.name for each in v1.global_variables())
                    return [*session.run([weights, table]), names]

        wanted = train(list(range(size)), lambda optimizer: optimizer)
        for options in ({}, {"sparse_as_dense": False}, {"bucket_cap_mb": 0.5}):
            actual = train(
                [rank],
                lambda optimizer, options=options: sdp.DistributedOptimizer(optimizer, **options),
            )
            np.testing.assert_allclose(actual[0], wanted[0], rtol=1e-5)
            np.testing.assert_allclose(actual[1], wanted[1], rtol=1e-5)
            assert actual[2] == wanted[2], "checkpoints of one process and of many have one form"
            require_same_bits(*actual[:2])


def check_an_optimizer_of_tensorflow_1_in_parts(rank: int, size: int) -> None:
    v1 = tf.compat.v1
    optimizer = sdp.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    assert optimizer.get_name() == "smdistributed.dataparallel.GradientDescentOptimizer"
    named = sdp.DistributedOptimizer(v1.train.AdamOptimizer(), name="mine", use_locking=True)
    assert named.get_name() == "mine"
    assert named._use_locking
    assert "Wrap each optimizer once" in raised(
        SMDDPConfigInvalid, sdp.DistributedOptimizer, optimizer
    )
    with tf.Graph().as_default():
        first = v1.get_variable("first", initializer=[1.0])
        second = v1.get_variable("second", initializer=[1.0])
        pairs = optimizer.compute_gradients(first * (rank + 1.0), [first, second])
        assert pairs[1][0] is None
        clipped = [(tf.minimum(pairs[0][0], 100.0), first)]
        apply = optimizer.apply_gradients(clipped)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(apply)
            near(session.run(first), [1.0 - (size + 1) / 2])
    variable = tf.Variable([1.0])  # and eagerly, where these optimizers work as well
    optimizer.minimize(lambda: variable * (rank + 1.0), var_list=[variable])
    near(variable, [1.0 - (size + 1) / 2])


def check_buckets_of_a_plain_graph_are_chained(rank: int, size: int) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        gradients = [tf.fill([64], rank + 1.0 + index) for index in range(12)]
        results = reduce_gradients(gradients, bucket_cap_bytes=128)
        with v1.Session() as session:
            for _ in range(3):
                for index, value in enumerate(session.run(results)):
                    near(value, np.full([64], (size + 1) / 2 + index))
