# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_reductions.py check: allreduce, oob_allreduce, broadcasts.

Every check runs on all ranks, for any number of them, and computes by NumPy what must come out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tf_ranks import raised, require_same_bits, tagged

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import (
    SMDDPAlreadyInitialized,
    SMDDPConfigInvalid,
    SMDDPError,
    SMDDPUnsupported,
)

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (131,), (3, 5))
OPS = {
    sdp.ReduceOp.AVERAGE: lambda all_of: np.mean(all_of, axis=0, dtype=np.float64),
    sdp.ReduceOp.SUM: lambda all_of: np.sum(all_of, axis=0, dtype=np.float64),
    sdp.ReduceOp.MIN: lambda all_of: np.min(all_of, axis=0),
    sdp.ReduceOp.MAX: lambda all_of: np.max(all_of, axis=0),
}
XLA_TEXT = "communication inside jit_compile=True is not available on this platform"


def values(rank: int, shape: Any, dtype: str) -> Any:
    return tagged(rank, shape, tf.as_dtype(dtype).as_numpy_dtype)


def expected(size: int, shape: Any, dtype: str, op: Any = sdp.ReduceOp.AVERAGE) -> Any:
    all_of = np.stack([tagged(rank, shape, "float64") for rank in range(size)])
    # Integers are cut off towards zero by this very cast.
    return np.asarray(OPS[op](all_of)).astype(tf.as_dtype(dtype).as_numpy_dtype)


def array(value: Any) -> Any:
    """Of a tensor; NumPy's own way fails for scalars of 16 bits."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def equal(actual: Any, wanted: Any) -> None:
    actual, wanted = array(actual), np.asarray(wanted)
    assert actual.dtype == wanted.dtype, (actual.dtype, wanted.dtype)
    assert actual.shape == wanted.shape, (actual.shape, wanted.shape)
    np.testing.assert_array_equal(actual, wanted)


def close(actual: Any, wanted: Any) -> None:
    """Averages over 3, 5 ... ranks are rounded once, in another order than NumPy's."""
    actual, wanted = array(actual), np.asarray(wanted)
    assert actual.dtype == wanted.dtype, (actual.dtype, wanted.dtype)
    assert actual.shape == wanted.shape, (actual.shape, wanted.shape)
    digits = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-6}.get(actual.dtype.name, 1e-13)
    np.testing.assert_allclose(actual.astype("float64"), wanted.astype("float64"), rtol=digits)


def check_every_dtype_shape_and_operation_eagerly(rank: int, size: int) -> None:
    for dtype in FLOATS + INTEGERS:
        same = close if dtype in FLOATS else equal
        for shape in SHAPES:
            mine = tf.constant(values(rank, shape, dtype))
            for op in OPS:
                same(sdp.oob_allreduce(mine, op=op), expected(size, shape, dtype, op))
            same(sdp.allreduce(mine, 0, 1), expected(size, shape, dtype))


def check_every_dtype_in_a_function(rank: int, size: int) -> None:
    @tf.function
    def reduce(tensors: Any) -> Any:
        return [
            (sdp.oob_allreduce(tensor), sdp.allreduce(tensor, 0, 1, op=sdp.ReduceOp.SUM))
            for tensor in tensors
        ]

    dtypes = FLOATS + INTEGERS
    results = reduce([tf.constant(values(rank, (131,), dtype)) for dtype in dtypes])
    for dtype, (average, total) in zip(dtypes, results, strict=True):
        same = close if dtype in FLOATS else equal
        same(average, expected(size, (131,), dtype))
        same(total, expected(size, (131,), dtype, sdp.ReduceOp.SUM))


