# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_kernels.py run: the kernels by themselves, without the front end."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from engine_ranks import meet_by_files, wait_for_files

SUM, AVG, MIN, MAX = 0, 1, 2, 3
WORLD = 0
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "complex64", "complex128")
# Elements; from 8193 floats on a bucket is in shared memory.
SIZES = (0, 1, 5, 9000, 100003)


@contextlib.contextmanager
def around_checks(rank: int, size: int) -> Iterator[tuple[Rank]]:
    kernels, group = _start()
    yield (Rank(kernels, group),)
    group.barrier()
    kernels.clear_group(WORLD)
    group.close()


def _start() -> tuple[Any, Any]:
    from smdistributed import collectives
    from smdistributed.dataparallel.tensorflow.operations import kernels

    assert kernels.is_available() == (True, "")
    group = collectives.init()
    kernels.set_group(WORLD, group)
    return kernels, group


class Rank:
    """What the checks are written with."""

    def __init__(self, kernels: Any, group: Any) -> None:
        import tensorflow as tf

        from smdistributed.dataparallel.tensorflow.operations.order import in_order

        self.tf, self.kernels, self.group = tf, kernels, group
        self.rank, self.size = group.rank, group.world_size
        self.in_order = functools.partial(in_order, tensors=(), group=WORLD, lane=WORLD)

    def all_reduce(self, *tensors: Any, op: int = SUM, key: str = "a check") -> list[Any]:
        run = self.kernels.all_reduce
        return list(self.in_order(lambda token: run(list(tensors), op, token, key, 0, WORLD)))

    def broadcast(self, *tensors: Any, root: int, key: str = "a check") -> list[Any]:
        run = self.kernels.broadcast
        return list(self.in_order(lambda token: run(list(tensors), root, token, key, 0, WORLD)))

    def all_gather(self, tensor: Any, key: str = "a check") -> Any:
        run = self.kernels.all_gather
        return self.in_order(lambda token: [run(tensor, token, key, 0, WORLD)])[0]

    def both_ways(self, function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
        """The function as it is, and in a graph."""
        return function, self.tf.function(function, autograph=False)

    def error(self, function: Callable[[], Any], error: str) -> str:
        """The text of the error that the call raises."""
        with pytest.raises(getattr(self.tf.errors, error)) as raised:
            function()
        return str(raised.value)


def check_all_reduce(at: Rank) -> None:
    tf = at.tf
    for name in DTYPES:
        dtype = tf.as_dtype(name)
        for size in SIZES:
            tensors = [
                tf.cast(tf.fill([size], 2 + at.rank), dtype),
                tf.cast(tf.fill([2, size], 1 + at.rank), dtype),
                tf.cast(3 * (at.rank + 1), dtype),
            ]
            ranks = range(at.size)
            sums = [
                sum(2 + r for r in ranks),
                sum(1 + r for r in ranks),
                sum(3 + 3 * r for r in ranks),
            ]
            for function in at.both_ways(at.all_reduce):
                results = function(*tensors)
                for result, tensor, expected in zip(results, tensors, sums, strict=True):
                    assert (result.shape, result.dtype) == (tensor.shape, dtype)
                    assert np.all(result.numpy() == np.asarray(expected, dtype.as_numpy_dtype))


def check_reduce_operations(at: Rank) -> None:
    tf = at.tf
    for size in SIZES[1:]:
        mine = tf.range(float(size)) * (1 - 2 * at.rank)
        all_of_them = np.stack([np.arange(size) * (1.0 - 2 * r) for r in range(at.size)])
        for op, expected in (
            (SUM, all_of_them.sum(0)),
            (AVG, all_of_them.mean(0)),
            (MIN, all_of_them.min(0)),
            (MAX, all_of_them.max(0)),
        ):
            (result,) = at.all_reduce(mine, op=op)
            np.testing.assert_array_equal(result.numpy(), expected)
        odd = tf.fill([size], at.rank == 1)
        assert at.all_reduce(odd)[0].numpy().all() == (at.size > 1)  # the sum of bool is "or"


def check_inputs_stay_as_they_are(at: Rank) -> None:
    tf = at.tf
    for size in SIZES:
        tensor = tf.fill([size], float(at.rank + 1))
        for _ in range(3):
            at.all_reduce(tensor)
            at.broadcast(tensor, root=0)
        assert np.all(tensor.numpy() == at.rank + 1)


def check_results_stay_as_they_are(at: Rank) -> None:
    """A bucket is not used again while anybody has a part of it."""
    tf = at.tf
    kept = []
    variable = tf.Variable(tf.zeros([9000]))
    for number in range(1, 6):
        first, second = at.all_reduce(tf.fill([9000], float(number)), tf.fill([7], -float(number)))
        kept.append((number * at.size, first if number % 2 else second))
        if number == 3:
            variable.assign(first)
    for expected, tensor in kept:
        assert np.all(np.abs(tensor.numpy()) == expected)
    assert np.all(variable.numpy() == 3 * at.size)
    variable.assign_add(tf.ones([9000]))  # in place, elsewhere
    assert np.all(kept[2][1].numpy() == 3 * at.size)


def check_broadcast(at: Rank) -> None:
    tf = at.tf
    for name in (*DTYPES, "bool"):
        dtype = tf.as_dtype(name)
        for size in SIZES:
            for root in range(at.size):
                tensors = [
                    tf.cast(tf.fill([size], at.rank), dtype),
                    tf.cast(at.rank + 1, dtype),
                    tf.cast(tf.fill([0, size], at.rank), dtype),
                ]
                for given in (tensors, tensors[:1]):
                    results = at.broadcast(*given, root=root)
                    for result, tensor, value in zip(
                        results, given, (root, root + 1, 0), strict=False
                    ):
                        assert (result.shape, result.dtype) == (tensor.shape, dtype)
                        assert np.all(result.numpy() == np.asarray(value, dtype.as_numpy_dtype))


def check_all_gather(at: Rank) -> None:
    tf = at.tf
    for name in (*DTYPES, "bool"):
        dtype = tf.as_dtype(name)
        for rows in (0, 1, 5000):
            # Nothing on rank 0, then more and more.
            mine = tf.cast(tf.fill([rows * at.rank, 3], at.rank), dtype)
            expected = np.repeat(np.arange(at.size), rows * np.arange(at.size))[:, None]
            for function in at.both_ways(at.all_gather):
                result = function(mine)
                assert result.shape == (len(expected), 3)
                assert np.all(result.numpy() == expected.astype(dtype.as_numpy_dtype))


def check_shapes_in_graphs(at: Rank) -> None:
    tf = at.tf
    gather = tf.function(at.all_gather, autograph=False)
    for given, expected in (([5, 4], [None, 4]), ([None, None, 2], [None, None, 2]), (None, None)):
        concrete = gather.get_concrete_function(tf.TensorSpec(given))
        shape = concrete.outputs[0].shape
        assert shape.rank is None if expected is None else shape.as_list() == expected
    gather = tf.function(at.all_gather, autograph=False)
    with pytest.raises(ValueError, match="at least rank 1"):
        gather.get_concrete_function(tf.TensorSpec([]))
    reduce = tf.function(at.all_reduce, autograph=False)
    concrete = reduce.get_concrete_function(tf.TensorSpec([None, 2]), tf.TensorSpec([]))
    assert [each.shape.as_list() for each in concrete.outputs] == [[None, 2], []]


def check_operations_run_for_their_effect(at: Rank) -> None:
    """Those whose results nobody uses, too: the other ranks take part."""
    tf = at.tf

    @tf.function(autograph=False)
    def step() -> Any:
        at.all_reduce(tf.constant(1.0), key="unused")
        return at.all_reduce(tf.constant(float(at.rank)))[0]

    if at.rank == 0:
        at.all_reduce(tf.constant(1.0))
        at.all_reduce(tf.constant(0.0))
    else:
        step()
    assert float(step()) == at.size * (at.size - 1) / 2


def check_graphs_of_tensorflow_1(at: Rank) -> None:
    tf = at.tf
    with tf.Graph().as_default():
        total = at.all_reduce(tf.fill([20000], 2.0), tf.constant(3.0))
        with tf.control_dependencies(total):
            rows = at.all_gather(tf.fill([2, 1], at.rank))
        with tf.compat.v1.Session() as session:
            (first, second), gathered = session.run((total, rows))
    assert np.all(first == 2 * at.size)
    assert second == 3 * at.size
    assert gathered.ravel().tolist() == [r for r in range(at.size) for _ in range(2)]


def check_loops(at: Rank) -> None:
    tf = at.tf

    @tf.function(autograph=False)
    def run(tensor: Any) -> Any:
        return tf.while_loop(
            lambda i, x: i < 50,
            lambda i, x: (i + 1, at.all_reduce(x, x, op=AVG)[1]),
            (0, tensor),
        )[1]

    for size in (1, 20000):
        assert np.all(run(tf.fill([size], 3.0)).numpy() == 3)


def check_operations_that_wait_long(at: Rank) -> None:
    """TensorFlow is given a ticket, again and again, and in the end the results."""
    tf = at.tf

    def step(number: Any) -> list[Any]:
        x = tf.cast(number, tf.float32) + at.rank
        few = at.all_reduce(x, tf.fill([3], x))
        many = at.all_reduce(tf.fill([20000], x), tf.fill([2], x), tf.zeros([0]))
        (one,) = at.broadcast(tf.fill([9000], x), root=at.size - 1)
        two = at.broadcast(x, tf.fill([9000], x), root=0)
        rows = at.all_gather(tf.fill([at.rank, 2], x))
        return [*few, *many, one, *two, rows, few[1]]

    in_graph = tf.function(step, autograph=False)
    in_loop = tf.function(
        lambda number: tf.while_loop(
            lambda i, x: i < 2,
            lambda i, x: (i + 1, at.all_reduce(x, op=MAX)[0]),
            (0, number + at.rank),
        )[1],
        autograph=False,
    )
    with mock.patch.object(at.kernels, "_PATIENCE_MS", 1):
        at.kernels._ways.cache_clear()
        for number in range(3):
            expected = step(tf.constant(number))
            at.group.barrier()
            if at.rank == number % at.size:
                time.sleep(0.3)
            for found, value in zip(in_graph(tf.constant(number)), expected, strict=True):
                assert found.shape == value.shape
                assert np.all(found.numpy() == value.numpy())
            if at.rank == number % at.size:
                time.sleep(0.2)
            assert int(in_loop(tf.constant(number))) == number + at.size - 1
    at.kernels._ways.cache_clear()


def check_rows_that_cannot_be_joined(at: Rank) -> None:
    tf = at.tf
    other = min(at.rank, 1)
    for tensor, said in (
        (tf.zeros([2, 3 + other]), "SMDDPMismatch: all_gather: rank 0 passes float32 [2, 3] and"),
        (tf.zeros([1], tf.int32 if other else tf.float32), "rank 1 passes int32 [1]; expected one"),
    ):
        text = at.error(lambda tensor=tensor: at.all_gather(tensor, "rows"), "InvalidArgumentError")
        assert said in text, text
        assert "; in rows" in text, text
    text = at.error(lambda: at.all_gather(tf.constant(1.0)), "InvalidArgumentError")
    assert "SMDDPConfigInvalid: all_gather takes tensors of 1 to 16 dimensions" in text, text
    assert float(at.all_reduce(tf.constant(1.0))[0]) == at.size  # the group goes on


def check_arguments_that_cannot_work(at: Rank) -> None:
    tf = at.tf
    one = tf.constant(1.0)
    for call, error, said in (
        (
            lambda: at.broadcast(one, root=at.size),
            "InvalidArgumentError",
            "SMDDPConfigInvalid: root",
        ),
        (lambda: at.all_reduce(one, op=77), "InvalidArgumentError", "SMDDPConfigInvalid: 77"),
        (
            lambda: at.all_reduce(tf.constant(True), op=AVG),
            "UnimplementedError",
            "SMDDPUnsupported: Cannot reduce bool with AVG",
        ),
        (
            lambda: at.all_reduce(tf.constant(1j), op=MIN),
            "UnimplementedError",
            "SMDDPUnsupported: Cannot reduce complex128 with MIN",
        ),
    ):
        text = at.error(call, error)
        assert said in text, text
        assert "; in a check" in text, text


def check_without_a_group(at: Rank) -> None:
    tf = at.tf
    step = tf.function(lambda: at.all_reduce(tf.constant(1.0))[0], autograph=False)
    assert float(step()) == at.size
    at.kernels.clear_group(WORLD)
    at.kernels.clear_group(WORLD)
    for call in (step, lambda: at.all_gather(tf.zeros([1]))):
        text = at.error(call, "FailedPreconditionError")
        assert "SMDDPNotInitialized: " in text, text
        assert "; in a check" in text, text
    at.kernels.set_group(WORLD, at.group)
    assert float(step()) == at.size


def check_a_library_of_another_build(at: Rank) -> None:
    from smdistributed.dataparallel.exceptions import SMDDPUnsupported

    other = (ctypes.c_uint64 * 4)()

    class Native:
        def plugin_handle(self) -> int:
            return ctypes.addressof(other)

    class Group:
        native = Native()

    with pytest.raises(SMDDPUnsupported, match="of another build"):
        at.kernels.set_group(WORLD, Group())


def check_a_build_that_is_not_known(at: Rank) -> None:
    """It is tried in a child process, once for all processes; what fails there is told."""
    from smdistributed.dataparallel.tensorflow.operations import builds

    if at.rank != 0:
        return
    kernels: Any = at.kernels
    known, executable = builds._KNOWN_BUILDS, sys.executable
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, XDG_CACHE_HOME=folder),
    ):
        try:
            builds._KNOWN_BUILDS = frozenset()
            sys.executable = "/bin/false"
            kernels.is_available.cache_clear()
            is_available, reason = kernels.is_available()
            assert not is_available
            assert "is not known, and a trial of it ended with exit status 1" in reason, reason
            sys.executable = executable
            kernels.is_available.cache_clear()
            assert kernels.is_available() == (True, "")  # a trial that failed is made again
            sys.executable = "/bin/false"
            kernels.is_available.cache_clear()
            assert kernels.is_available() == (True, "")  # one that passed is not
        finally:
            builds._KNOWN_BUILDS, sys.executable = known, executable
            kernels.is_available.cache_clear()


