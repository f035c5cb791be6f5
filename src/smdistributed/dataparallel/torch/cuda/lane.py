# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A thread that works jobs in order, started by the first one."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from smdistributed.dataparallel.torch import background

__all__ = ["Lane"]


class Lane:
    """Jobs in order of submission, on one daemon thread. A `background.Worker`.

    Args:
        name: of the thread.
        at_end: what the thread does last, after `stop`; not called if no job ever came.

    A job must not raise: it knows better than we do whom to tell.
    """

    def __init__(self, name: str, at_end: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._at_end = at_end
        self._condition = threading.Condition()
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._is_closed = False
        background.register(self)

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False (and nothing is done) once the lane is closed.

        Raises:
            RuntimeError: it is the first one, and no thread can be started.
        """
        with self._condition:
            if self._is_closed:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.append(job)
            self._condition.notify_all()
        return True

    def drain(self) -> None:
        """Wait until all that was submitted is done. Not from a job."""
        with self._condition:
            self._condition.wait_for(
                lambda: self._thread is None or (not self._jobs and not self._is_busy)
            )

    def stop(self) -> None:
        """Take no more jobs; the thread ends when those that are queued are done."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def join(self, timeout_s: float) -> bool:
        """After `stop`, block until the thread has ended; False if the time is up.

        From a job it returns at once, and the thread ends after that job.
        """
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def forget_threads(self) -> None:
        """See `background.Worker`. In the child the lane is closed."""
        self._condition = threading.Condition()
        self._thread = None
        self._is_closed = True

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
