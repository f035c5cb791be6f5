# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Python functions in the graph of a step call what all ranks do together.

Used by `test_nested.py`.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
from machine_speed import soon_s

import smdistributed.modelparallel.tensorflow as smp
from tests.multiprocess.with_tensorflow.modelparallel.kept import shared_folder, training
from tests.multiprocess.with_tensorflow.modelparallel.plain_process import X
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

SOON_S = soon_s()


def check_what_would_wait_for_the_step_that_it_is_in(rank: int, size: int) -> None:
    """Until 2026-11 it waited without end, and the other ranks until the timeout."""
    with training(shared_folder("nested"), size) as kept:
        kept.steps(1)
        kept.predict(X)
        for inner in (
            lambda: kept.predict(X),
            lambda: kept.predict(X[:4]),  # which is to be traced
            kept.model.get_weights,
            kept.manager.save,
        ):

            def called(y: Any, inner: Any = inner) -> Any:
                inner()
                return y

            @smp.step
            def outer(x: Any, called: Any = called) -> Any:
                return tf.py_function(called, [kept.model(x)], tf.float32)

            def in_graph(x: Any) -> Any:
                return outer(x).concat()

            for step in (outer, tf.function(in_graph)):
                begin = time.monotonic()
                text = raised(Exception, step, X)
                assert time.monotonic() - begin < SOON_S
                assert f"rank {size - 1} (" in text, text
                assert "expected it before or after that step" in text, text
                kept.predict(X)
