# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_faults.py run. No pytest here: every rank would import it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

TIMEOUT_S = 20.0

# Enough for several rounds through the staging buffers, so that a moment chosen at random is likely
# to be in the middle of an operation.
_COUNT = 600_011


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


@dataclasses.dataclass(frozen=True)
class Heard:
    """What one rank was told, and when by the clock that all ranks of a host share."""

    type_name: str
    bases: tuple[str, ...]
    text: str
    at_s: float


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a rank holds that could outlive it."""

    pid: int
    ports: tuple[int, ...]
    unix_sockets: tuple[str, ...]


def heard(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Heard | None:
    """The error of a call, None if there was none."""
    try:
        function(*args, **kwargs)
    except (Exception, KeyboardInterrupt) as error:
        now = time.monotonic()
        bases = tuple(base.__name__ for base in type(error).__mro__)
        return Heard(type(error).__name__, bases, str(error), now)
    return None


def must_hear(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Heard:
    result = heard(function, *args, **kwargs)
    assert result is not None, f"{function} did not raise"
    return result


# --- operations ----------------------------------------------------------------------------------


def _all_to_all(comm: Any) -> None:
    parts = np.ones(_COUNT * comm.world_size, np.float32)
    comm.all_to_all(np.empty_like(parts), parts)


def _gather(comm: Any) -> None:
    output = np.empty(_COUNT * comm.world_size, np.float32) if comm.rank == 0 else None
    comm.gather(output, np.ones(_COUNT, np.float32))


def _scatter(comm: Any) -> None:
    parts = np.ones(_COUNT * comm.world_size, np.float32) if comm.rank == 0 else None
    comm.scatter(np.empty(_COUNT, np.float32), parts)


def _send_recv(comm: Any) -> None:
    """Around a ring, so that everyone depends on everyone."""
    n = comm.world_size
    work = comm.send(np.ones(_COUNT, np.float32), (comm.rank + 1) % n, async_op=True)
    comm.recv(np.empty(_COUNT, np.float32), (comm.rank - 1) % n)
    work.wait()


def _recv_from_anyone_then_barrier(comm: Any) -> None:
    if comm.rank == 0:
        for _ in range(comm.world_size - 1):
            comm.recv(np.empty(_COUNT, np.float32))
        comm.barrier()
    else:
        comm.send(np.ones(_COUNT, np.float32), 0)
        comm.barrier()


def _asynchronous(comm: Any) -> None:
    """Several at once, driven by the progress thread."""
    works = [comm.all_reduce(np.ones(_COUNT, np.float32), async_op=True) for _ in range(4)]
    for work in works:
        work.wait()


def _shared_all_reduce(comm: Any) -> None:
    """In place, in each other's memory; where it is not shared, like any other."""
    memory = comm.allocate_shared(4 * _COUNT)
    comm.all_reduce(np.empty(_COUNT, np.float32) if memory is None else memory.view(np.float32))


