# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank does elsewhere, or with something else, what all ranks do together.

Used by `test_together.py`.
"""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from machine_speed import soon_s

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.checkpoints.together import CheckpointError
from smdistributed.modelparallel.tensorflow.run.driver import Driver
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


def check_an_interrupt_when_all_have_ended_a_method_is_one_rank_s(rank: int, size: int) -> None:
    """Until 2026-11 the next step of the others failed, and they were one step behind."""
    agree = Driver.agree

    def interrupted(self: Driver, does: str, value: Any) -> Any:
        found = agree(self, does, value)
        if does == "ends predict()":
            raise KeyboardInterrupt("planted")
        return found

    with training(shared_folder("ended"), size) as kept:
        kept.steps(1)
        expected = kept.model.predict(X, verbose=0)
        if rank == 0:
            np.testing.assert_array_equal(kept.model.predict(X, verbose=0), expected)
        else:
            with mock.patch.object(Driver, "agree", interrupted):
                assert raised(KeyboardInterrupt, kept.model.predict, X, verbose=0) == "planted"
        np.testing.assert_array_equal(kept.model.predict(X, verbose=0), expected)


def check_other_optimizers_in_one_pipeline_end_it_in_all(rank: int, size: int) -> None:
    """Until 2026-11 other pipelines went on, and took what the next call brought for theirs."""
    folder = shared_folder("other-optimizers")
    with training(folder, 2) as kept:
        kept.steps(1)
        kept.manager.save()
        objects = {"model": kept.model, "counter": kept.counter}
        if rank == 0:  # which writes
            objects["optimizer"] = kept.optimizer
        manager = smp.CheckpointManager(tf.train.Checkpoint(**objects), folder)
        for call in (manager.save, manager.restore):
            text = raised(CheckpointError, call)
            assert "rank 1 has the optimizers []" in text, text
            assert "rank 0 has ['optimizer']" in text, text
        kept.manager.save()
        assert kept.manager.restore() == str(folder / "ckpt-2")
        kept.steps(1)
