# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks of `test_replica_faults.py` run: two replicas of two partitions, and a fault in one.

Ranks 0 and 1 are one replica, 2 and 3 the other.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from machine_speed import scaled

VICTIM = 1
PARAMETERS = {
    "partitions": 2,
    "horovod": True,
    "auto_partition": False,
    "default_partition": 0,
}


@dataclasses.dataclass
class Told:
    """How a step ended."""

    type_name: str
    text: str
    after_s: float


def run_faults(rank: int, world_size: int, faults: Sequence[tuple[str, bool]]) -> Any:
    """What a rank is told, each time by the second step of a job of its own."""
    import failing_ranks as real
    import tensorflow as tf

    signal.signal(signal.SIGINT, signal.default_int_handler)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    told = []
    for fault, is_in_graph in faults:
        with real.a_job(**PARAMETERS):
            step = _training(is_in_graph)
            step(real.batch(0), real.faults())
            told.append(dataclasses.asdict(globals()[f"_{fault}"](rank, step)))
        time.sleep(0.6)  # a second interrupt must not hit what follows
    return told


def _training(is_in_graph: bool) -> Callable[..., Any]:
    """A step, and the averages of its gradients over the replicas."""
    import failing_ranks as real
    import tensorflow as tf

    import smdistributed.compat.horovod.tensorflow as hvd

    _, train = real.training(2)

    def step(x: Any, faults: Any) -> Any:
        return [hvd.allreduce(each) for each in train(x, faults)]

    return tf.function(step) if is_in_graph else step


def _raised(rank: int, step: Callable[..., Any]) -> Told:
    import failing_ranks as real

    return _told_by(step, real.faults("inverse" if rank in (0, 1) else None, VICTIM))


def _killed(rank: int, step: Callable[..., Any]) -> Told:
    if rank == VICTIM:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    return _told_by(step)


def _interrupted(rank: int, step: Callable[..., Any]) -> Told:
    """Rank 0 waits for rank 1, which comes when rank 0 has left, and is told why."""
    late_s = scaled(1.6)
    if rank == VICTIM:
        time.sleep(late_s)
    elif rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    told = _told_by(step)
    if rank == 3:  # it waits for the gradients of rank 1, which tells it when it comes
        told.after_s = max(told.after_s - late_s, 0.0)
    return told


def _told_by(step: Callable[..., Any], faults: Any = None) -> Told:
    import failing_ranks as real

    begin = time.monotonic()
    try:
        step(real.batch(1), real.faults() if faults is None else faults)
    except (Exception, KeyboardInterrupt) as error:
        return Told(type(error).__name__, str(error), time.monotonic() - begin)
    return Told("", "", time.monotonic() - begin)
