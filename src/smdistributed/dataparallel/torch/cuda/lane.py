# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A thread that works jobs in order, started by the first one.

Not a `ThreadPoolExecutor`: the interpreter joins its threads before it runs exit handlers, and a
job here may wait for a rank that will never come until the engine's exit handler ends that wait.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from collections.abc import Callable

__all__ = ["Lane", "close_all"]

_JOIN_S = 5.0
_open_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
os.register_at_fork(after_in_child=_open_lanes.clear)  # their threads stayed behind


def close_all() -> None:
    """`Lane.close` for every lane of this process; before the interpreter goes away.

    A thread that comes back from the engine while it goes is ended in the middle of C++ code, which
    ends the process with an abort.
    """
    for lane in list(_open_lanes):
        lane.close()


class Lane:
    """Jobs in order of submission, on one daemon thread.

    Args:
        name: of the thread.
        at_end: what the thread does last, after `stop` or `close`; not called if no job ever came.

    A job must not raise: it knows better than we do whom to tell.
    """

    def __init__(self, name: str, at_end: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._at_end = at_end
        self._condition = threading.Condition()
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._is_closed = False
        _open_lanes.add(self)

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False (and nothing is done) once the lane is closed."""
        with self._condition:
            if self._is_closed:
                return False
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._condition.notify_all()
        return True

    def drain(self) -> None:
        """Wait until all that was submitted is done. Not from a job."""
        with self._condition:
            self._condition.wait_for(lambda: not self._jobs and not self._is_busy)

    def stop(self) -> None:
        """Take no more jobs; the thread ends when those that are queued are done."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def close(self) -> None:
        """`stop`, and wait until the thread has ended.

        Five seconds at most, since a job may hang with its device. Then the thread lives on.
        """
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _work(self) -> None:
        while True:
            with self._condition:
                self._is_busy = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._jobs or self._is_closed)
                if not self._jobs:
                    break
                job = self._jobs.popleft()
                self._is_busy = True
            job()
            del job  # it holds tensors
        self._at_end()
