# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks of test_horovod.py: the functions of `horovod.tensorflow`."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from horovod_names import ARGUMENTS, BEFORE_INIT, PACKAGE, REFUSED, REFUSED_ARGUMENTS
from tf_ranks import raised, tagged

import smdistributed.compat.horovod.tensorflow as hvd
import smdistributed.compat.horovod.tensorflow.keras as hk
import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
    SMDDPError,
    SMDDPNotInitialized,
    SMDDPUnsupported,
)
from smdistributed.dataparallel.tensorflow.gradient_reduction import reduce_gradients

v1 = tf.compat.v1


def what_names_do(rank: int, size: int) -> dict[str, str]:
    """By name, or call, the error that it raises."""
    found: dict[str, str] = {}
    for call in BEFORE_INIT:
        found[f"before init: {call}"] = error_before_init(call)
    hvd.init()
    for module, refused in REFUSED.items():
        there = importlib.import_module(f"{PACKAGE}.{module}")
        for name in refused:
            found[f"{module}.{name}"] = error_of(getattr(there, name), 1)
    with tf.GradientTape() as tape:
        pass
    known = {
        "hvd": hvd,
        "hk": hk,
        "tape": tape,
        "optimizer": tf.keras.optimizers.SGD(0.1),
        "slices": tf.IndexedSlices(tf.ones([1, 2]), [0], [3, 2]),
    }
    for call in REFUSED_ARGUMENTS:
        found[call] = error_of(lambda call=call: eval(call, dict(known)))  # a table of ours
    hvd.shutdown()
    return found