OPERATIONS: dict[str, Callable[[Any], object]] = {
    "all_reduce": lambda comm: comm.all_reduce(np.ones(_COUNT, np.float32)),
    "all_reduce of few bytes": lambda comm: comm.all_reduce(np.ones(4, np.float32)),
    "all_reduce of shared buffers": _shared_all_reduce,
    "asynchronous all_reduce": _asynchronous,
    "reduce": lambda comm: comm.reduce(np.ones(_COUNT, np.float32)),
    "broadcast": lambda comm: comm.broadcast(np.ones(_COUNT, np.float32)),
    "all_gather": lambda comm: comm.all_gather(
        np.empty(_COUNT * comm.world_size, np.float32), np.ones(_COUNT, np.float32)
    ),
    "reduce_scatter": lambda comm: comm.reduce_scatter(
        np.empty(_COUNT, np.float32), np.ones(_COUNT * comm.world_size, np.float32)
    ),
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": lambda comm: comm.barrier(),
    "send and recv": _send_recv,
    "recv from anyone, then barrier": _recv_from_anyone_then_barrier,
}


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
        What this rank heard, and what it heard from one more call.
    """
    from smdistributed import collectives

    signal.signal(signal.SIGINT, signal.default_int_handler)
    timeout_s = 2.0 if fault.kind == "SIGSTOP" else TIMEOUT_S
    comm = collectives.init(timeout_s=timeout_s)
    operation = OPERATIONS[fault.operation]

    def repeat() -> None:
        while True:
            operation(comm)

    operation(comm)
    write_resources(rank, folder)
    comm.barrier()
    if rank == fault.victim:
        inject(fault, folder)
    first = must_hear(repeat)
    # Ctrl-C between two operations leaves the group whole: another call would be out of order.
    second = None if first.type_name == "KeyboardInterrupt" else heard(comm.barrier)
    Path(folder, f"heard-{rank}").touch()
    if fault.kind == "SIGSTOP" and rank == (fault.victim + 1) % world_size:
        _end_victim_after_the_others(comm, fault, folder)
    comm.close()
    return first, second


def _end_victim_after_the_others(comm: Any, fault: Fault, folder: str) -> None:
    others = [r for r in range(comm.world_size) if r != fault.victim]
    while not all(Path(folder, f"heard-{r}").exists() for r in others):
        time.sleep(0.01)
    os.kill(comm.topology()[fault.victim]["pid"], signal.SIGKILL)


def interrupted_together(rank: int, world_size: int, folder: str) -> Any:
    """Ctrl-C in a terminal reaches every rank at once."""
    from smdistributed import collectives

    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm = collectives.init(timeout_s=TIMEOUT_S)
    write_resources(rank, folder)

    def repeat() -> None:
        while True:
            comm.all_reduce(np.ones(_COUNT, np.float32))

    comm.barrier()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    told = None
    try:
        told = heard(repeat)
        # A rank that first heard of another's Ctrl-C still gets its own.
        time.sleep(10 if told is None or told.type_name != "KeyboardInterrupt" else 0)
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
    comm.all_reduce(np.ones(_COUNT, np.float32))
    if rank == 1:
        Path(folder, "struck").write_text(repr(time.monotonic()))
        if how == "close":
            comm.close()
        # else the interpreter's exit says goodbye
        return None
    return must_hear(comm.all_reduce, np.ones(_COUNT, np.float32))


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


# --- disagreements -------------------------------------------------------------------------------


def _wrong_splits(comm: Any, odd: bool, n: int) -> None:
    comm.all_to_all(
        np.empty(n * comm.world_size, np.float32),
        np.ones(n * comm.world_size - odd, np.float32),
        [n] * comm.world_size,
        [n - odd] + [n] * (comm.world_size - 1),
    )


def _gather_sizes(comm: Any, odd: bool, n: int) -> None:
    output = np.empty(n * comm.world_size, np.float32) if comm.rank == 0 else None
    comm.gather(output, np.ones(n - odd, np.float32))


def _scatter_sizes(comm: Any, odd: bool, n: int) -> None:
    parts = np.ones(n * comm.world_size, np.float32) if comm.rank == 0 else None
    comm.scatter(np.empty(n - odd, np.float32), parts)


def _uneven_lists(comm: Any, odd: bool, n: int) -> None:
    sizes = [n] * comm.world_size
    sizes[0] -= odd
    comm.all_gather([np.empty(s, np.float32) for s in sizes], np.ones(sizes[comm.rank], np.float32))


def _order(comm: Any, odd: bool, n: int) -> None:
    array = np.ones(n, np.float32)
    if odd:
        comm.barrier()
        comm.all_reduce(array)
    else:
        comm.all_reduce(array)
        comm.barrier()


# (communicator, is this the odd rank?, elements)
DISAGREEMENTS: dict[str, Callable[[Any, bool, int], object]] = {
    "size": lambda comm, odd, n: comm.all_reduce(np.ones(n - odd, np.float32)),
    "dtype": lambda comm, odd, n: comm.all_reduce(np.ones(n, np.int32 if odd else np.float32)),
    "reduce operation": lambda comm, odd, n: comm.all_reduce(np.ones(n), 3 if odd else 0),
    "root of broadcast": lambda comm, odd, n: comm.broadcast(np.ones(n), 1 if odd else 0),
    "root of reduce": lambda comm, odd, n: comm.reduce(np.ones(n), 1 if odd else 0),
    "operation": lambda comm, odd, n: (comm.broadcast if odd else comm.all_reduce)(np.ones(n)),
    "order": _order,
    "split sizes": _wrong_splits,
    "gather sizes": _gather_sizes,
    "scatter sizes": _scatter_sizes,
    "lists of sizes": _uneven_lists,
}


def disagree(rank: int, world_size: int, how: str, count: int) -> tuple[Heard, Heard]:
    """What was heard, at the latest at the next barrier, and the error of a later call."""
    from smdistributed import collectives

    comm = collectives.init(timeout_s=5.0)

    def disagree_then_meet() -> None:
        DISAGREEMENTS[how](comm, rank == 1, count)
        comm.barrier()

    first = must_hear(disagree_then_meet)
    second = must_hear(comm.all_reduce, np.ones(1))
    comm.close()
    return first, second


def message_of_the_wrong_size(rank: int, world_size: int) -> Heard | None:
    """Concerns its receiver only; the group goes on."""
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        told = None
        if rank == 0:
            comm.send(np.ones(5, np.float32), 1)
        elif rank == 1:
            told = must_hear(comm.recv, np.empty(4, np.float32), 0)
        array = np.ones(3)
        comm.all_reduce(array)
        assert array[0] == world_size
        return told


# --- timeouts ------------------------------------------------------------------------------------


def rank_that_does_not_come(rank: int, world_size: int, operation: str, folder: str) -> Any:
    """Rank 1 is alive and busy elsewhere. Returns the error and how long it took to give up."""
    from smdistributed import collectives

    comm = collectives.init(timeout_s=1.0)
    OPERATIONS[operation](comm)
    comm.barrier()
    result = None
    if rank != 1:
        start = time.monotonic()
        told = must_hear(OPERATIONS[operation], comm)
        result = told, told.at_s - start
        Path(folder, f"heard-{rank}").touch()
    else:
        others = [r for r in range(world_size) if r != rank]
        while not all(Path(folder, f"heard-{r}").exists() for r in others):
            time.sleep(0.01)
    comm.close()
    return result


def late_but_in_time(rank: int, world_size: int) -> None:
    """Half the timeout late is not lost."""
    from smdistributed import collectives

    with collectives.init(timeout_s=4.0) as comm:
        comm.barrier()
        if rank == 1:
            time.sleep(2.0)  # the lateness under test
        array = np.ones(_COUNT, np.float32)
        comm.all_reduce(array)
        assert array[0] == world_size


# --- fork ----------------------------------------------------------------------------------------


def forks_after_init(rank: int, world_size: int) -> tuple[str, bool]:
    """The child is told what is wrong, ends in order, and the parent goes on."""
    from smdistributed import collectives

    comm = collectives.init(timeout_s=TIMEOUT_S)
    comm.all_reduce(np.ones(10))
    comm.all_reduce(np.ones(_COUNT), async_op=True).wait()  # threads are running
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
    array = np.ones(_COUNT)
    comm.all_reduce(array)
    assert array[0] == world_size
    comm.close()
    return text, status == 0


# --- the start of a job --------------------------------------------------------------------------


def joins(rank: int, world_size: int, timeout_s: float = 3.0) -> Heard | None:
    from smdistributed import collectives

    def join_and_leave() -> None:
        with collectives.init(timeout_s=timeout_s) as comm:
            comm.all_reduce(np.ones(3))

    return heard(join_and_leave)


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
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
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
        array = np.ones(_COUNT)
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
        array = np.ones(_COUNT)
        comm.all_reduce(array)
        assert array[0] == world_size
        return str(comm.topology()[1 - rank]["transport"])


def few_descriptors(rank: int, world_size: int, spare: int) -> Heard | None:
    """Joins with `spare` descriptors left, on every rank."""
    from smdistributed import collectives  # noqa: F401 -- opens files

    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers) + 1 + spare, hard))
    try:
        return joins(rank, world_size, timeout_s=4.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# --- what is left behind -------------------------------------------------------------------------


def write_resources(rank: int, folder: str) -> None:
    """Writes down what this rank holds, for a test to look for after its death."""
    held = resources_of_this_process()
    lines = [str(held.pid), " ".join(map(str, held.ports)), " ".join(held.unix_sockets)]
    Path(folder, f"resources-{rank}").write_text("\n".join(lines))


def read_resources(folder: Path) -> list[Resources]:
    found = []
    for path in sorted(folder.glob("resources-*")):
        pid, ports, unix_sockets = path.read_text().split("\n")
        ports_ = tuple(int(port) for port in ports.split())
        found.append(Resources(int(pid), ports_, tuple(unix_sockets.split())))
    return found


def resources_of_this_process() -> Resources:
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    ports = tuple(port for port, inode in listening_ports() if inode in inodes)
    unix_sockets = tuple(name for name, inode in unix_socket_names() if inode in inodes)
    return Resources(os.getpid(), ports, unix_sockets)


def listening_ports() -> list[tuple[int, str]]:
    """(port, inode) of every listening TCP socket of this network namespace."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A":  # TCP_LISTEN
                    found.append((int(fields[1].rpartition(":")[2], 16), fields[9]))
    return found


def unix_socket_names() -> list[tuple[str, str]]:
    """(name, inode) of every named Unix socket."""
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8:
            found.append((fields[7], fields[6]))
    return found
