# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks have started in sessions of their own, and left running.

The supervisor ends the process groups of ranks. What has left its group becomes a child of the
agent when its parent ends, since the agent adopts orphans: and so it is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Container
from pathlib import Path

__all__ = ["end_strays", "reap_strays"]

_GRACE_S = 2.0
_POLL_S = 0.02


def end_strays(own: Container[int] = ()) -> None:
    """Ends child processes of this one: SIGTERM, and SIGKILL a moment later.

    Args:
        own: numbers of processes that stay; this one has started them, and reaps them itself.
    """
    deadline = time.monotonic() + _GRACE_S
    told: set[int] = set()
    while children := [pid for pid in _children() if pid not in own]:
        is_late = time.monotonic() >= deadline
        for pid in children:
            if is_late or pid not in told:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
                told.add(pid)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_POLL_S)


def reap_strays(own: Container[int]) -> None:
    """Reaps adopted processes that have ended, which others would take for living ones.

    Args:
        own: numbers of processes that this one has started, and reaps itself.
    """
    with contextlib.suppress(ChildProcessError):
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, options)) and ended.si_pid not in own:
            os.waitpid(ended.si_pid, 0)


def _children() -> list[int]:
    """Of this process, also those that wait to be reaped."""
    own = str(os.getpid())
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, which is in parentheses, may have anything in it.
            if path.read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                found.append(int(path.parent.name))
    return found
