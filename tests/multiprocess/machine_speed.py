# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How slow this machine is now, so that deadlines leave it the time that it needs.

A deadline is there to end what hangs. Written as seconds on an idle machine of two cores, it would
end what merely waits for a processor elsewhere, and the verdict of a test would hang on what else
the machine does. So the first process of a test run measures, once, how long a fixed piece of work
takes that forks and computes on all processors, and every deadline is multiplied by the result.
"""

from __future__ import annotations

import os
import time

# Set by the process that measures, for all that it starts.
VARIABLE = "SMD_TEST_SLOWNESS"
# What the work below takes on an idle machine with two cores of 2023.
_REFERENCE_S = 0.16
# Also where the measure was taken in a quiet moment: a run meets slower ones than its first.
_MARGIN = 2.0
_MAX = 10.0


def slowness() -> float:
    """By what deadlines are to be multiplied: at least 2, and at most 20."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{_MARGIN * min(max(_measure() / _REFERENCE_S, 1.0), _MAX):.2f}"
    return float(os.environ[VARIABLE])


def scaled(seconds: float) -> float:
    """A deadline that was written for an idle machine, as it is to be on this one."""
    return seconds * slowness()


def soon_s() -> float:
    """Within which all ranks are to know of a failure.

    That is 2 s on an idle machine, for which `SMD_TEST_SOON_S=2` asks; a run of all tests loads
    the machine itself.
    """
    return float(os.environ.get("SMD_TEST_SOON_S") or scaled(10.0))


def _measure() -> float:
    """Seconds until as many processes as there are processors have all done the same work."""
    start = time.monotonic()
    children = []
    for _ in range(len(os.sched_getaffinity(0))):
        pid = os.fork()
        if pid == 0:
            total = 0
            for i in range(2_000_000):
                total += i
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    return time.monotonic() - start