def check_bool_and_complex(rank: int, size: int) -> None:
    flags = tf.constant([rank == 0, True, False])
    equal(sdp.oob_allreduce(flags, op=sdp.ReduceOp.MAX), [True, True, False])
    equal(sdp.oob_allreduce(flags, op=sdp.ReduceOp.MIN), [size == 1, True, False])
    for op in (sdp.ReduceOp.AVERAGE, sdp.ReduceOp.SUM):
        text = raised(SMDDPUnsupported, sdp.oob_allreduce, flags, op=op)
        assert "bool" in text
        assert "tf.cast(value, tf.float32)" in text
    for dtype in ("complex64", "complex128"):
        mine = tf.constant(np.asarray([1 + 2j * rank, rank]).astype(dtype))
        total = np.asarray([size + 1j * size * (size - 1), size * (size - 1) / 2]).astype(dtype)
        np.testing.assert_allclose(sdp.oob_allreduce(mine, op=sdp.ReduceOp.SUM), total)
        np.testing.assert_allclose(sdp.oob_allreduce(mine), (total / size).astype(dtype), 1e-6)
        assert "no order" in raised(SMDDPUnsupported, sdp.oob_allreduce, mine, op=sdp.ReduceOp.MAX)


def check_averages_of_16_bits_do_not_overflow(rank: int, size: int) -> None:
    big = tf.constant([60000.0, -60000.0], tf.float16)
    equal(sdp.oob_allreduce(big), big)
    equal(sdp.allreduce(big, 0, 1), big)
    total = sdp.oob_allreduce(big, op=sdp.ReduceOp.SUM)
    infinite = np.asarray([np.inf, -np.inf], "float16")
    equal(total, big if size == 1 else infinite)


def check_nan_and_inf_reach_all_ranks(rank: int, size: int) -> None:
    for dtype in FLOATS:
        mine = np.ones(5, tf.as_dtype(dtype).as_numpy_dtype)
        if rank == size - 1:
            mine[1], mine[2] = np.nan, np.inf
        result = array(sdp.oob_allreduce(tf.constant(mine))).astype("float64")
        assert np.isnan(result[1])
        assert np.isinf(result[2])
        equal(result[[0, 3, 4]], np.ones(3))


def check_whatever_a_script_holds(rank: int, size: int) -> None:
    average = (size - 1) / 2
    loss = sdp.oob_allreduce(float(rank))
    equal(loss, np.float32(average))
    equal(sdp.oob_allreduce(rank), np.int32(average))
    equal(sdp.oob_allreduce(-rank), -np.int32(average))  # cut off towards zero, not down
    equal(sdp.oob_allreduce(np.float64(rank)), np.float64(average))
    equal(sdp.oob_allreduce(np.full([2, 3], rank, "float32")), np.full([2, 3], average, "float32"))
    variable = tf.Variable([1.0 * rank])
    equal(sdp.oob_allreduce(variable), np.float32([average]))
    equal(variable, np.float32([rank]))
    mine = [variable, {"a": rank * 1.0, "b": (np.float16(rank), tf.constant(rank, tf.int64))}]
    first, others = sdp.oob_allreduce(mine)
    equal(first, np.float32([average]))
    equal(others["a"], np.float32(average))
    equal(others["b"][0], np.float16(average))
    equal(others["b"][1], np.int64(average))
    result = sdp.allreduce([variable, variable], 1, 2)
    assert isinstance(result, list)
    equal(result[1], np.float32([average]))
    assert sdp.oob_allreduce([]) == []
    slices = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([1, 1]), tf.constant([3, 1]))
    equal(sdp.allreduce(slices, 0, 1), np.float32([[0], [2], [0]]))


def check_keras_variables(rank: int, size: int) -> None:
    variable = tf.keras.Variable([1.0 * rank], name="weight")
    equal(sdp.oob_allreduce(variable), np.float32([(size - 1) / 2]))
    counter = tf.keras.Variable(rank, dtype="int64", name="iterations", trainable=False)
    seed = tf.keras.random.SeedGenerator(rank).state
    sdp.broadcast_variables(iter([variable, [counter, seed]]), root_rank=size - 1)
    equal(variable.value, np.float32([size - 1]))
    equal(counter.value, np.int64(size - 1))
    require_same_bits(seed.value)


def check_hints_may_be_wrong(rank: int, size: int) -> None:
    for index, count in ((0, 1), (5, 2), (-1, 0), (rank, 3), (tf.constant(0), tf.constant(1))):
        equal(sdp.allreduce(tf.constant([rank * 2.0]), index, count), np.float32([size - 1]))


