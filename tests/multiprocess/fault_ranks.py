# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_faults.py run: operations, and what happens in the middle of them."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from engine_ranks import COUNT, TIMEOUT_S, heard, must_hear, wait_for_files
from held_resources import write_resources
from machine_speed import scaled

# How long operations wait for a rank that does not come; longer than the system may withhold the
# processor from one that does.
STOPPED_S, ABSENT_S = 2.0, 1.5


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that happens to one rank in the middle of an operation.

    Attributes:
        kind: a key of `FAULTS`.
        operation: a key of `OPERATIONS`, which all ranks repeat until something happens.
        victim: the rank.
        delay_s: seconds after the victim's first completed operation.
    """

    kind: str
    operation: str
    victim: int
    delay_s: float


# --- operations ----------------------------------------------------------------------------------


def _all_to_all(comm: Any) -> None:
    parts = np.ones(COUNT * comm.world_size, np.float32)
    comm.all_to_all(np.empty_like(parts), parts)


def _gather(comm: Any) -> None:
    output = np.empty(COUNT * comm.world_size, np.float32) if comm.rank == 0 else None
    comm.gather(output, np.ones(COUNT, np.float32))


def _scatter(comm: Any) -> None:
    parts = np.ones(COUNT * comm.world_size, np.float32) if comm.rank == 0 else None
    comm.scatter(np.empty(COUNT, np.float32), parts)


def _send_recv(comm: Any) -> None:
    """Around a ring, so that everyone depends on everyone."""
    n = comm.world_size
    work = comm.send(np.ones(COUNT, np.float32), (comm.rank + 1) % n, async_op=True)
    comm.recv(np.empty(COUNT, np.float32), (comm.rank - 1) % n)
    work.wait()


def _recv_from_anyone_then_barrier(comm: Any) -> None:
    if comm.rank == 0:
        for _ in range(comm.world_size - 1):
            comm.recv(np.empty(COUNT, np.float32))
        comm.barrier()
    else:
        comm.send(np.ones(COUNT, np.float32), 0)
        comm.barrier()


def _asynchronous(comm: Any) -> None:
    """Several at once, driven by the progress thread."""
    works = [comm.all_reduce(np.ones(COUNT, np.float32), async_op=True) for _ in range(4)]
    for work in works:
        work.wait()


def _shared_all_reduce(comm: Any) -> None:
    """In place, in each other's memory; where it is not shared, like any other."""
    memory = comm.allocate_shared(4 * COUNT)
    comm.all_reduce(np.empty(COUNT, np.float32) if memory is None else memory.view(np.float32))


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "all_reduce": lambda comm: comm.all_reduce(np.ones(COUNT, np.float32)),
    "all_reduce of few bytes": lambda comm: comm.all_reduce(np.ones(4, np.float32)),
    "all_reduce of shared buffers": _shared_all_reduce,
    "asynchronous all_reduce": _asynchronous,
    "reduce": lambda comm: comm.reduce(np.ones(COUNT, np.float32)),
    "broadcast": lambda comm: comm.broadcast(np.ones(COUNT, np.float32)),
    "all_gather": lambda comm: comm.all_gather(
        np.empty(COUNT * comm.world_size, np.float32), np.ones(COUNT, np.float32)
    ),
    "reduce_scatter": lambda comm: comm.reduce_scatter(
        np.empty(COUNT, np.float32), np.ones(COUNT * comm.world_size, np.float32)
    ),
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": lambda comm: comm.barrier(),
    "send and recv": _send_recv,
    "recv from anyone, then barrier": _recv_from_anyone_then_barrier,
}


class _Impatient:
    """A communicator whose operations wait for some seconds at most; it was made in peace."""

    def __init__(self, comm: Any, timeout_s: float) -> None:
        self._comm, self._timeout_s = comm, timeout_s

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if name in ("rank", "world_size", "allocate_shared"):
            return found
        return functools.partial(found, timeout_s=self._timeout_s)


# --- faults --------------------------------------------------------------------------------------


