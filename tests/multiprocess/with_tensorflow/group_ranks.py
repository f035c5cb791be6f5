# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_groups.py run: collectives among some of the ranks.

Ranks 0 and 1 are one group, all others another one. Numbers tell who put them in, so a sum over the
wrong ranks, or of two calls that were mixed up, is a wrong number.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tf_ranks import job, raised

import smdistributed.dataparallel.tensorflow as sdp
from smdistributed.dataparallel import stop_profiler
from smdistributed.dataparallel.exceptions import (
    SMDDPConfigInvalid,
    SMDDPMismatch,
    SMDDPNotInitialized,
)
from smdistributed.dataparallel.tensorflow import operations
from smdistributed.dataparallel.tensorflow.gradient_reduction import reduce_gradients

DELAY_S = 0.002
LEARNING_RATE = 0.5
HOLDS_THREADS = os.environ.get("SMDDP_TF_OPERATIONS") == "python"
RUNS = int(os.environ.get("RUNS", "2"))


@contextlib.contextmanager
def around_checks(rank: int, size: int) -> Iterator[tuple[Rank]]:
    """A job with as many threads as the test says."""
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ["INTER_OP_THREADS"]))
    with job(rank, size):
        yield (Rank(),)


class Rank:
    """What the checks are written with."""

    def __init__(self) -> None:
        self.rank, self.size = sdp.rank(), sdp.size()
        self.halves = [[0, 1], list(range(2, self.size))]
        self.half = self.halves[self.rank >= 2]
        self.group = sdp.new_group(self.half)
        self._random = random.Random(self.rank)

    def value(self, number: float, dtype: Any = tf.float32) -> Any:
        """What this rank puts into a collective."""
        return tf.constant([number * (self.rank + 1)], dtype)

    def total(self, number: float, ranks: Sequence[int] | None = None) -> float:
        """What `value(number)` of these ranks, default: of this half, makes together."""
        return number * sum(rank + 1 for rank in (self.half if ranks is None else ranks))

    def late(self, tensor: Any) -> Any:
        """The same tensor, sometimes after a while."""
        result = tf.py_function(self._sleep, [tensor], tensor.dtype)
        result.set_shape(tensor.shape)
        return result

    def computed(self, tensor: Any) -> Any:
        """The same tensor, after something that takes longer on some ranks than on others."""
        width = self._random.randrange(1, 200)
        return tensor + 0.0 * tf.reduce_sum(tf.matmul(*[tf.random.uniform([width, width])] * 2))

    def _sleep(self, tensor: Any) -> Any:
        if self._random.random() < 0.3:
            time.sleep(DELAY_S)
        return tensor


def total_of(tensor: Any, group: Any, **options: Any) -> Any:
    return sdp.allreduce(tensor, 0, 1, op=sdp.ReduceOp.SUM, group=group, **options)


def numbers(tensors: Any) -> list[float]:
    """Of tensors of one element."""
    return [np.asarray(each).item() for each in tf.nest.flatten(tensors)]


def in_both_ways(function: Callable[[], Any]) -> list[Any]:
    """What a function returns eagerly, and in a graph."""
    graph = tf.function(function, autograph=False)
    return [tf.nest.map_structure(np.asarray, each()) for each in (function, graph, graph)]


def check_what_a_group_is(at: Rank) -> None:
    group = at.group
    assert isinstance(group, sdp.Group)
    assert (list(group.ranks), group.size(), group.included()) == (at.half, len(at.half), True)
    assert group.rank() == at.half.index(at.rank)
    shown = f"the group of rank{'' if len(at.half) == 1 else 's'} {', '.join(map(str, at.half))}"
    assert str(group) == shown
    everyone = sdp.new_group(reversed(range(at.size)))
    assert everyone.ranks == tuple(range(at.size))
    assert everyone.rank() == at.rank
    first = sdp.new_group([0])  # all ranks may name a group that they are not in
    assert first.included() == (at.rank == 0)
    last = sdp.new_group(np.array([at.size - 1]))
    assert last.ranks == (at.size - 1,)
    if at.rank == 0:
        np.testing.assert_array_equal(total_of(at.value(3), first), [3])
    for made in (everyone, first, last):
        sdp.close_group(made)
        sdp.close_group(made)