def check_no_operation_is_the_average(rank: int, size: int) -> None:
    equal(sdp.oob_allreduce(rank * 2.0, op=None), np.float32(size - 1))
    equal(sdp.allreduce(rank * 2.0, 0, 1, op=None), np.float32(size - 1))


def check_compression(rank: int, size: int) -> None:
    mine = tf.constant([1.0 + 2**-20, rank], tf.float32)
    for compression in (sdp.Compression.fp16, sdp.Compression.fp16()):
        result = sdp.oob_allreduce(mine, compression=compression)
        if size > 1:
            equal(result, np.float32([1.0, (size - 1) / 2]))  # the small part does not fit
    equal(sdp.oob_allreduce(100003, sdp.Compression.fp16), np.int32(100003))  # integers do
    equal(sdp.oob_allreduce(mine, sdp.Compression.none)[0], np.float32(1.0 + 2**-20))

    class Halved:
        @staticmethod
        def compress(tensor: Any) -> Any:
            return tensor / 2, "context"

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            assert ctx == "context"
            return tensor * 2

    equal(sdp.allreduce(mine, 0, 1, Halved)[1], np.float32((size - 1) / 2))
    assert "Compression.fp16" in raised(SMDDPConfigInvalid, sdp.oob_allreduce, mine, "fp16")


