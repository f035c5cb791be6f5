# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_flight_record.py run."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from engine_ranks import is_inside, say_when_inside, wait_for_files
from machine_speed import scaled


def _wait_for_output(words: Sequence[str]) -> None:
    """Until this process has printed all of them, or is not going to."""
    file, end = Path(os.readlink("/proc/self/fd/2")), time.monotonic() + scaled(30.0)
    while time.monotonic() < end:
        text = file.read_text(errors="replace")
        if all(word in text for word in words):
            return
        time.sleep(0.05)


def record_as_data(rank: int, world_size: int) -> tuple[list[dict[str, Any]], str]:
    from smdistributed import collectives

    with collectives.init(name="job") as comm:
        comm.all_reduce(np.ones(4, np.float32))
        if rank == 0:
            comm.send(np.ones(3, np.int32), 1, tag=7)
        elif rank == 1:
            comm.recv(np.empty(3, np.int32), 0, tag=7)
        comm.barrier()
        return collectives.flight_record(), collectives.flight_record_text()


def signalled_while_stuck(rank: int, world_size: int, where: str, folder: str) -> None:
    """Rank 0 gets SIGUSR1 while its main thread can run no Python code."""
    from smdistributed import collectives

    told = Path(folder, "told")

    def ask_when_inside() -> None:
        while not is_inside("all_reduce"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGUSR1)
        _wait_for_output(["all_reduce #2", "under way"])
        told.touch()

    with collectives.init() as comm:
        comm.barrier()
        if rank != 0:
            wait_for_files(folder, ["told"])
        elif where == "C code with the GIL":
            os.kill(os.getpid(), signal.SIGUSR1)
            ctypes.PyDLL(None).usleep(500_000)
            told.touch()
        else:
            threading.Thread(target=ask_when_inside, daemon=True).start()
        comm.all_reduce(np.ones(5))


def handlers_of_users(rank: int, world_size: int, when: str, folder: str) -> list[str]:
    """Handlers that a script installs before or after ours; what they were called for."""
    from smdistributed import collectives

    called: list[str] = []
    if when == "before":
        signal.signal(signal.SIGUSR1, lambda number, frame: called.append("Python"))
    elif when == "faulthandler":
        with open(Path(folder, f"stacks{rank}"), "w") as file:
            faulthandler.register(signal.SIGUSR1, file=file)
            with collectives.init() as comm:
                comm.barrier()
                os.kill(os.getpid(), signal.SIGUSR1)
                comm.barrier()
            faulthandler.unregister(signal.SIGUSR1)
        return ["faulthandler"] if Path(folder, f"stacks{rank}").read_text() else []
    with collectives.init() as comm:
        comm.barrier()
        if when == "after":
            signal.signal(signal.SIGUSR1, lambda number, frame: called.append("Python"))
        os.kill(os.getpid(), signal.SIGUSR1)
        comm.barrier()
    return called


def catches_signal(rank: int, world_size: int) -> bool:
    from smdistributed import collectives

    with collectives.init() as comm:
        comm.barrier()
    status = Path("/proc/self/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)


def stalled(rank: int, world_size: int, why: str, folder: str, words: Sequence[str] | None) -> None:
    """The last rank keeps the others waiting until rank 0 has reported `words`; None: for 3 s."""
    from smdistributed import collectives

    late = world_size - 1
    comm = collectives.init(name="main", timeout_s=scaled(60.0))
    late_pid = comm.topology()[late]["pid"]

    def end_the_wait_when_reported() -> None:
        if words is None:
            time.sleep(3)
        else:
            _wait_for_output(words)
        if why == "stopped":
            os.kill(late_pid, signal.SIGCONT)
        elif why == "in a message":
            comm.send(np.ones(1), late)
        else:
            Path(folder, "reported").touch()

    comm.barrier()
    if rank == late:
        if why == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif why == "in a message":
            comm.recv(np.empty(1), 0)
        else:
            wait_for_files(folder, ["reported"])
    elif rank == 0:
        threading.Thread(target=end_the_wait_when_reported, daemon=True).start()
        say_when_inside("all_reduce", folder, "inside")
    else:
        wait_for_files(folder, ["inside"])  # who waits first reports for its host
    comm.all_reduce(np.ones(6))
    comm.close()