def check_reductions(at: Rank) -> None:
    def run() -> Any:
        both = [at.value(1), tf.fill([2, 3], float(at.rank))]
        return {
            "sum": total_of(at.value(5), at.group),
            "average": sdp.oob_allreduce(at.value(1.0), group=at.group),
            "integers": sdp.oob_allreduce(at.value(2, tf.int32), group=at.group),
            "least": sdp.oob_allreduce(at.value(1), op=sdp.ReduceOp.MIN, group=at.group),
            "list": total_of(both, at.group, name="a list"),
            "fp16": total_of(at.value(1), at.group, compression=sdp.Compression.fp16),
        }

    for found in in_both_ways(run):
        members = len(at.half)
        assert found["sum"].tolist() == [at.total(5)]
        assert found["average"].tolist() == pytest.approx([at.total(1) / members])
        assert found["integers"].tolist() == [int(at.total(2) / members)]
        assert found["least"].tolist() == [at.half[0] + 1]
        assert found["list"][0].tolist() == [at.total(1)]
        assert (found["list"][1] == sum(at.half)).all()
        assert found["fp16"].tolist() == [at.total(1)]


def check_broadcasts(at: Rank) -> None:
    """The root is a rank in the group; variables travel bucket by bucket."""
    root = len(at.half) - 1
    sizes = (1, 5, 3000, 0, 7)
    variables = [
        *(tf.Variable(tf.fill([size], float(at.rank))) for size in sizes),
        tf.Variable(at.rank, dtype=tf.int64),
    ]
    sent: list[int] = []
    original = operations.broadcast

    def count(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        sent.append(sum(int(tf.size(each)) for each in tensors))
        return original(tensors, *args, **kwargs)

    def run() -> Any:
        return sdp.broadcast({"a": at.value(1), "b": at.value(2, tf.int64)}, root, group=at.group)

    for found in in_both_ways(run):
        assert {key: each.tolist() for key, each in found.items()} == {
            "a": [at.half[root] + 1],
            "b": [2 * (at.half[root] + 1)],
        }
    operations.broadcast = count
    try:
        sdp.broadcast_variables(variables, root, group=at.group)
    finally:
        operations.broadcast = original
    assert all((np.asarray(each) == at.half[root]).all() for each in variables)
    assert sent == ([6, 3000, 7, 1] if len(at.half) > 1 else []), sent
    text = raised(SMDDPConfigInvalid, sdp.broadcast, 1.0, len(at.half), group=at.group)
    assert f"expected a rank in {at.group}, 0 to {root}" in text, text


def check_gradients(at: Rank) -> None:
    """Of a tape; dense, sparse, and missing on some ranks of a group."""
    weight = tf.Variable([1.0, 2.0])
    table = tf.Variable(tf.ones([6, 2]))
    unused = tf.Variable([3.0])
    is_first = at.rank == at.half[0]

    def run() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * float(at.rank + 1))
            loss += tf.reduce_sum(tf.gather(table, [at.rank])) * 2.0
            if is_first:
                loss += tf.reduce_sum(unused * 6.0)
        tape = sdp.DistributedGradientTape(
            tape, op=sdp.ReduceOp.SUM, sparse_as_dense=False, group=at.group
        )
        dense, sparse, partly = tape.gradient(loss, [weight, table, unused])
        return dense, sparse.indices, sparse.values, partly

    for dense, rows, values, partly in in_both_ways(run):
        assert dense.tolist() == [at.total(1)] * 2
        assert rows.tolist() == at.half
        assert (values == 2.0).all()
        assert partly.tolist() == [6.0]