def check_gradients_flow(rank: int, size: int) -> None:
    x = tf.constant([1.0 + rank, 2.0])
    for op, factor in ((sdp.ReduceOp.AVERAGE, 1.0), (sdp.ReduceOp.SUM, size)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(sdp.oob_allreduce(x, op=op) * (rank + 1.0))
        scale = sum(range(1, size + 1)) * factor / size
        np.testing.assert_allclose(tape.gradient(y, x), [scale, scale], 1e-6)


def check_loops_and_branches(rank: int, size: int) -> None:
    @tf.function
    def program(x: Any, positive: Any) -> Any:
        for _ in tf.range(3):
            x = sdp.oob_allreduce(x) + 1.0
        if positive:
            x = sdp.oob_allreduce(x, op=sdp.ReduceOp.SUM)
        else:
            x = -sdp.oob_allreduce(x, op=sdp.ReduceOp.MAX)
        return x

    average = (size - 1) / 2
    equal(program(tf.constant(1.0 * rank), tf.constant(True)), np.float32(size * (average + 3)))
    equal(program(tf.constant(1.0 * rank), tf.constant(False)), np.float32(-average - 3))


def check_shapes_known_at_run_time_only(rank: int, size: int) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def reduce(x: Any) -> Any:
        result = sdp.oob_allreduce([x, x * 2])
        assert result[0].shape.as_list() == [None, None]
        return result[1]

    for count in (3, 0, 5):
        mine = tf.constant(values(rank, (count, 2), "float32"))
        close(reduce(mine), 2 * expected(size, (count, 2), "float32"))


def check_what_cannot_be_reduced(rank: int, size: int) -> None:
    for function in (
        sdp.oob_allreduce,
        lambda x: sdp.allreduce(x, 0, 1),
        lambda x: sdp.broadcast(x, 0),
    ):
        text = raised(SMDDPUnsupported, function, tf.constant(["text"]))
        assert "string, which cannot be sent" in text
        assert "convert it first" in text
        ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
        assert "RaggedTensor" in raised(SMDDPUnsupported, function, ragged)
        sparse = tf.sparse.from_dense([[1.0]])
        assert "tf.sparse.to_dense" in raised(SMDDPUnsupported, function, sparse)
    for function in (sdp.oob_allreduce, lambda x: sdp.broadcast(x, 0)):
        assert "None" in raised(SMDDPConfigInvalid, function, None)
    assert sdp.allreduce(None, 0, 1) is None
    text = raised(SMDDPConfigInvalid, sdp.oob_allreduce, 1.0, op="sum")
    assert "oob_allreduce() got op=sum; expected one of ReduceOp.AVERAGE" in text
    assert "more than once" in raised(SMDDPAlreadyInitialized, sdp.init)


def check_broadcasts_of_every_dtype(rank: int, size: int) -> None:
    roots = {0, size - 1, size // 2}
    for root in roots:
        for dtype in (*FLOATS, *INTEGERS, "bool", "complex64", "complex128"):
            for shape in SHAPES:
                got = sdp.broadcast(tf.constant(values(rank, shape, dtype)), root)
                equal(got, values(root, shape, dtype))
    mixed = sdp.broadcast([rank, {"x": np.float16(rank), "y": 0.5 + rank}], np.int64(size - 1))
    equal(mixed[0], np.int32(size - 1))
    equal(mixed[1]["x"], np.float16(size - 1))
    equal(mixed[1]["y"], np.float32(size - 0.5))
    for root in (-1, size, "0", None, 0.5):
        for call in (sdp.broadcast, sdp.broadcast_variables):
            text = raised(SMDDPConfigInvalid, call, tf.Variable(1.0), root)
            assert f"root_rank={root!r}" in text
            assert f"0 to {size - 1}" in text


def check_a_gradient_flows_to_the_root(rank: int, size: int) -> None:
    x = tf.constant([3.0])
    for root in range(size):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = sdp.broadcast(x, root) * (rank + 1.0)
        total = size * (size + 1) / 2 if rank == root else 0.0
        equal(tape.gradient(y, x), np.float32([total]))


def check_variables_eagerly(rank: int, size: int) -> None:
    def make() -> list[Any]:
        return [
            tf.Variable(values(rank, (2, 3), dtype))
            for dtype in ("float32", "int64", "float32", "bfloat16", "bool", "uint32", "complex64")
        ]

    variables = make()
    nested = [variables[0], (variables[1], {"a": variables[2]}), iter(variables[3:])]
    assert sdp.broadcast_variables(nested, root_rank=size - 1) is None
    for variable in variables:
        equal(variable, values(size - 1, (2, 3), variable.dtype.name))
    one = tf.Variable(rank * 1.0)
    assert sdp.broadcast_variables(one, 0) is None
    equal(one, np.float32(0))
    for nothing in ([], (), {}, iter([]), [[]]):
        assert sdp.broadcast_variables(nothing, 0) is None


def check_variables_in_a_function(rank: int, size: int) -> None:
    variables = [tf.Variable(values(rank, (5,), "float32")), tf.Variable(rank, dtype=tf.int64)]

    @tf.function
    def step(first_batch: Any) -> Any:
        variables[0].assign_add(tf.ones([5]))
        if first_batch:
            sdp.broadcast_variables(variables, root_rank=0)
        return sdp.oob_allreduce(variables[0])

    for first_batch, later in ((True, False), (tf.constant(True), tf.constant(False))):
        variables[0].assign(values(rank, (5,), "float32"))
        variables[1].assign(rank)
        equal(step(first_batch), values(0, (5,), "float32") + 1)
        equal(variables[1], np.int64(0))
        variables[1].assign(rank)
        equal(step(later), values(0, (5,), "float32") + 2)
        equal(variables[1], np.int64(rank))


def check_variables_made_in_the_function(rank: int, size: int) -> None:
    made: list[Any] = []

    @tf.function
    def step(first_batch: bool) -> Any:
        if not made:
            made.append(tf.Variable(lambda: tf.constant([1.0 + rank])))
        made[0].assign_add([1.0])
        if first_batch:
            sdp.broadcast_variables(made, root_rank=0)
        return made[0].read_value()

    equal(step(True), np.float32([2.0]))
    equal(step(False), np.float32([3.0]))


def check_what_is_no_variable_with_a_value(rank: int, size: int) -> None:
    text = raised(SMDDPConfigInvalid, sdp.broadcast_variables, [tf.constant(1.0)], 0)
    assert "use broadcast() for a tensor" in text
    assert "NoneType" in raised(SMDDPConfigInvalid, sdp.broadcast_variables, [None], 0)
    assert "str" in raised(SMDDPConfigInvalid, sdp.broadcast_variables, "kernel", 0)
    words = tf.Variable(["text"], name="words")
    text = raised(SMDDPUnsupported, sdp.broadcast_variables, [tf.Variable(1.0), words], 0)
    assert "words" in text
    assert "string" in text

    made: list[Any] = []

    @tf.function
    def make() -> Any:
        if not made:
            made.append(tf.Variable(lambda: tf.constant(1.0), name="late"))
        return made[0] + 1.0

    make.get_concrete_function()  # traced, so the variable is there, and set
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="bare")
    bare = _Bare(handle)
    text = raised(SMDDPConfigInvalid, sdp.broadcast_variables, [bare], 0)
    assert "bare, which has no value yet" in text


class _Bare:
    """A variable of Keras's kind that nothing has been written to."""

    name = "bare"

    def __init__(self, handle: Any) -> None:
        self.value = self
        self.dtype = tf.float32
        self._handle = handle

    def is_initialized(self) -> Any:
        return tf.raw_ops.VarIsInitializedOp(resource=self._handle)

    def assign(self, value: Any) -> None:
        raise AssertionError("not reached")


def check_sessions(rank: int, size: int) -> None:
    v1 = tf.compat.v1
    for use_resource in (True, False):
        with tf.Graph().as_default():
            first = v1.get_variable("first", initializer=[1.0 * rank], use_resource=use_resource)
            second = v1.get_variable("second", initializer=rank, use_resource=use_resource)
            operation = sdp.broadcast_global_variables(size - 1)
            other = sdp.broadcast_variables([first], 0)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(operation)
                equal(session.run(first), np.float32([size - 1]))
                equal(session.run(second), np.int32(size - 1))
                session.run(first.assign([rank + 1.0]))
                if size > 1:
                    session.run(other)
                equal(session.run(first), np.float32([1.0]))
            # A checkpoint holds every collection of the graph, and warns of what cannot be written.
            assert "smddp_collectives" not in first.graph.get_all_collection_keys()


def check_a_session_runs_collectives_in_the_order_of_their_making(rank: int, size: int) -> None:
    """Of one shape and of several. At first each rank ran them in an order of its own."""
    for shapes in ([[4]] * 12, [[17] * (1 + number % 3) + [1 + number] for number in range(12)]):
        with tf.Graph().as_default():
            mine = [
                tf.random.stateless_uniform(shape, [number, rank])
                for number, shape in enumerate(shapes)
            ]
            sums = [sdp.allreduce(each, 0, 1, op=sdp.ReduceOp.SUM) for each in mine]
            wanted = [
                sum(tf.random.stateless_uniform(shape, [number, other]) for other in range(size))
                for number, shape in enumerate(shapes)
            ]
            with tf.compat.v1.Session() as session:
                for _ in range(5):
                    for found, value in zip(*session.run([sums, wanted]), strict=True):
                        np.testing.assert_allclose(found, value, rtol=1e-5)


def check_a_session_brings_along_no_data_of_others(rank: int, size: int) -> None:
    """An earlier collective that needs what is not fed here is not run with a later one."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        trained = v1.placeholder(tf.float32, [2])
        batches = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
        evaluated = tf.cast(batches, tf.float32) + rank
        first = sdp.oob_allreduce(trained + rank)
        second = sdp.oob_allreduce(evaluated, name="evaluated")
        both = sdp.oob_allreduce(tf.reduce_sum(trained) + evaluated)
        with v1.Session() as session:
            mean = (size - 1) / 2
            equal(session.run(second), np.float32(mean))
            equal(session.run(first, {trained: [1.0, 2.0]}), np.float32([1 + mean, 2 + mean]))
            equal(session.run(second), np.float32(1 + mean))  # no batch was taken meanwhile
            equal(session.run(both, {trained: [1.0, 2.0]}), np.float32(3 + 2 + mean))


def check_the_hook(rank: int, size: int) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=[1.0 * rank])
        v1.train.get_or_create_global_step()
        average = sdp.oob_allreduce(weight + rank)
        hook = sdp.BroadcastGlobalVariablesHook(size - 1)
        assert isinstance(hook, v1.train.SessionRunHook)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            equal(session.run(weight), np.float32([size - 1]))
            equal(session.run(average), np.float32([1.5 * (size - 1)]))


def check_variables_travel_in_buckets(rank: int, size: int) -> None:
    """The call's memory. At first it was three times that of the variables, on every rank."""
    number, mib = 24, 4
    variables = [tf.Variable(tf.fill([mib << 18], 1.0 * rank + index)) for index in range(number)]
    sdp.oob_allreduce(1.0)
    for as_function in (False, True):
        call = tf.function(sdp.broadcast_variables) if as_function else sdp.broadcast_variables
        if as_function:
            call.get_concrete_function(variables, 0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory_mib("VmRSS")
        call(variables, 0)
        # Buckets of 25 MiB: this rank's, that of the root, and what it becomes.
        if size > 1:
            assert memory_mib("VmHWM") - before < 84
        for index, variable in enumerate(variables):
            assert float(variable[0]) == float(variable[-1]) == index
            variable.assign(tf.fill([mib << 18], 1.0 * rank + index))


def memory_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(name)


def check_calls_that_do_not_fit_are_taught(rank: int, size: int) -> None:
    x = tf.constant([1.0])
    text = raised(TypeError, sdp.allreduce, x, surprise=1)
    assert "'surprise'" in text, text
    assert "expected allreduce(tensor)" in text
    assert "expected broadcast(tensor, root_rank, name=)" in raised(TypeError, sdp.broadcast, x)
    assert "process_set" in raised(TypeError, sdp.oob_allreduce, x, process_set=1)
    text = raised(TypeError, tf.function(lambda: sdp.allreduce()))
    assert "expected allreduce(tensor)" in text, text


def check_no_global_variables_eagerly(rank: int, size: int) -> None:
    text = raised(SMDDPError, sdp.broadcast_global_variables, 0)
    assert "Use broadcast_variables(" in text
    assert "Use broadcast_variables(" in raised(
        SMDDPError, tf.function(lambda: sdp.broadcast_global_variables(0))
    )


def check_xla_is_refused(rank: int, size: int) -> None:
    variable = tf.Variable([1.0])
    calls = {
        "oob_allreduce": lambda x: sdp.oob_allreduce(x),
        "allreduce": lambda x: sdp.allreduce(x, 0, 1),
        "broadcast": lambda x: sdp.broadcast(x, 0),
        "broadcast_variables": lambda x: sdp.broadcast_variables([variable], 0),
    }
    for call in calls.values():
        compiled = tf.function(call, jit_compile=True)
        assert XLA_TEXT in raised(SMDDPUnsupported, compiled, tf.constant([1.0]))
        inner = tf.function(call)
        outer = tf.function(lambda x, inner=inner: inner(x), jit_compile=True)
        assert XLA_TEXT in raised(SMDDPUnsupported, outer, tf.constant([1.0]))
        inner(tf.constant([1.0]))  # by itself it is legal

    @tf.function(jit_compile=True)
    def compiled_square(x: Any) -> Any:
        return sdp.overlap(x) * x

    @tf.function
    def around(x: Any) -> Any:
        return sdp.oob_allreduce(compiled_square(x))

    total = sum(each * each for each in range(size)) / size
    np.testing.assert_allclose(around(tf.constant([1.0 * rank])), [total], 1e-6)


def check_overlap(rank: int, size: int) -> None:
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = sdp.overlap(x) * sdp.overlap({"a": [x]})["a"][0]
    equal(y, np.float32([1, 4]))
    equal(tape.gradient(y, x), np.float32([2, 4]))
    equal(sdp.overlap(tf.Variable(3)), np.int32(3))


def check_a_job_can_begin_again(rank: int, size: int) -> None:
    reduce = tf.function(lambda x: sdp.oob_allreduce(x))
    equal(reduce(tf.constant(2.0 * rank)), np.float32(size - 1))
    sdp.shutdown()
    sdp.init()
    equal(reduce(tf.constant(2.0 * rank)), np.float32(size - 1))
