# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks of test_fit.py run: something goes wrong on one of them in `fit`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VICTIM = 1


def run_faults(rank: int, world_size: int, faults: Sequence[str], partitions: int) -> list[Any]:
    """By fault, class, text and seconds of what ended `fit` on each rank; then one goes well.

    With replicas, whose group ends with a fault, and of a rank that is killed, of this rank alone.
    """
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    import fit_ranks as real

    import smdistributed.modelparallel.tensorflow as smp

    signal.signal(signal.SIGINT, signal.default_int_handler)
    told = []
    with real.models(world_size, joined=world_size // partitions) as (model, _):
        for fault in faults:  # first in the first calls of a step, which compare its arguments
            happening = _Happening(globals()[f"_{fault}"], rank)
            kind, text, end = told_by(lambda each=happening: _fit(real, model, each), begin=0.0)
            mine = kind, text, end - happening.at
            time.sleep(0.6)  # a second interrupt must not hit what follows
            if world_size == partitions and fault != "killed":  # a replica's group has ended
                told.append(smp.allgather(mine, smp.MP_GROUP))
                _fit(real, model, lambda: None)
            else:
                told.append([mine])
    return told


class _Happening:
    """What happens in a callback, and when it has happened: of a rank that sleeps, behind that."""

    def __init__(self, what: Callable[[int], None], rank: int) -> None:
        self._what, self._rank = what, rank
        self.at = 0.0

    def __call__(self) -> None:
        try:
            self._what(self._rank)
        finally:
            self.at = time.monotonic()


def told_by(call: Callable[[], Any], begin: float | None = None) -> tuple[str, str, float]:
    """Class and text of the error that ends a call, and after how many seconds it came."""
    begin = time.monotonic() if begin is None else begin
    try:
        call()
    except BaseException as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    raise AssertionError("it has ended well")


def _fit(real: Any, model: Any, happen: Callable[[], None]) -> None:
    """Something happens after the second batch."""
    import tensorflow as tf

    class Happening(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                happen()

    model.fit(real.X, real.Y, batch_size=real.BATCH, verbose=0, callbacks=[Happening()])


def _raised(rank: int) -> None:
    if rank == VICTIM:
        raise LookupError("a callback does not find its file")


def _interrupted(rank: int) -> None:
    """The victim, while it waits in its third step for rank 0, which sleeps."""
    if rank == VICTIM:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    if rank == 0:
        time.sleep(1.5)


def _killed(rank: int) -> None:
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
