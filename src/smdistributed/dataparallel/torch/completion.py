# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Threads on which futures complete, because completing one runs whatever users chained to it.

Callbacks of a future may start a collective and wait for it (torch's PowerSGD hook does). On the
engine's progress thread that would wait for itself. With one thread of our own, the *second* future
could not complete while the first one's callback waits for it. So there is always one thread that
is not inside a callback: when the last one enters, the next job starts another. In a program
without such callbacks there is exactly one thread, started by the first pending future.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from smdistributed.dataparallel.torch import background

__all__ = ["CompletionThreads", "run_soon"]

_Job = Callable[[], None]


class CompletionThreads:
    """As many daemon threads as it takes to have one ready. A `background.Worker`."""

    name = "smddp-futures"

    def __init__(self) -> None:
        self._jobs: collections.deque[_Job] = collections.deque()
        self._jobs_of_parent: list[collections.deque[_Job]] = []
        self._start_counting()
        background.register(self)

    def _start_counting(self) -> None:
        lock = threading.Lock()
        self._work_came = threading.Condition(lock)
        self._work_ended = threading.Condition(lock)
        self._ready = 0  # threads that wait for a job or are about to
        self._busy = 0  # jobs under way

    def run_soon(self, job: _Job) -> None:
        """Run the job on a thread that is not inside another one. Does not block; any thread.

        Where no thread can be had (as in exit handlers from Python 3.12 on, unless one is ready),
        the job runs here: late and on the wrong thread, but whoever waits for it goes on.
        """
        with self._work_came:
            self._jobs.append(job)
            if self._ready >= len(self._jobs):
                self._work_came.notify()
                return
            self._ready += 1
        del job  # it belongs to whoever takes it
        try:
            threading.Thread(target=self._work, name=self.name, daemon=True).start()
        except RuntimeError:
            self._run_next(may_wait=False)

    def stop(self) -> None:
        """Nothing: exit handlers that run after ours may wait for futures too."""

    def join(self, timeout_s: float) -> bool:
        """Block until no job is queued or under way; False if the time is up."""
        with self._work_ended:
            return self._work_ended.wait_for(lambda: not self._jobs and not self._busy, timeout_s)

    def forget_threads(self) -> None:
        """See `background.Worker`. The child starts threads of its own when it needs them."""
        self._jobs_of_parent.append(self._jobs)
        self._jobs = collections.deque()
        self._start_counting()

    def _work(self) -> None:
        while True:
            self._run_next(may_wait=True)
            with self._work_came:
                if self._ready > len(self._jobs):
                    return  # another thread waits already
                self._ready += 1

    def _run_next(self, *, may_wait: bool) -> None:
        """Run one job, as one of the threads that `_ready` counts."""
        with self._work_came:
            while may_wait and not self._jobs:
                self._work_came.wait()
            self._ready -= 1
            if not self._jobs:
                return  # another thread was quicker
            job = self._jobs.popleft()
            self._busy += 1
        try:
            job()
        finally:
            del job  # it holds tensors
            with self._work_ended:
                self._busy -= 1
                self._work_ended.notify_all()


run_soon = CompletionThreads().run_soon
