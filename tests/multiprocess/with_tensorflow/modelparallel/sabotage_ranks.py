# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What no table of failures lists: exits, signals and interrupts at any moment of real steps.

Used by `test_sabotage.py`. After each the next step runs.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from failing_ranks import SOON_S, a_job, batch, keras

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks
from tests.multiprocess.with_tensorflow.tf_ranks import raised

__all__ = ["around_checks"]

VICTIM = 1
STOPPED_S = 1.0
INTERRUPTS = int(os.environ.get("SMP_TEST_INTERRUPTS", "12"))
NUMBERS = 20  # things done together between two interrupts
STAY_S = 0.02  # for what the victim does between two steps


class Model(smp.DistributedModel):
    """Two layers, one on each partition; `happens` may do something in `call`."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__(name="m")
        self.first, self.second = (keras.layers.Dense(4, name=name) for name in ("one", "two"))
        self.happens = happens

    def call(self, x: Any) -> Any:
        self.happens()
        with smp.partition(0):
            x = self.first(x)
        with smp.partition(1):
            return self.second(x)


def _nothing() -> None:
    pass


@contextlib.contextmanager
def a_model() -> Iterator[tuple[Model, Callable[[], Callable[[Any], float]]]]:
    """A model in a job, and what makes a step of it for the first time."""
    with a_job(partitions=2, auto_partition=False, default_partition=0):
        model = Model(_nothing)
        optimizer = keras.optimizers.SGD(0.01)

        def make() -> Callable[[Any], float]:
            @smp.step
            def train(x: Any) -> Any:
                loss = tf.reduce_mean(tf.square(model(x)))
                return loss, optimizer.get_gradients(loss, model.trainable_variables)

            def call(x: Any) -> float:
                loss, gradients = train(x)
                averages = [each.accumulate() for each in gradients]
                optimizer.apply_gradients(zip(averages, model.trainable_variables, strict=True))
                return loss.reduce_mean()

            return call

        yield model, make


def check_exits_while_a_step_is_traced(rank: int, size: int) -> None:
    with a_model() as (model, make):
        known = make()
        known(batch(0))

        def leave() -> None:
            if rank == VICTIM:
                sys.exit(3)

        def no_memory() -> None:
            if rank == VICTIM:
                raise MemoryError("no room for the trace")

        for happens, words in ((leave, "SystemExit: 3"), (no_memory, "no room for the trace")):
            model.happens = happens
            begin = time.monotonic()
            text = raised(BaseException, make(), batch(0))
            assert time.monotonic() - begin < SOON_S
            if rank != VICTIM:
                assert text.startswith(f"rank {VICTIM} (partition {VICTIM}, host "), text
                assert words in text, text
            model.happens = _nothing
            for step in (known, make()):
                assert float(step(batch(0))) > 0.0


def check_a_stopped_rank_that_goes_on(rank: int, size: int) -> None:
    with a_model() as (_, make):
        step = make()
        step(batch(0))
        if rank == VICTIM:
            pid = os.getpid()
            if os.fork() == 0:
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                os._exit(0)
            os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        assert float(step(batch(0))) > 0.0
        assert rank == VICTIM or time.monotonic() - begin > STOPPED_S / 2
        if rank == VICTIM:
            os.wait()


def check_interrupts_at_any_moment(rank: int, size: int) -> None:
    """Ctrl-C on one rank, in steps called at once and in functions, known ones and new ones."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dice = random.Random(20261)  # the same on both ranks
    with a_model() as (_, make):
        driver = current_pipeline("a test").driver
        known = [make(), tf.function(make())]
        for step in known:
            step(batch(0))
        for _ in range(INTERRUPTS):
            is_known = dice.random() < 0.7
            step = dice.choice(known) if is_known else tf.function(make())
            until = driver.number + NUMBERS
            timer = threading.Timer(dice.random() * 0.1, os.kill, (os.getpid(), signal.SIGINT))
            if rank == VICTIM:
                with contextlib.suppress(KeyboardInterrupt):
                    timer.start()
            while driver.number < until:
                text = _told_by(step)
                if text and not is_known:
                    # Just when it was ready the other rank may have gone on, and this one not.
                    assert _is_interrupt(text) or " traces step train" in text, text
                    step = tf.function(make())
                else:
                    assert not text or _is_interrupt(text), text
            _wait_for(timer)
            assert float(known[0](batch(0))) >= 0.0


def _told_by(step: Callable[[Any], Any]) -> str:
    try:
        step(batch(0))
    except (Exception, KeyboardInterrupt) as error:
        # TensorFlow fails otherwise where an interrupt comes while it enters or leaves a graph.
        before = error.__context__ if isinstance(error, AssertionError) else None
        return "\n".join(f"{type(each).__name__}: {each}" for each in (error, before) if each)
    return ""


def _is_interrupt(text: str) -> bool:
    return "KeyboardInterrupt" in text or "interrupted by its user" in text


def _wait_for(timer: threading.Timer) -> None:
    """Its signal has come."""
    with contextlib.suppress(KeyboardInterrupt):
        if timer.ident is not None:
            timer.join()
        time.sleep(STAY_S)