def arguments_of_names(rank: int, size: int) -> dict[str, list[str]]:
    """By name, its arguments as ARGUMENTS has them; ours that only go by keyword are left out."""
    words = {
        id(hvd.Compression.none): "Compression.none",
        id(hvd.global_process_set): "global_process_set",
    }

    def shown(parameter: inspect.Parameter) -> str:
        default = parameter.default
        if default is parameter.empty:
            return parameter.name
        word = default.name if isinstance(default, enum.Enum) else repr(default)
        return f"{parameter.name}={words.get(id(default), word)}"

    found = {}
    for each in ARGUMENTS:
        module, _, name = each.rpartition(".")
        thing = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        parameters = inspect.signature(thing).parameters.values()
        found[each] = [shown(p) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return found


def error_before_init(call: str) -> str:
    w = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        x = w * 2.0

    def in_graph(function: Callable[..., Any], *arguments: Any) -> Any:
        with tf.Graph().as_default():
            return function(*arguments)

    known = {
        "hvd": hvd,
        "hk": hk,
        "in_graph": in_graph,
        "optimizer": tf.keras.optimizers.SGD(0.1),
        "slices": tf.IndexedSlices(tf.ones([1, 2]), [0], [3, 2]),
        "tape": tape,
        "tf": tf,
        "w": w,
        "x": x,
    }
    try:
        eval(call, known)  # a table of ours
    except SMDDPNotInitialized as error:
        kind = "" if isinstance(error, ValueError) else "no ValueError: "
        return f"{kind}{error}"
    except Exception as error:
        return f"another error: {error!r}"
    return "no error"


def error_of(function: Callable[..., Any], *arguments: Any) -> str:
    try:
        function(*arguments)
    except SMDDPUnsupported as error:
        return str(error)
    except Exception as error:
        return f"another error: {error!r}"
    return "no error"


def both_ways(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives, eagerly and in `tf.function` alike."""
    eager = function(*arguments)
    traced = tf.function(function)(*arguments)
    tf.nest.map_structure(np.testing.assert_array_equal, eager, traced, expand_composites=True)
    return eager


def check_who_takes_part(rank: int, size: int) -> None:
    hvd.init()  # once more: nothing
    hk.init()
    assert hvd.is_initialized()
    assert (hvd.rank(), hvd.size(), hk.rank(), hk.size()) == (rank, size) * 2
    assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    tensors = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op("a"), hvd.local_size_op()]
    assert [int(each) for each in tensors] == [rank, size] * 2
    assert [int(hvd.process_set_included_op(each)) for each in (0, 7)] == [1, -3]
    assert hvd.global_process_set.ranks == list(range(size))
    assert not hvd.mpi_built()
    assert not hvd.gloo_enabled()
    assert not hvd.nccl_built()
    assert [n for n in range(10) if hvd.check_num_rank_power_of_2(n)] == [1, 2, 4, 8]
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    again = hvd.refs_to_vars(hvd.vars_to_refs(variables))
    assert again[0] is variables[0]
    assert again[1][0] is variables[1][0]


def check_allreduce(rank: int, size: int) -> None:
    everyone = [tagged(each, (3, 2)) for each in range(size)]
    mine = tf.constant(everyone[rank])
    expected = {
        hvd.Average: np.mean(everyone, axis=0),
        hvd.Sum: np.sum(everyone, axis=0),
        hvd.Min: np.min(everyone, axis=0),
        hvd.Max: np.max(everyone, axis=0),
    }
    for op, value in expected.items():
        found = both_ways(lambda x, op=op: hvd.allreduce(x, op=op, name="x"), mine)
        np.testing.assert_allclose(found, value, rtol=1e-6)
    calls: list[tuple[Callable[[Any], Any], Any]] = [
        (hvd.allreduce, hvd.Average),
        (lambda x: hvd.allreduce(x, True), hvd.Average),
        (lambda x: hvd.allreduce(x, average=False), hvd.Sum),
        (lambda x: hvd.allreduce(x, False, "", ""), hvd.Sum),
        (lambda x: hk.allreduce(x, "a name"), hvd.Average),
        (sdp.allreduce, hvd.Average),
        (lambda x: sdp.allreduce(x, False), hvd.Sum),
        (lambda x: sdp.allreduce(x, 0, 1), hvd.Average),
        (lambda x: sdp.allreduce(x, 0, 1, sdp.Compression.none, sdp.Max), hvd.Max),
        (lambda x: sdp.allreduce(x, average=False), hvd.Sum),
    ]
    for call, op in calls:
        np.testing.assert_allclose(call(mine), expected[op], rtol=1e-6)
    assert hvd.allreduce(None) is None
    assert sdp.allreduce(None) is None
    assert float(hvd.allreduce(float(rank))) == (size - 1) / 2
    assert hk.allreduce(1.0).dtype == tf.float32
    assert hvd.allreduce(tf.Variable(everyone[rank])).dtype == tf.float32
    half = hvd.allreduce(mine, compression=hvd.Compression.fp16)
    np.testing.assert_allclose(half, expected[hvd.Average], rtol=1e-3)
    for wrong in (
        lambda: hvd.allreduce(mine, True, op=hvd.Sum),
        lambda: sdp.allreduce(mine, True, op=sdp.Sum),
        lambda: sdp.allreduce(mine, True, average=True),
    ):
        assert "expected one of them" in raised(SMDDPConfigInvalid, wrong)
    text = raised(TypeError, lambda: hvd.allreduce(mine, surprise=1))
    assert "surprise" in text


def check_devices(rank: int, size: int) -> None:
    """Horovod's documentation has gradients go through the CPU so; here they do anyway."""
    found = hvd.allreduce(float(rank), op=hvd.Sum, device_dense="/cpu:0", device_sparse="/cpu:0")
    assert float(found) == sum(range(size))
    with tf.GradientTape() as tape:
        loss = (weight := tf.Variable(1.0)) * rank
    tape = hvd.DistributedGradientTape(tape, "/cpu:0", op=hvd.Sum)
    assert float(tape.gradient(loss, weight)) == sum(range(size))
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), device_dense="/cpu:0")
    optimizer.apply_gradients([(tf.constant(float(rank)), weight)])
    np.testing.assert_allclose(weight.numpy(), 1.0 - (size - 1) / 2)
    assert hvd.BroadcastGlobalVariablesHook(0, "/cpu:0").device == "/cpu:0"


