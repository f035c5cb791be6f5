# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Many jobs in one start of the ranks: each is a forked child of every rank.

TensorFlow takes seconds to import and keeps settings for the life of a process. A rank imports it
once, uses nothing of it, and forks; children of all ranks meet at a port of their own.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping

_STACKS_SIGNAL = signal.SIGUSR2  # as in the harness


def in_child(body: Callable[[], object], variables: Mapping[str, str], limit_s: float) -> int:
    """Runs something in a forked child.

    Returns:
        Its exit status: 1 if it raised, negative if a signal ended it. At the limit its threads'
        stacks are printed and it is killed.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ.update(variables)
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    end = time.monotonic() + limit_s
    is_killed = False
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end and not is_killed:
            os.kill(child, signal.SIGCONT)
            os.kill(child, _STACKS_SIGNAL)
            time.sleep(0.5)
            os.kill(child, signal.SIGKILL)
            is_killed = True
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])