def check_a_tape_and_an_optimizer_of_two_groups(at: Rank) -> None:
    """The optimizer reduces over its ranks what the tape has reduced over others."""
    weight = tf.Variable([0.0])
    optimizer = sdp.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))  # of all ranks
    optimizer.build([weight])

    def run() -> Any:
        weight.assign([0.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * float(at.rank + 1))
        tape = sdp.DistributedGradientTape(tape, op=sdp.ReduceOp.SUM, group=at.group)
        optimizer.apply_gradients(zip(tape.gradient(loss, [weight]), [weight], strict=True))
        return weight.read_value()

    totals = [at.total(1, at.halves[rank >= 2]) for rank in range(at.size)]
    for found in in_both_ways(run):
        assert found.tolist() == pytest.approx([-np.mean(totals)])


def check_gradients_of_collectives(at: Rank) -> None:
    """They are collectives of the same group."""
    members, own = len(at.half), at.group.rank()
    x = tf.Variable([float(at.rank + 1)])

    def run() -> Any:
        with tf.GradientTape(persistent=True) as tape:
            total = total_of(x, at.group) * float(at.rank + 1)
            received = sdp.broadcast(x, members - 1, group=at.group) * float(at.rank + 1)
            gathered = operations.all_gather(
                tf.convert_to_tensor(x), "rows", group=at.group.number
            ) * tf.range(1.0, members + 1.0)
        return [tape.gradient(each, x) for each in (total, received, gathered)]

    for total, received, gathered in in_both_ways(run):
        assert total.tolist() == [at.total(1)]
        assert received.tolist() == [at.total(1) if own == members - 1 else 0.0]
        assert gathered.tolist() == [members * (own + 1.0)]


def check_other_lists_in_each_group(at: Rank) -> None:
    """In one graph with collectives of all ranks; how many a group has is its own affair."""
    count = 2 if at.rank < 2 else 7

    @tf.function(autograph=False)
    def run() -> Any:
        sums = [
            total_of(at.late(at.value(number)), at.group, name=f"sum {number}")
            for number in range(1, count + 1)
        ]
        before = sdp.oob_allreduce(at.late(at.value(20)), op=sdp.ReduceOp.SUM)
        shapes = [tf.fill([number * count], float(at.rank)) for number in range(count)]
        grads = reduce_gradients(shapes, what="a list", op=sdp.ReduceOp.SUM, group=at.group)
        after = sdp.oob_allreduce(at.late(at.value(30)), op=sdp.ReduceOp.SUM)
        return sums, before, grads, after

    everyone = range(at.size)
    for _ in range(3 * RUNS):
        sums, before, grads, after = run()
        assert numbers(sums) == [at.total(number) for number in range(1, count + 1)]
        assert all((np.asarray(each) == sum(at.half)).all() for each in grads)
        assert numbers([before, after]) == [at.total(20, everyone), at.total(30, everyone)]


def check_groups_in_another_order_on_each_rank(at: Rank) -> None:
    """Groups do not wait for each other, as long as waiting takes no thread."""
    if HOLDS_THREADS:
        return
    groups = [sdp.new_group(range(at.size)) for _ in range(3)]
    order = [(number + at.rank) % 3 for number in range(3)]

    @tf.function(autograph=False)
    def run() -> Any:
        sums: list[Any] = [None] * 3
        for number in order:
            first = total_of(at.late(at.value(number)), groups[number])
            sums[number] = total_of(first + at.value(1), groups[number])
        return sums

    everyone = range(at.size)
    for _ in range(3 * RUNS):
        found = numbers(run())
        firsts = [at.size * at.total(number, everyone) for number in range(3)]
        assert found == [first + at.total(1, everyone) for first in firsts]
    for group in groups:
        sdp.close_group(group)


def check_sessions(at: Rank) -> None:
    """In a graph of TensorFlow 1, with other collectives in each group."""
    count = 3 if at.rank < 2 else 1
    for _ in range(RUNS):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            of_group = [
                total_of(at.computed(at.value(number)), at.group) for number in range(1, count + 1)
            ]
            of_all = total_of(at.computed(at.value(10)), None)
            again = total_of(at.computed(at.value(11)), at.group)
            fetched = session.run([of_all, again, *reversed(of_group)])
        wanted = [at.total(10, range(at.size)), at.total(11)]
        wanted += [at.total(number) for number in range(count, 0, -1)]
        assert numbers(fetched) == wanted


def check_a_session_that_reads_variables(at: Rank) -> None:
    """To read one uses nothing up, so its collective is chained to those of other variables."""
    for _ in range(RUNS):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            count = 4
            variables = [
                tf.compat.v1.get_variable(f"v{number}", initializer=float(number * (at.rank + 1)))
                for number in range(1, count + 1)
            ]
            table = tf.compat.v1.get_variable("table", initializer=[[float(at.rank + 1)]])
            values = [*variables, tf.nn.embedding_lookup(table, [0])[0, 0]]
            of_group = [total_of(at.computed(each), at.group) for each in values]
            of_all = [total_of(at.computed(each), None) for each in values]
            session.run(tf.compat.v1.global_variables_initializer())
            found = numbers(session.run([of_group, of_all]))
        numbers_put_in = [*range(1, count + 1), 1]
        wanted = [at.total(number) for number in numbers_put_in]
        wanted += [at.total(number, range(at.size)) for number in numbers_put_in]
        assert found == wanted


def check_an_optimizer_of_a_session(at: Rank) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("w", initializer=[float(at.rank)])
        optimizer = sdp.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE), group=at.group
        )
        train = optimizer.minimize(weight * float(at.rank + 1))
        begin = sdp.broadcast_global_variables(len(at.half) - 1, group=at.group)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(begin)
        session.run(train)
        mean = at.total(1) / len(at.half)
        assert session.run(weight).tolist() == pytest.approx([at.half[-1] - LEARNING_RATE * mean])


