# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Each case of the zoo, cut, all ranks' parts run in one process. For `test_zoo.py`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from one_process import WholeModel, no_rewriting, require_right, scattered
from zoo import CASES, parameters_of

from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.partition.graph_assignment import assign_graph


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
