# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_startup.py run: joining a group where that is hard, and leaving it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import socket
import time
from collections.abc import Callable

import numpy as np
from engine_ranks import COUNT, TIMEOUT_S, Heard, heard, meet_by_files, must_hear
from held_resources import resources_of_this_process


def joins(rank: int, world_size: int, timeout_s: float = 3.0) -> Heard | None:
    from smdistributed import collectives

    def join_and_leave() -> None:
        with collectives.init(timeout_s=timeout_s) as comm:
            comm.all_reduce(np.ones(3))

    return heard(join_and_leave)


def joins_together(rank: int, world_size: int, folder: str, num_started: int) -> Heard | None:
    """Joins when the others that were started at all are there, too."""
    meet_by_files(folder, rank, num_started)
    return joins(rank, world_size)


def joins_twice(rank: int, world_size: int) -> None:
    """A second init gives a second, independent communicator."""
    from smdistributed import collectives

    first = collectives.init(timeout_s=TIMEOUT_S)
    second = collectives.init(timeout_s=TIMEOUT_S)
    for comm in (first, second, first):
        array = np.ones(3)
        comm.all_reduce(array)
        assert array[0] == world_size
    first.close()
    array = np.ones(3)
    second.all_reduce(array)
    assert array[0] == world_size
    second.close()


def uses_after_close(rank: int, world_size: int) -> list[Heard]:
    from smdistributed import collectives

    comm = collectives.init(timeout_s=TIMEOUT_S)
    comm.barrier()
    comm.close()
    comm.close()
    calls: list[Callable[[], object]] = [
        comm.barrier,
        lambda: comm.all_reduce(np.ones(3)),
        lambda: comm.all_reduce(np.ones(3), async_op=True),
    ]
    if world_size > 1:
        calls.append(lambda: comm.send(np.ones(3), 1 - rank))
    return [must_hear(call) for call in calls]


def _garbage(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [
        b"",
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        rng.randbytes(16),
        rng.randbytes(4096),
        b"\xff" * 100_000,
    ]


def _pester(port: int, seed: int) -> list[socket.socket]:
    """Sends nonsense to a port; returns connections that stay open and silent."""
    quiet = []
    for data in _garbage(seed):
        connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        with contextlib.suppress(OSError):
            connection.sendall(data)
        if len(data) % 2:
            connection.close()
        else:
            quiet.append(connection)
    return quiet


def garbage_at_the_listening_port(rank: int, world_size: int) -> int:
    """Returns how many ports were pestered."""
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        quiet = []
        ports = resources_of_this_process().ports
        for port in ports:
            quiet += _pester(port, seed=rank)
        array = np.ones(COUNT)
        comm.all_reduce(array)
        assert array[0] == world_size
        comm.barrier()
        for port in ports:
            quiet += _pester(port, seed=rank + 100)
        comm.all_reduce(array)
        assert array[0] == world_size**2
        for connection in quiet:
            connection.close()
        return len(ports)


def garbage_at_the_rendezvous(rank: int, world_size: int) -> None:
    """Strangers come before the last rank does."""
    from smdistributed import collectives

    quiet: list[socket.socket] = []
    if rank == 1:
        deadline = time.monotonic() + TIMEOUT_S
        while not quiet and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionRefusedError):
                quiet = _pester(int(os.environ["MASTER_PORT"]), seed=1)
        assert quiet, "rank 0 never listened"
    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        array = np.ones(3)
        comm.all_reduce(array)
        assert array[0] == world_size
    for connection in quiet:
        connection.close()


def without_dev_shm(rank: int, world_size: int, how: str) -> str:
    """Works in a mount namespace of its own whose /dev/shm is of no use. Returns the transport."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, recursive_private, read_only = 0x00020000, 0x4000 | 0x40000, 0x1
    if libc.unshare(new_mounts) != 0 or libc.mount(b"none", b"/", None, recursive_private, None):
        return f"not permitted ({os.strerror(ctypes.get_errno())})"
    flags, options = (read_only, b"") if how == "read-only" else (0, b"size=4k")
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, options) != 0:
        return f"not permitted ({os.strerror(ctypes.get_errno())})"
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        array = np.ones(COUNT)
        comm.all_reduce(array)
        assert array[0] == world_size
        return str(comm.topology()[1 - rank]["transport"])


def few_descriptors(
    rank: int, world_size: int, spare: int, timeout_s: float, folder: str
) -> Heard | None:
    """Joins with `spare` descriptors left, on every rank."""
    from smdistributed import collectives  # noqa: F401 -- opens files

    meet_by_files(folder, rank, world_size, f"with {spare} to spare")
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1 + spare, hard))
    try:
        return joins(rank, world_size, timeout_s)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
