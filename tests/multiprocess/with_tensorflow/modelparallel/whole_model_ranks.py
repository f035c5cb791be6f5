# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_whole_model.py run: what Keras does with whole models, of a cut one."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import smdistributed.modelparallel.tensorflow as smp
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

BATCH = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


class Model(smp.DistributedModel):  # type: ignore[misc] # Keras has no types
    """Two layers, and bare operations between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tf.keras.layers.Dense(8)
        self.second = tf.keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        """By hand the bare operation is with the second layer; else contexts have no effect."""
        with smp.partition(0):
            x = self.first(x)
        with smp.partition(smp.mp_size() - 1):
            return self.second(tf.nn.relu(x))


@contextlib.contextmanager
def job(**parameters: Any) -> Iterator[Model]:
    """A job of so many partitions as ranks, and its model."""
    smp.init({"microbatches": 2, **parameters})
    try:
        yield Model()
    finally:
        smp.reset()
        gc.collect()


def paths(variables: Any) -> list[str]:
    """What variables are called in either Keras."""
    return [getattr(each, "path", each.name) for each in variables]


def one_step(model: Model) -> float:
    """The loss of a step."""

    @smp.step
    def evaluate(x: Any) -> Any:
        return tf.reduce_mean(model(x) ** 2)

    return float(evaluate(BATCH).reduce_mean())


def check_a_model_in_one_partition_is_kerass(rank: int, size: int) -> None:
    with job(partitions=1, horovod=True) as model:
        model.compile("sgd", "mse")
        model.fit(BATCH, np.zeros((8, 3), np.float32), verbose=0)
        assert len(model.get_weights()) == 4
        assert model.predict(BATCH, verbose=0).shape == (8, 3)


def check_a_model_that_was_built_is_truly_split(rank: int, size: int) -> None:
    with job(partitions=size) as model:
        model.build((None, 8))
        one_step(model)
        everyone = smp.allgather(paths(model.variables), smp.MP_GROUP)
        assert sorted(itertools.chain(*everyone)) == sorted(paths(model.smp_all_variables))
        assert all(everyone)


def check_layers_that_were_made_before_are_truly_split(rank: int, size: int) -> None:
    tf.keras.utils.set_random_seed(5)
    first, second = tf.keras.layers.Dense(8), tf.keras.layers.Dense(3)
    expected = float(tf.reduce_mean(second(tf.nn.relu(first(BATCH))) ** 2))
    with job(partitions=size) as model:
        model.first, model.second = first, second
        np.testing.assert_allclose(one_step(model), expected, rtol=1e-5)
        everyone = smp.allgather(paths(model.variables), smp.MP_GROUP)
        assert sorted(itertools.chain(*everyone)) == sorted(paths(model.smp_all_variables))
        assert all(everyone)


def check_by_hand_bare_operations_go_where_their_context_says(rank: int, size: int) -> None:
    with job(partitions=size, auto_partition=False, default_partition=0) as model:
        one_step(model)
        local = paths(model.variables)
        expected = paths([*model.first.variables, *model.second.variables])
        assert local == (expected[:2] if rank == 0 else expected[2:] if rank == size - 1 else [])


def check_hooks_run_once_when_the_model_is_partitioned(rank: int, size: int) -> None:
    called: list[Any] = []

    @smp.register_post_partition_hook
    def before_init() -> None:
        called.append("before")

    with job(partitions=size) as model:

        @smp.register_post_partition_hook
        def hook() -> None:
            shapes = [np.asarray(each).shape for each in model.variables]
            everyone = smp.allgather(shapes, smp.MP_GROUP)
            called.append((tf.executing_eagerly(), everyone))

        @smp.step
        def predict(x: Any) -> Any:
            return model(x)

        assert callable(hook)
        for _ in range(2):
            tf.function(lambda: predict(BATCH).merge())()
        assert called == ["before", (True, [[(8, 8), (8,)], [(8, 3), (3,)]])]
        smp.register_post_partition_hook(lambda: called.append(tf.executing_eagerly()))
        tf.function(lambda: smp.register_post_partition_hook(before_init) and None)()
        assert called[2:] == [True, "before"]
        raised(TypeError, smp.register_post_partition_hook, "hook")
    with job(partitions=size):
        smp.register_post_partition_hook(lambda: called.append("of a job that has ended"))
    with job(partitions=size) as model:

        @smp.register_post_partition_hook
        def failing() -> None:
            if rank == 0:
                raise KeyError("the hook")

        text = raised(Exception, one_step, model)
        assert "the hook" in text
        one_step(model)
    assert len(called) == 4


def check_replicas_begin_with_the_values_of_the_first(rank: int, size: int) -> None:
    with job(partitions=1, horovod=True) as model:
        model.build((None, 8))
        if len(model.variables) == 0:  # Keras 3 builds such models when they are called
            model(tf.keras.Input((8,)))
        for variable in model.variables:
            variable.assign(np.full(variable.shape, rank + 1.0, np.float32))
        one_step(model)
        values = [np.asarray(each) for each in model.variables]
        assert all((each == 1.0).all() for each in values), values
