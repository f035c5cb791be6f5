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
from pathlib import Path
from typing import Any

import numpy as np


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


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
    with collectives.init() as comm:
        comm.barrier()
        if rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            if where == "C code with the GIL":
                # The timer needs the interpreter too: let it be through before.
                time.sleep(0.7)
                os.kill(os.getpid(), signal.SIGUSR1)
                ctypes.PyDLL(None).usleep(500_000)
                told.touch()
            comm.all_reduce(np.ones(5))
        else:
            if where == "C code with the GIL":
                _wait_for(told)
            else:
                time.sleep(1.5)
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


def stalled(rank: int, world_size: int, why: str, folder: str) -> None:
    """The last rank keeps the others waiting until one of them has reported."""
    from smdistributed import collectives

    late = world_size - 1
    comm = collectives.init(name="main", timeout_s=60)
    comm.barrier()
    if rank == late:
        Path(folder, "pid").write_text(str(os.getpid()))
        if why == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif why == "in a message":
            comm.recv(np.empty(1), 0)
        else:
            time.sleep(3)
    elif rank == 0:
        if why == "stopped":
            _wait_for(Path(folder, "pid"))
            pid = int(Path(folder, "pid").read_text())
            threading.Timer(3, os.kill, (pid, signal.SIGCONT)).start()
        elif why == "in a message":
            threading.Timer(3, lambda: comm.send(np.ones(1), late)).start()
    comm.all_reduce(np.ones(6))
    comm.close()
