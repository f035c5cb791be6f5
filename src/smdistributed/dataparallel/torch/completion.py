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

__all__ = ["run_soon"]

_Job = Callable[[], None]


class _CompletionThreads:
    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._jobs: collections.deque[_Job] = collections.deque()
        self._ready = 0  # threads that wait for a job or are about to

    def run_soon(self, job: _Job) -> None:
        with self._condition:
            self._jobs.append(job)
            if self._ready >= len(self._jobs):
                self._condition.notify()
                return
            self._ready += 1
        # A daemon: an interpreter that exits does not wait for a collective.
        threading.Thread(target=self._work, name="smddp-futures", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._jobs:
                    self._condition.wait()
                job = self._jobs.popleft()
                self._ready -= 1
            job()
            del job  # it holds tensors
            with self._condition:
                if self._ready > len(self._jobs):
                    return  # another thread waits already
                self._ready += 1


_threads = _CompletionThreads()
run_soon = _threads.run_soon