def check_factors(rank: int, size: int) -> None:
    def reduce(values: Any, dtype: Any, op: Any, before: float, after: float) -> Any:
        tensor = tf.constant(values, dtype)
        found = both_ways(
            lambda x: hvd.allreduce(x, op=op, prescale_factor=before, postscale_factor=after),
            tensor,
        )
        assert found.dtype == dtype
        return found.numpy().astype(np.float64).tolist()

    total = sum(range(1, size + 1))
    for dtype in (tf.float64, tf.float32, tf.float16, tf.bfloat16, tf.complex64):
        found = reduce([rank + 1], dtype, hvd.Sum, 0.5, 4.0)
        assert np.real(found).tolist() == [2.0 * total]
    # Integers: cut off before they are combined, as Horovod's own tests have it, and at the end.
    halves = sum(number // 2 for number in range(1, size + 1))
    assert reduce([rank + 1], tf.int32, hvd.Sum, 0.5, 1.0) == [halves]
    assert reduce([-rank - 1], tf.int64, hvd.Sum, 0.5, 1.0) == [-halves]
    assert reduce([rank + 1], tf.int32, hvd.Sum, 1.0, 0.5) == [int(total / 2)]
    assert reduce([rank + 1], tf.uint8, hvd.Average, 1.0, 10.0) == [int(total / size * 10)]
    assert reduce([rank + 1], tf.int32, hvd.Max, 4.0, 0.25) == [size]
    # Beyond what float16 can hold before or after alone.
    small = hvd.allreduce(tf.constant(2.0**-10, tf.float16), op=hvd.Sum, prescale_factor=2.0**20)
    assert float(small) == size * 1024.0
    assert "known while the call" in raised(
        SMDDPConfigInvalid, lambda: hvd.allreduce(1.0, prescale_factor=tf.constant(1.0))
    )
    raised(SMDDPUnsupported, lambda: hvd.allreduce(True, op=hvd.Max, postscale_factor=2.0))


def check_lists(rank: int, size: int) -> None:
    slices = tf.IndexedSlices(tf.fill([1, 2], rank + 1.0), [rank], tf.constant([size, 2]))
    given = [tf.constant([rank + 1.0]), slices, tf.constant(rank, tf.int64)]
    for found in (
        hvd.grouped_allreduce(given, op=hvd.Sum),
        tf.function(lambda: hvd.grouped_allreduce(given, op=hvd.Sum))(),
    ):
        total = size * (size + 1) / 2
        np.testing.assert_array_equal(found[0], [total])
        rows = np.repeat(np.arange(1.0, size + 1)[:, None], 2, axis=1)
        np.testing.assert_array_equal(tf.convert_to_tensor(found[1]), rows)
        assert isinstance(found[1], tf.IndexedSlices)
        assert int(found[2]) == size * (size - 1) // 2
    average = hvd.allreduce(slices)
    np.testing.assert_allclose(tf.convert_to_tensor(average), rows / size, rtol=1e-6)
    dense = sdp.allreduce(slices)  # as documented there
    np.testing.assert_allclose(dense, rows / size, rtol=1e-6)
    assert hvd.grouped_allreduce([]) == []
    first, none = sdp.grouped_allreduce([1.0, None], op=sdp.Sum)
    assert (float(first), none) == (size, None)


def check_slices(rank: int, size: int) -> None:
    """Integers as in a dense tensor; what `compression` loses shows that it was used."""
    # Each rank has row 0, of which the parts alone would be cut off to 0, and a row of its own.
    values = tf.constant([[1, -1], [7, -7]], tf.int32)
    slices = tf.IndexedSlices(values, [0, rank + 1], tf.constant([size + 1, 2]))
    expected = [[1, -1]] + [[7 // size, -(7 // size)]] * size

    def tape_of(slices: Any) -> Any:
        return reduce_gradients([slices], sparse_as_dense=False)[0]

    for reduce in (hvd.allreduce, tape_of):
        for found in (reduce(slices), tf.function(lambda reduce=reduce: reduce(slices))()):
            assert found.values.dtype == tf.int32
            np.testing.assert_array_equal(tf.convert_to_tensor(found), expected)
    total = hvd.allreduce(slices, op=hvd.Sum)
    np.testing.assert_array_equal(tf.convert_to_tensor(total)[0], [size, -size])
    exact = tf.IndexedSlices(tf.constant([[1.0 + 2.0**-20]]), [rank], tf.constant([size, 1]))
    for compression, value in ((hvd.Compression.none, 1.0 + 2.0**-20), (hvd.Compression.fp16, 1.0)):
        found = hvd.allreduce(exact, op=hvd.Sum, compression=compression)
        assert found.values.dtype == tf.float32
        np.testing.assert_array_equal(found.values, [[value]] * size)
    text = raised(
        SMDDPUnsupported, lambda: hvd.allreduce(tf.IndexedSlices(tf.constant([True]), [0]))
    )
    assert "tf.cast(slices.values, tf.float32)" in text


def check_allgather(rank: int, size: int) -> None:
    for dtype in ("float32", "int64", "bool", "float16"):
        # Ranks have 0, 1, 2 rows.
        everyone = [tagged(each, (each, 2), dtype) for each in range(size)]
        for gather in (hvd.allgather, sdp.allgather, hk.allgather):
            found = gather(tf.constant(everyone[rank]))
            np.testing.assert_array_equal(found, np.concatenate(everyone))
        found = tf.function(hvd.allgather)(tf.constant(everyone[rank]))
        np.testing.assert_array_equal(found, np.concatenate(everyone))
    assert hvd.allgather(tf.zeros([0, 3]), name="empty").shape == (0, 3)
    one, two = hvd.grouped_allgather([[rank], [[1.0 * rank]]])
    assert (one.shape, two.shape) == ((size,), (size, 1))
    text = raised(SMDDPConfigInvalid, lambda: hvd.allgather(3))
    assert "tf.reshape(tensor, [1])" in text


def check_gradients_of_what_is_gathered(rank: int, size: int) -> None:
    x = tf.constant([[1.0, 2.0]]) * (rank + 1)

    def gradient(function: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            # A loss of this rank: each rank has another weight.
            loss = tf.reduce_sum(function(x) ** 2) * (rank + 1.0)
        return tape.gradient(loss, x)

    total = size * (size + 1) / 2
    for way in (gradient, tf.function(gradient)):
        np.testing.assert_allclose(way(hvd.allgather, x), 2 * x * total / size, rtol=1e-6)
        np.testing.assert_allclose(way(sdp.allgather, x), 2 * x * total, rtol=1e-6)
        found = way(lambda x: hvd.broadcast(x, size - 1), x)
        expected = 2 * x * total / size if rank == size - 1 else tf.zeros_like(x)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def check_broadcasts(rank: int, size: int) -> None:
    root = size - 1
    assert float(both_ways(lambda x: hvd.broadcast(x, root, "x"), tf.constant(float(rank)))) == root
    assert float(hk.broadcast(float(rank), root)) == root
    for call in (
        lambda each: hvd.broadcast_variables(each, root_rank=root),
        lambda each: hvd.broadcast_variables(each, root, inplace=True),
        lambda each: hvd.broadcast_(each, root),
    ):
        variables = [tf.Variable([float(rank)]), tf.Variable(rank)]
        found = call(variables)
        assert [int(each.numpy().item()) for each in variables] == [root, root]
        assert found is None or [int(each.numpy().item()) for each in found] == [root, root]
    text = raised(RuntimeError, lambda: hvd.broadcast_global_variables(0))
    assert "hvd.broadcast_variables(" in text
    raised(SMDDPError, lambda: hk.broadcast_global_variables(0))


def check_objects(rank: int, size: int) -> None:
    root = size - 1
    mine = {"rank": rank, "array": np.arange(rank * 1000), "none": None}
    found = hvd.broadcast_object(mine, root)
    assert found["rank"] == root
    assert len(found["array"]) == root * 1000
    assert hvd.broadcast_object_fn(name="state")(("a", rank)) == ("a", 0)
    assert hvd.allgather_object(["x"] * rank) == [["x"] * each for each in range(size)]
    # One that cannot be sent is an error on all ranks, which go on.
    wrong = open(__file__) if rank == root else 1  # noqa: SIM115 -- closed below
    texts = [
        raised(SMDDPConfigInvalid, lambda: hvd.broadcast_object(wrong, root)),
        raised(SMDDPConfigInvalid, lambda: hvd.allgather_object(wrong)),
    ]
    if rank == root:
        wrong.close()
    assert all(f"the object of rank {root} cannot be pickled (TypeError" in text for text in texts)
    text = raised(SMDDPUnsupported, tf.function(lambda: hvd.broadcast_object(1)))
    assert "Call it outside of tf.function" in text
    assert hvd.broadcast_object(rank) == 0
    with tf.Graph().as_default(), v1.Session() as session:
        assert hvd.broadcast_object(("v1", rank), session=session) == ("v1", 0)
        assert hvd.allgather_object(rank) == list(range(size))


def check_barrier_and_join(rank: int, size: int) -> None:
    hvd.barrier()
    tf.function(sdp.barrier)()
    found = hvd.join()
    assert 0 <= found < size
    assert hvd.allgather_object(found) == [found] * size
    assert "after the loop" in raised(SMDDPUnsupported, tf.function(hvd.join))
    with tf.Graph().as_default():
        assert "Run oob_allreduce()" in raised(SMDDPUnsupported, hvd.barrier)


def check_the_tape(rank: int, size: int) -> None:
    weight, table = tf.Variable([2.0]), tf.Variable(tf.ones([size + 1, 2]))

    def gradients(**arguments: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.reduce_sum(tf.gather(table, [rank]))
            loss = tf.reduce_sum(weight * (rank + 1.0)) + rows
        tape = hvd.DistributedGradientTape(tape, **arguments)
        return tape.gradient(loss, [weight, table])

    mean = (size + 1) / 2
    neutral = {"num_groups": 0, "groups": None, "process_set": hvd.global_process_set}
    for arguments, factor in (
        ({}, 1.0),
        ({"compression": hvd.Compression.fp16, "scale_local_gradients": False}, 1.0),
        ({"gradient_predivide_factor": 2.0, **neutral}, 1.0),
        ({"op": hvd.Sum}, size),
    ):
        for found, rows in (gradients(**arguments), tf.function(gradients)(**arguments)):
            np.testing.assert_allclose(found, [mean * factor], rtol=1e-3)
            assert isinstance(rows, tf.IndexedSlices)
            np.testing.assert_allclose(rows.values, np.full([size, 2], factor / size), rtol=1e-3)
    _, rows = gradients(sparse_as_dense=True)
    assert isinstance(rows, tf.Tensor)
    for wrong in (
        {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        {"gradient_predivide_factor": 0.0},
    ):
        raised(SMDDPConfigInvalid, lambda wrong=wrong: gradients(**wrong))
    for what in (
        lambda: gradients(op=hvd.Min),
        lambda: hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), op=hvd.Min),
    ):
        assert "got op=hvd.Min; expected one of hvd.Average, hvd.Sum" in raised(ValueError, what)


def check_the_timeline(rank: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        hvd.start_timeline(f"{folder}/timeline.json")
        hvd.allreduce(1.0, name="traced")
        hvd.stop_timeline()
        written = json.loads(Path(folder, f"timeline.{rank}.json").read_text())
        assert "all_reduce" in json.dumps(written)


def check_sessions(rank: int, size: int) -> None:
    """Scripts for TensorFlow 1: the hook, and an optimizer that adds up gradients."""
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", initializer=[1.0 + rank, 1.0])
        step = v1.train.get_or_create_global_step()
        value = v1.placeholder(tf.float32, [])
        optimizer = hvd.DistributedOptimizer(
            v1.train.MomentumOptimizer(0.1, 0.9), backward_passes_per_step=2
        )
        train = optimizer.minimize(value * tf.reduce_sum(weight), global_step=step)
        hook = hvd.BroadcastGlobalVariablesHook(0)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            np.testing.assert_array_equal(session.run(weight), [1.0, 1.0])
            expected, velocity = 1.0, 0.0
            for first in range(0, 6, 2):
                session.run(train, {value: first + rank})
                np.testing.assert_allclose(session.run(weight), expected, rtol=1e-5)
                session.run(train, {value: first + 1 + rank})
                sums = [2 * first + 1 + 2 * each for each in range(size)]
                velocity = 0.9 * velocity + np.mean(sums)
                expected -= 0.1 * velocity
                np.testing.assert_allclose(session.run(weight), expected, rtol=1e-5)
    variable = tf.Variable([1.0])
    optimizer = hvd.DistributedOptimizer(
        v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2
    )
    text = raised(SMDDPUnsupported, optimizer.minimize, lambda: variable * 2.0)
    assert "Use an optimizer of Keras" in text


def check_join_after_another_number_of_steps(rank: int, size: int) -> None:
    """The last check: it ends the group."""
    if rank == 0:
        text = raised(tf.errors.OpError, hvd.join)
    else:
        text = raised(tf.errors.OpError, hvd.allreduce, tf.ones([3]), name="one step more")
    assert "SMDDPMismatch" in text, text
    assert "give all ranks the same number of batches" in text, text
