# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Nothing survives the supervisor, not even its SIGKILL.

Two means, as each covers what the other cannot:

- The kernel kills a rank when its parent dies (`PR_SET_PDEATHSIG`). At once and without our help,
  but only the rank itself, not what the rank has forked.
- A guardian process holds one end of a pipe, and learns through it the process group of each rank.
  When the other end closes without a farewell, the supervisor is dead, and it kills the groups.
"""

import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

__all__ = ["Guardian", "adopt_orphans", "die_with_parent"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FAREWELL = b"farewell\n"

# Loaded before any fork: the child of a fork should call as little as possible.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent dies.

    To be called in a new child, by whose parent the calling *thread* must stay alive: the signal
    comes when that thread ends. `execve` keeps the request.

    Args:
        parent_pid: the expected parent; if it has died in between, this process ends here.
    """
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent has died.

    It can then reap them. In a container the first process often does not, and a dead process that
    nobody reaps looks like a living member of its group for ever.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Guardian:
    """Kills the process groups it was told of, should this process die without a farewell.

    Create it before the ranks, while this process has a single thread.
    """

    def __init__(self) -> None:
        read_end, self._write_end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._write_end)
            _guard(read_end)
        os.close(read_end)

    def watch(self, process_group: int) -> None:
        """Adds a process group."""
        # A guardian that somebody has killed must not take the job down.
        with contextlib.suppress(OSError):
            os.write(self._write_end, b"+%d\n" % process_group)

    def forget(self, process_group: int) -> None:
        """Takes away a process group that has no members left; its number may be used again."""
        with contextlib.suppress(OSError):
            os.write(self._write_end, b"-%d\n" % process_group)

    def dismiss(self) -> None:
        """Ends the guardian; the groups are the caller's again."""
        with contextlib.suppress(OSError):
            os.write(self._write_end, _FAREWELL)
        os.close(self._write_end)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _guard(read_end: int) -> NoReturn:
    """The guardian's life: reads until the pipe ends. Never returns into the caller's code."""
    try:
        # Ctrl-C and a terminal that closes are meant for the supervisor, not for its guardian.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        # Whoever reads our output must see its end when the supervisor is gone.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, read_end)
        os.closerange(read_end + 1, 1 << 16)
        told = bytearray()
        while chunk := os.read(read_end, 4096):
            told += chunk
        if not told.endswith(_FAREWELL):
            for process_group in _watched(bytes(told)):
                with contextlib.suppress(OSError):
                    os.killpg(process_group, signal.SIGKILL)
    finally:
        os._exit(0)


def _watched(told: bytes) -> set[int]:
    watched: set[int] = set()
    for line in told.split():
        # 0 would mean the guardian's own group, and 1 is never ours.
        number = int(line[1:])
        if number > 1:
            (watched.add if line.startswith(b"+") else watched.discard)(number)
    return watched
