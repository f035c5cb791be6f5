# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The folder of a courier, which goes with it, however it ends.

    ~/.smdistributed/hosts/MACHINE-1f0c...   on the machine of the host

A process of its own, the sweeper, waits for the end of the courier and takes the folder away. It
also ends a courier that shows no life. What a machine has left that was switched off is removed by
the next courier there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from smdistributed.launch.agent.plan import HostDirectory
from smdistributed.launch.home import home_directory
from smdistributed.launch.jobs.directory import JobDirectory
from smdistributed.launch.jobs.files import make_writable, one_at_a_time

__all__ = ["Folder", "folder_of_its_own"]

_LOOK_S = 0.1
_SWEEP_S = 60.0
# More than the other end waits: it has given this courier up by then.
_MOST_SILENT_S = 30.0


class Folder:
    """Of a courier that lives.

    Args:
        path: of the folder.
        sweeper: the process that takes it away.
        wake: a pipe to the sweeper.
    """

    def __init__(self, path: Path, sweeper: int, wake: int) -> None:
        self.path = path
        self.sweeper = sweeper
        self._wake = wake

    def show_life(self) -> None:
        """To be called about once a second."""
        with contextlib.suppress(OSError):
            os.write(self._wake, b".")


@contextlib.contextmanager
def folder_of_its_own() -> Iterator[Folder]:
    """A folder for this process, below the home of this user. No thread may run yet.

    Raises:
        ConfigurationError: there is no home.
        OSError: it cannot be made.
    """
    above = home_directory().root / "hosts"
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    machine = os.uname().nodename  # the home may be shared by several
    with one_at_a_time(above / f".making-{machine}"):
        for left in above.glob(f"{machine}-*/"):
            if not _is_used(left):
                _remove(left)
        path = above / f"{machine}-{secrets.token_hex(8)}"
        path.mkdir(mode=0o700)
        job = JobDirectory(path)
        job.lock.acquire()  # by which agents, too, know that they are not alone
    try:
        yield Folder(path, *_sweep_after(path))
    finally:
        _remove(path)
        job.lock.release()


def _is_used(folder: Path) -> bool:
    locks = [JobDirectory(folder).lock]
    locks += [HostDirectory(each).lock for each in (folder / "hosts").glob("*")]
    return any(each.is_held_elsewhere() for each in locks)


def _sweep_after(folder: Path) -> tuple[int, int]:
    """Starts the sweeper.

    Returns: its number, and a pipe to it, which this process alone holds, as long as it lives.
    """
    woken, wake = os.pipe()
    courier = os.getpid()
    if sweeper := os.fork():
        os.close(woken)
        return sweeper, wake
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for descriptor in range(3):  # else the connection would stay open
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        os.closerange(3, woken)
        os.closerange(woken + 1, 1 << 16)
        _wait_for_end(woken, courier)
        until = time.monotonic() + _SWEEP_S
        while time.monotonic() < until and _is_used(folder):
            time.sleep(_LOOK_S)  # an agent sees that the courier is gone, and ends its ranks
        _remove(folder)
    finally:
        os._exit(0)


def _wait_for_end(woken: int, courier: int) -> None:
    """Until the courier, which is the parent of this process, is gone."""
    while True:
        readable, _, _ = select.select([woken], [], [], _MOST_SILENT_S)
        if not readable and os.getppid() == courier:  # it was stopped, or hangs
            os.kill(courier, signal.SIGKILL)
        elif not readable or not os.read(woken, 1 << 10):
            return


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        make_writable(folder)
    shutil.rmtree(folder, ignore_errors=True)