def _fork_worker() -> None:
    """Like a DataLoader worker: inherits every descriptor and stays."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


FAULTS: dict[str, Callable[[], None]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGKILL beside forked workers": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
}


def inject(fault: Fault, folder: str) -> None:
    """Lets the fault happen to this process after its delay, and writes down when."""

    def strike() -> None:
        time.sleep(fault.delay_s)
        Path(folder, "struck").write_text(repr(time.monotonic()))
        FAULTS[fault.kind]()

    if fault.kind == "SIGKILL beside forked workers":
        _fork_worker()
        _fork_worker()
    threading.Thread(target=strike, daemon=True).start()


def until_something_happens(rank: int, world_size: int, fault: Fault, folder: str) -> Any:
    """Repeats the operation while the fault strikes the victim.

    Returns:
        What this rank heard, what it heard from one more call, and for how long it had been in the
        operation when it heard the first.
    """
    from smdistributed import collectives

    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm = collectives.init(timeout_s=TIMEOUT_S)
    operation = OPERATIONS[fault.operation]
    group = _Impatient(comm, STOPPED_S) if fault.kind == "SIGSTOP" else comm
    begun_s = 0.0

    def repeat() -> None:
        nonlocal begun_s
        if rank == fault.victim:
            inject(fault, folder)  # here, where Ctrl-C is heard whenever it comes
        while True:
            begun_s = time.monotonic()
            operation(group)

    operation(comm)
    write_resources(rank, folder)
    comm.barrier()
    first = must_hear(repeat)
    # Ctrl-C between two operations leaves the group whole: another call would be out of order.
    second = None if first.type_name == "KeyboardInterrupt" else heard(comm.barrier)
    Path(folder, f"heard-{rank}").touch()
    if fault.kind == "SIGSTOP" and rank == (fault.victim + 1) % world_size:
        _end_victim_after_the_others(comm, fault, folder)
    comm.close()
    return first, second, first.at_s - begun_s


def _end_victim_after_the_others(comm: Any, fault: Fault, folder: str) -> None:
    others = [r for r in range(comm.world_size) if r != fault.victim]
    wait_for_files(folder, [f"heard-{r}" for r in others])
    os.kill(comm.topology()[fault.victim]["pid"], signal.SIGKILL)


def interrupted_together(rank: int, world_size: int, folder: str) -> Any:
    """Ctrl-C in a terminal reaches every rank at once."""
    from smdistributed import collectives

    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm = collectives.init(timeout_s=TIMEOUT_S)
    write_resources(rank, folder)

    def repeat() -> None:
        while True:
            comm.all_reduce(np.ones(COUNT, np.float32))

    comm.barrier()
    told = None
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        told = heard(repeat)
        # A rank that first heard of another's Ctrl-C still gets its own.
        time.sleep(0 if told is not None and told.type_name == "KeyboardInterrupt" else TIMEOUT_S)
        interrupted = told is not None and told.type_name == "KeyboardInterrupt"
    except KeyboardInterrupt:
        interrupted = True
    comm.close()
    return interrupted, told


def leaves_early(rank: int, world_size: int, how: str, folder: str) -> Any:
    """Rank 1 ends its program in order while the others still want to communicate."""
    from smdistributed import collectives

    comm = collectives.init(timeout_s=TIMEOUT_S)
    write_resources(rank, folder)
    comm.all_reduce(np.ones(COUNT, np.float32))
    if rank == 1:
        Path(folder, "struck").write_text(repr(time.monotonic()))
        if how == "close":
            comm.close()
        # else the interpreter's exit says goodbye
        return None
    return must_hear(comm.all_reduce, np.ones(COUNT, np.float32))


def completes_before_others_leave(rank: int, world_size: int) -> None:
    """A group may be closed right after its last operation: those still in it get their result."""
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as world:
        for repetition in range(30):
            comm = world.split(0)
            assert comm is not None
            array = np.full(100_003 if repetition % 2 else 3, rank, np.float32)
            comm.all_reduce(array)
            comm.close()
            assert set(array.tolist()) == {sum(range(world_size))}


# --- timeouts ------------------------------------------------------------------------------------


def rank_that_does_not_come(rank: int, world_size: int, operation: str, folder: str) -> Any:
    """Rank 1 is alive and busy elsewhere. Returns the error and how long it took to give up."""
    from smdistributed import collectives

    comm = collectives.init(timeout_s=TIMEOUT_S)
    OPERATIONS[operation](comm)
    comm.barrier()
    result = None
    if rank != 1:
        start = time.monotonic()
        told = must_hear(OPERATIONS[operation], _Impatient(comm, ABSENT_S))
        result = told, told.at_s - start
        Path(folder, f"heard-{rank}").touch()
    # Who leaves earlier looks lost to one that began to wait later.
    wait_for_files(folder, [f"heard-{r}" for r in range(world_size) if r != 1])
    comm.close()
    return result


def late_but_in_time(rank: int, world_size: int) -> None:
    """Half the timeout late is not lost."""
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        comm.barrier()
        if rank == 1:
            time.sleep(2.0)  # the lateness under test
        array = np.ones(COUNT, np.float32)
        comm.all_reduce(array, timeout_s=scaled(4.0))
        assert array[0] == world_size


# --- fork ----------------------------------------------------------------------------------------


def forks_after_init(rank: int, world_size: int) -> tuple[str, bool]:
    """The child is told what is wrong, ends in order, and the parent goes on."""
    from smdistributed import collectives

    comm = collectives.init(timeout_s=TIMEOUT_S)
    comm.all_reduce(np.ones(10))
    comm.all_reduce(np.ones(COUNT), async_op=True).wait()  # threads are running
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = heard(comm.all_reduce, np.ones(10))
        comm.close()
        os.write(
            writing, ("nothing" if told is None else f"{told.type_name}: {told.text}").encode()
        )
        collectives._native.prepare_exit()  # what the interpreter does at its exit
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        text = lines.read()
    _, status = os.waitpid(child, 0)
    array = np.ones(COUNT)
    comm.all_reduce(array)
    assert array[0] == world_size
    comm.close()
    return text, status == 0