def check_a_library_that_is_not_there(at: Rank) -> None:
    import smdistributed.dataparallel.tensorflow.operations as package

    kernels: Any = at.kernels
    folders = list(package.__path__)
    try:
        package.__path__ = [str(Path(folder).parent) for folder in folders]
        kernels._load.cache_clear()
        kernels.is_available.cache_clear()
        is_available, reason = kernels.is_available()
        assert not is_available
        assert "does not load: it is not in " in reason, reason
    finally:
        package.__path__ = folders
        kernels._load.cache_clear()
        kernels.is_available.cache_clear()
    assert kernels.is_available() == (True, "")


# --- runs of their own: the group does not survive them ------------------------------------------


def shapes_differ(rank: int, world_size: int, in_graph: bool) -> str:
    kernels, group = _start()
    at = Rank(kernels, group)

    def step() -> Any:
        return at.all_reduce(at.tf.zeros([3 + rank, 2]), at.tf.zeros([4]), key="gradients 1 of 3")

    return at.error(at.both_ways(step)[in_graph], "InvalidArgumentError")


def peer_is_killed(rank: int, world_size: int) -> tuple[str, str]:
    kernels, group = _start()
    at = Rank(kernels, group)

    def step() -> Any:
        return at.all_reduce(at.tf.zeros([100000]), key="gradients 1 of 3")

    in_graph = at.tf.function(step, autograph=False)
    in_graph()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return at.error(in_graph, "AbortedError"), at.error(step, "AbortedError")


def rank_is_late(rank: int, world_size: int, folder: str) -> str:
    import tensorflow as tf

    from smdistributed.dataparallel.tensorflow.operations import kernels

    # Both take a while, and the timeout is short.
    tf.zeros([1])
    kernels.is_available()
    meet_by_files(folder, rank, world_size)
    at = Rank(*_start())
    at.all_reduce(at.tf.zeros([1]))
    text = ""
    if rank == 0:
        text = at.error(
            lambda: at.all_reduce(at.tf.zeros([1]), key="a sum"), "DeadlineExceededError"
        )
        Path(folder, "told").touch()
    wait_for_files(folder, ["told"])  # alive, and in no operation
    return text
