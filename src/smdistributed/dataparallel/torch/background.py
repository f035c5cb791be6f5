# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Our threads in Python, and what becomes of them when the interpreter exits or the process forks.

They are daemons. The interpreter joins all others before it runs exit handlers, and a job of ours
may wait for a rank that never comes, until our exit handler ends that wait.

**Exit.** A thread that comes back from C++ while the interpreter goes away is ended in the middle
of C++ code (Python up to 3.13), which ends the process with SIGABRT in place of its own status. So
`leave` waits until no thread is inside a job: for five seconds, since a job may hang. A hung one
does no harm, as it does not come back; one that still works after that time may. It is named in the
log: nobody here knows the status that the process was to end with, so nothing better can be done.

**Fork.** The child has none of the threads; what they held (locks, counts) is as they left it.

Source: dataparallel specification, section 4.5.
"""

from __future__ import annotations

import itertools
import os
import time
import weakref
from typing import Protocol

from smdistributed._common.log import get_logger
from smdistributed.collectives import _native

__all__ = ["Worker", "close", "leave", "register"]

_JOIN_S = 5.0


class Worker(Protocol):
    """What works jobs on daemon threads of its own."""

    @property
    def name(self) -> str:
        """Of its threads."""

    def stop(self) -> None:
        """Begin to end, if it is to end at all. Does not block."""

    def join(self, timeout_s: float) -> bool:
        """Block until no job is queued and no thread is inside one; False if the time is up."""

    def forget_threads(self) -> None:
        """In a forked child: go on without them, so that no call waits for them.

        Jobs of the parent are neither run nor let go: they hold tensors, and giving those back may
        take locks that a thread of the parent held.
        """


# By order of registration. `valuerefs` copies in one step, so other threads may register meanwhile.
_workers: weakref.WeakValueDictionary[int, Worker] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def register(worker: Worker) -> None:
    """Care for this worker at exit and after a fork, for as long as it exists."""
    _workers[next(_numbers)] = worker


def close(*workers: Worker) -> list[Worker]:
    """Stop all of them, then wait until each has ended: five seconds at most for all together.

    Returns:
        Those that have not, whose threads live on: a job may hang with its device.
    """
    for worker in workers:
        worker.stop()
    deadline = time.monotonic() + _JOIN_S
    return [w for w in workers if not w.join(max(deadline - time.monotonic(), 0.0))]


def leave() -> None:
    """At exit: end what waits in the engine, then wait for the threads that waited.

    The last that was registered is first: what it does at its end may be work for earlier ones.
    """
    _native.prepare_exit()
    late = close(*reversed(_alive()))
    if late:
        get_logger().warning(
            "the interpreter exits, but after %g s there is still a job on: %s; expected callbacks"
            " of futures, and operations on CUDA tensors, to have ended by then. If one comes back"
            " during the exit, the process ends with SIGABRT in place of its own status: let the"
            " script wait for what its futures chain before it ends.",
            _JOIN_S,
            ", ".join(worker.name for worker in late),
        )


def _alive() -> list[Worker]:
    return [worker for reference in _workers.valuerefs() if (worker := reference()) is not None]


def _forget_all_threads() -> None:
    for worker in _alive():
        worker.forget_threads()


os.register_at_fork(after_in_child=_forget_all_threads)
