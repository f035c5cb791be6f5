# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Each case of the zoo, cut, all ranks' parts run in one process. For `test_zoo.py`."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from one_process import Cut, Whole, WholeModel, no_rewriting, require_right, scattered
from tf_ranks import raised
from zoo import BATCH, BY_HAND, CASES, Case, parameters_of

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.partition.graph_assignment import assign_graph
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.tensorflow.graph.labels import partition


@contextlib.contextmanager
def around_checks(rank: int, world_size: int) -> Iterator[tuple[()]]:
    tf.config.threading.set_inter_op_parallelism_threads(int(os.environ["SMP_TEST_THREADS"]))
    no_rewriting()
    yield ()


def __getattr__(name: str) -> Any:
    """A check for each case."""
    if name not in CASES:
        raise AttributeError(name)
    return lambda: _check(name)


def _check(name: str) -> None:
    for settings in json.loads(os.environ["SMP_TEST_SETTINGS"])[name]:
        scatter, repetitions = settings.pop("scatter"), settings.pop("repetitions")
        config = Config.parse({**settings, **parameters_of(name)}, {}, framework="tensorflow")
        tf.keras.utils.set_random_seed(1)
        assign = assign_graph if scatter is None else scattered(scatter)
        try:
            require_right(CASES[name](WholeModel), config, assign, repetitions)
        except Exception as error:
            error.add_note(f"with {settings}, scatter {scatter}")
            raise


def check_lists_across_contexts() -> None:
    """By hand, what passes on a list of tensors has to be in one partition."""

    class Model(WholeModel):
        def __init__(self) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(6)

        def call(self, x: Any) -> Any:
            array = tf.TensorArray(tf.float32, 2, element_shape=(None, 6))
            with partition(0):
                x = self.dense(x)
                array = array.write(0, x)
            with partition(1):
                return array.write(1, x).stack()

    model = Model()
    case = Case(model, [np.ones((BATCH, 6), "f4")], lambda _, x: {"output": model(x)})
    config = Config.parse({"partitions": 2, **BY_HAND}, {}, framework="tensorflow")
    error = raised(ConfigError, Cut, Whole(case), case.step, config)
    assert "in partition 0" in error, error
    assert "in partition 1" in error, error
    assert "Put both under the same smp.partition" in error, error


def check_sums_begin_with_the_first() -> None:
    """Whichever of many summands come from another partition, a sum has the same bits."""

    class Model(WholeModel):
        def call(self, x: Any) -> Any:
            with partition(0):
                most, least = x * 1e8, x * -1e8
            with partition(1):  # whose own summand is lost in a sum that begins with it
                return tf.add_n([most, least, tf.sqrt(x)])

    case = Case(Model(), [np.ones((BATCH, 6), "f4")], lambda _, x: {"output": case.model(x)})
    config = Config.parse({"partitions": 2, **BY_HAND}, {}, framework="tensorflow")
    whole = Whole(case)
    pieces = whole.pieces(config.microbatches)
    cut = Cut(whole, case.step, config)
    found = cut.run(pieces, random.Random(0))
    exactly = [cut.uncut()(tensors) for tensors in pieces]
    for row in (*found, *exactly):
        assert (row[0] == 1).all(), row


def check_gradients_are_summed_before_they_travel() -> None:
    """Two layers of one partition use a tensor of another: one gradient goes back."""

    class Model(WholeModel):
        def __init__(self) -> None:
            super().__init__()
            self.first, *self.others = (tf.keras.layers.Dense(6) for _ in range(3))

        def call(self, x: Any) -> Any:
            with partition(0):
                x = self.first(x)
            with partition(1):
                return self.others[0](x) + self.others[1](x)

    def step(gradients: Any, x: Any) -> dict[str, Any]:
        loss = tf.reduce_mean(tf.square(case.model(x)))
        return {"gradients": gradients(loss, case.model.trainable_variables)}

    case = Case(Model(), [np.ones((BATCH, 6), "f4")], step)
    config = Config.parse({"partitions": 2, **BY_HAND}, {}, framework="tensorflow")
    segments = Cut(Whole(case), step, config).programs[1].segments.values()
    sent = [each for segment in segments if segment.phase == "backward" for each in segment.sends]
    assert len(sent) == 1, sent