def check_keras(at: Rank) -> None:
    """Two models, each of a group that trains it by itself."""
    width = 2 if at.rank < 2 else 3
    keras = tf.keras
    model = keras.Sequential([keras.Input([width]), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.full([width, 1], float(at.rank), np.float32)])
    callbacks = sdp.keras.callbacks
    optimizer = keras.optimizers.SGD(LEARNING_RATE)
    model.compile(optimizer=sdp.keras.DistributedOptimizer(optimizer, group=at.group), loss="mse")
    inputs = np.full([4, width], at.rank + 1.0, np.float32)
    history = model.fit(
        inputs,
        np.zeros([4, 1]),
        batch_size=4,
        verbose=0,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0, group=at.group),
            callbacks.MetricAverageCallback(group=at.group),
            callbacks.LearningRateWarmupCallback(LEARNING_RATE, warmup_epochs=2, group=at.group),
        ],
    )
    rate = LEARNING_RATE * (len(at.half) + 1) / (2 * len(at.half))  # of the first of two epochs
    assert history.history["lr"] == pytest.approx([rate])
    losses = [(width * rank * (rank + 1.0)) ** 2 for rank in at.half]
    assert history.history["loss"] == pytest.approx([np.mean(losses)])
    gradients = [2 * width * rank * (rank + 1.0) * (rank + 1.0) for rank in at.half]
    trained = at.half[0] - rate * np.mean(gradients)
    np.testing.assert_allclose(model.get_weights()[0], np.full([width, 1], trained), rtol=1e-5)


def check_calls_in_another_order(at: Rank) -> None:
    """Of one shape: all ranks of that group are told, and the others go on."""
    for _ in range(RUNS):
        group = sdp.new_group(at.half)
        names = ["a", "b"] if at.rank == at.half[0] else ["b", "a"]

        @tf.function(autograph=False)
        def run(group: Any = group, names: Any = names) -> Any:
            return [total_of(at.value(1), group, name=name) for name in names]

        if at.rank < 2:
            kind = tf.errors.UnknownError if HOLDS_THREADS else tf.errors.InvalidArgumentError
            text = raised(kind, run)
            assert "SMDDPMismatch" in text, text
            assert "'a'" in text, text
            assert "'b'" in text, text
        np.testing.assert_array_equal(total_of(at.value(1), None), [at.total(1, range(at.size))])


def check_swapped_lists_of_gradients(at: Rank) -> None:
    for _ in range(RUNS):
        group = sdp.new_group(at.half)
        first, second = tf.Variable([1.0], name="first"), tf.Variable([2.0], name="second")
        variables = [first, second] if at.rank == at.half[0] else [second, first]
        if at.rank < 2:
            with tf.GradientTape() as tape:
                loss = first * 2.0 + second * 20.0
            tape = sdp.DistributedGradientTape(tape, group=group)
            kind = SMDDPMismatch if HOLDS_THREADS else tf.errors.InvalidArgumentError
            text = raised(kind, tape.gradient, loss, variables)
            assert "ranks disagree about" in text, text


def check_who_may_use_a_group(at: Rank) -> None:
    last = sdp.new_group([at.size - 1])
    if at.rank != at.size - 1:
        text = raised(SMDDPConfigInvalid, sdp.oob_allreduce, 1.0, group=last)
        assert f"this process is not in the group of rank {at.size - 1}" in text, text
        raised(SMDDPConfigInvalid, last.rank)
    for wrong in ([0], "all", at.rank):
        text = raised(SMDDPConfigInvalid, sdp.oob_allreduce, 1.0, group=wrong)
        assert "expected what new_group() has returned" in text, text
    raised(SMDDPConfigInvalid, sdp.close_group, None)

    group = sdp.new_group(at.half)
    step = tf.function(lambda: total_of(at.value(1), group), autograph=False)
    assert numbers(step()) == [at.total(1)]
    sdp.close_group(group)
    text = raised(SMDDPConfigInvalid, sdp.oob_allreduce, 1.0, group=group)
    assert "has been left" in text, text
    if len(at.half) > 1:
        text = raised(Exception, step)
        assert "outside of a job, or in a group that has been left" in text, text


