# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_driver_faults.py run: steps, and what happens to a rank amid them."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine_speed import scaled

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

VICTIM = 1
LAST = 2


def run_fault(rank: int, world_size: int, fault: str, is_in_graph: bool) -> Any:
    """What a rank is told by its second step, and when: seconds since it began."""
    import tensorflow as tf
    from hand_made_programs import Chain, a_rank, pieces_of

    signal.signal(signal.SIGINT, signal.default_int_handler)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    with a_rank() as job:
        chain = Chain(rank, world_size)

        def run() -> Any:
            pieces = pieces_of(4)
            if is_in_graph:
                return job.bridges.call_in_graph(chain.program, pieces, chain.touched)
            return job.driver.run(chain.program, pieces)

        step = tf.function(run) if is_in_graph else run
        step()
        job.group.barrier()
        told = globals()[f"_{fault}"](rank, chain, step, job)
        # Where the group is not lost, the next step runs.
        if fault.startswith("interrupted"):
            chain.fail_from_now_on(lambda *_: None)
            time.sleep(0.5)  # a second interrupt must not hit this one
            step()
        return dataclasses.asdict(told) | {"threads": _threads_after(job)}


def _threads_after(job: Any) -> list[str]:
    job.bridges.close()
    return [each.name for each in threading.enumerate() if "smp" in each.name]


def _killed(rank: int, chain: Any, step: Callable[[], Any], job: Any) -> Any:
    if rank == VICTIM:
        chain.fail_from_now_on(lambda phase, _: os.kill(os.getpid(), signal.SIGKILL))
    return _told_by(step)


def _stopped(rank: int, chain: Any, step: Callable[[], Any], job: Any) -> Any:
    """Rank 2 stops, for which rank 1 waits, for which rank 0 waits. In the end rank 0 kills it."""
    if rank == LAST:
        chain.fail_from_now_on(_stop)
    told = _told_by(step)
    if rank == 0:
        time.sleep(scaled(1.0))  # rank 1 hears of it as well
        os.kill(job.group.topology()[LAST]["pid"], signal.SIGKILL)
    return told


def _stop(phase: str, microbatch: int) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(60)  # this thread goes on until another one has taken the signal


def _left(rank: int, chain: Any, step: Callable[[], Any], job: Any) -> Any:
    """As a script that ends early; its group is closed on the way out."""
    if rank == VICTIM:
        return _told_by(lambda: None)
    return _told_by(step)


def _interrupted(rank: int, chain: Any, step: Callable[[], Any], job: Any) -> Any:
    """Rank 0 waits for rank 1, which is in a segment for long."""
    if rank == VICTIM:
        chain.fail_from_now_on(lambda phase, microbatch: time.sleep(1.0 if microbatch == 1 else 0))
    elif rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    return _told_by(step)


def _interrupted_at_the_end(rank: int, chain: Any, step: Callable[[], Any], job: Any) -> Any:
    """Rank 1 has run its list and waits for the others, of which rank 0 takes its time."""
    if rank == 0:
        chain.fail_from_now_on(
            lambda phase, microbatch: time.sleep(
                1.0 if (phase, microbatch) == ("backward", 3) else 0
            )
        )
    elif rank == VICTIM:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    return _told_by(step)


@dataclasses.dataclass
class _Told:
    type_name: str
    text: str
    after_s: float


def _told_by(step: Callable[[], Any]) -> _Told:
    begin = time.monotonic()
    try:
        step()
    except (Exception, KeyboardInterrupt) as error:
        return _Told(type(error).__name__, str(error), time.monotonic() - begin)
    return _Told("", "", time.monotonic() - begin)
