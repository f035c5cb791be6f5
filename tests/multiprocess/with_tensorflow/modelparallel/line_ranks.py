# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank is interrupted at the n-th line of what all ranks do together, n after n.

Used by `test_lines.py`. After each the next step runs, and is the same one on all ranks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
from machine_speed import soon_s

import smdistributed.modelparallel.tensorflow as smp
from smdistributed.dataparallel.exceptions import SMDDPPeerLost
from tests.multiprocess.with_tensorflow.modelparallel.kept import Training, shared_folder, training
from tests.multiprocess.with_tensorflow.modelparallel.plain_process import X
from tests.multiprocess.with_tensorflow.tf_ranks import no_job as around_checks

__all__ = ["around_checks"]

SOON_S = soon_s()
EVERY = int(os.environ.get("SMP_TEST_EVERY", "0"))  # 0: each check has its own
BATCHES = 5
# What follows nobody can undo, so the leader ends the group.
AT_THE_END = "interrupted by its user while a step ended"


class Lines:
    """Raises KeyboardInterrupt at the n-th line of the library, from where a function begins.

    It comes, too, where Python's context managers have been entered: there it handles signals.

    Args:
        begins: the name of the function.
        number: 0 for never.
    """

    def __init__(self, begins: str, number: int = 0) -> None:
        self.count = 0
        self._begins = begins
        self._number = number
        self._has_begun = False

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _value: object) -> Any:
        path = frame.f_code.co_filename
        if "/smdistributed/modelparallel/" in path:
            self._has_begun = self._has_begun or frame.f_code.co_name == self._begins
            return self._line
        before = frame.f_back
        is_ours = before is not None and "/smdistributed/" in before.f_code.co_filename
        return self._line if is_ours and path.endswith("contextlib.py") else None

    def _line(self, frame: FrameType, event: str, _value: object) -> Any:
        is_entered = event == "return" and frame.f_code.co_name == "__enter__"
        if self._has_begun and (event == "line" or is_entered):
            self.count += 1
            if self.count == self._number:
                raise KeyboardInterrupt("planted")
        return self._line


def _traced(lines: Lines, call: Callable[[], Any]) -> None:
    with lines.traced():
        call()


def _ended(call: Callable[[], Any]) -> str:
    """How a call ended, in words; empty if well."""
    begin = time.monotonic()
    try:
        call()
        told = ""
    except (Exception, KeyboardInterrupt) as error:
        told = f"{type(error).__name__}: {error}"
    assert time.monotonic() - begin < SOON_S, told
    return told


def _sweep(
    rank: int,
    size: int,
    name: str,
    begins: str,
    call_of: Callable[[Training], Callable[[], Any]],
    every: int,
) -> None:
    """Interrupts a call on each rank, n after n."""
    with contextlib.ExitStack() as jobs:
        for victim in range(size):
            kept, expected = _begin(jobs, name, size)
            call = call_of(kept)
            call()
            lines = Lines(begins)
            _traced(lines, call)
            count = smp.allgather(lines.count, smp.WORLD)[victim]
            assert count > 10 * every, count
            for number in range(1 + victim, count, every):
                lines = Lines(begins, number if rank == victim else 0)
                told = _ended(functools.partial(_traced, lines, call))
                what = f"{name}, rank {victim}, line {number}: {told}"
                if rank != victim and told:
                    assert f"rank {victim} (" in told, what
                    assert "KeyboardInterrupt: planted" in told or AT_THE_END in told, what
                if _group_has_ended(kept):
                    kept, expected = _begin(jobs, name, size)
                    call = call_of(kept)
                    continue
                batch = number % BATCHES
                np.testing.assert_array_equal(_value(kept, batch), expected[batch], err_msg=what)


def _begin(jobs: contextlib.ExitStack, name: str, size: int) -> tuple[Training, list[Any]]:
    jobs.close()
    kept = jobs.enter_context(training(shared_folder(name), size))
    kept.steps(1)
    return kept, [_value(kept, batch) for batch in range(BATCHES)]


def _value(kept: Training, batch: int) -> Any:
    return kept.predict(X + np.float32(batch)).reduce_mean().numpy()


def _group_has_ended(kept: Training) -> bool:
    """On all ranks, or on none: it is asked of them."""
    try:
        smp.allgather(None, smp.WORLD)
        kept.predict(X)
    except SMDDPPeerLost:
        return True
    return False


def check_a_step(rank: int, size: int) -> None:
    """Until 2026-11 the other ranks waited for one that was interrupted just as a step began.

    Where the step had ended on all ranks they took the interrupt for one of the next step.
    """
    _sweep(
        rank,
        size,
        "step",
        "_bound_call",
        lambda kept: lambda: kept.predict(X),
        EVERY or 61,
    )