def check_a_group_that_is_kept_after_it_was_left(at: Rank) -> None:
    """A script may go on to hold it: its memory and its descriptor are gone."""

    def held() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    warm = sdp.new_group(at.half)
    total_of(tf.ones([1024]), warm)
    sdp.close_group(warm)
    before = held()
    kept = [sdp.new_group(at.half) for _ in range(4)]
    for group in kept:
        np.testing.assert_array_equal(total_of(tf.ones([1024]), group), [len(at.half)] * 1024)
    assert held() - before >= (4 if len(at.half) > 1 else 0)
    for group in kept:
        sdp.close_group(group)
    assert held() == before
    assert [group.rank() for group in kept] == [at.group.rank()] * 4
    assert all(group.included() for group in kept)


def check_copies_of_a_group(at: Rank) -> None:
    """What holds one is copied with the same one; it has no meaning elsewhere."""
    callback = copy.deepcopy(sdp.keras.callbacks.MetricAverageCallback(group=at.group))
    assert callback.group is at.group
    assert copy.copy(at.group) is at.group
    text = raised(TypeError, pickle.dumps, at.group)
    assert f"{at.group} cannot be pickled" in text, text


def check_groups_that_cannot_be(at: Rank) -> None:
    """All ranks are told, wherever the mistake is; and may go on."""
    for wrong in ([], [0, 0], [at.size], [-1, 0], ["0"], 0, None):
        text = raised(SMDDPConfigInvalid, sdp.new_group, wrong)
        assert text.startswith(f"new_group() got {wrong!r}; expected ranks of this job"), text
    text = raised(SMDDPConfigInvalid, sdp.new_group, [0, 1] if at.rank else [0, 0])
    assert ("rank 0 has passed what is no list" in text) == (at.rank > 0), text
    # Rank 0 counts rank 1 in, which wants to be alone.
    text = raised(SMDDPMismatch, sdp.new_group, [1] if at.rank == 1 else [0, 1])
    if at.rank != 1:
        assert f"this rank, {at.rank}, has passed the ranks [0, 1], and rank 1, one" in text, text
    np.testing.assert_array_equal(total_of(at.value(1), at.group), [at.total(1)])


def check_groups_of_one_list_are_told_apart_by_name(at: Rank) -> None:
    """Made by two threads, which begin in another order on rank 0."""
    everyone = range(at.size)
    names = ["a", "b"] if at.rank else ["b", "a"]
    text = raised(SMDDPMismatch, lambda: [sdp.new_group(everyone, name=name) for name in names])
    assert f"and the name {names[0]!r}" in text, text
    same = [sdp.new_group(everyone, name=name) for name in "ab"]
    for number, group in enumerate(same, start=1):
        found = numbers(total_of(at.value(number), group))
        assert found == [at.total(number, everyone)]
        sdp.close_group(group)


def check_groups_end_with_the_job(at: Rank) -> None:
    before = sdp.new_group(at.half)
    sdp.shutdown()
    raised(SMDDPNotInitialized, sdp.new_group, [0])
    raised(SMDDPNotInitialized, sdp.oob_allreduce, 1.0, group=before)
    sdp.close_group(before)
    sdp.init()
    text = raised(SMDDPConfigInvalid, sdp.oob_allreduce, 1.0, group=before)
    assert "has been left" in text, text
    after = sdp.new_group(at.half)
    assert after.number != before.number
    np.testing.assert_array_equal(total_of(at.value(1), after), [at.total(1)])


def traced(rank: int, world_size: int) -> None:
    """As a rank of its own: collectives that `SMDDP_TRACE` records."""
    sdp.init()
    sdp.oob_allreduce(1.0)
    sdp.oob_allreduce(2.0, group=sdp.new_group([0, 1]))
    sdp.shutdown()
    stop_profiler()
