# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that exchange messages of unknown size. Used by `test_messages.py`."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from engine_ranks import Heard, must_hear
from machine_speed import scaled

LARGE = 400_003  # bytes; through shared memory it is used where its sender has put it


@contextlib.contextmanager
def group() -> Iterator[Any]:
    """The native communicator of a group, which is closed at the end."""
    from smdistributed import collectives

    with collectives.init() as comm:
        yield comm._native


def post(native: Any, dest: int, header: bytes, arrays: Sequence[Any] = ()) -> None:
    native.post_message(dest, header, [(a.ctypes.data, a.nbytes) for a in arrays])


def take(native: Any, timeout_s: float = scaled(60.0)) -> Any:
    message = native.next_message(timeout_s)
    assert message is not None, "no message came"
    return message


def numbers(rank: int, count: int) -> Any:
    return (np.arange(count) % 251 + rank).astype(np.uint8)


def uses_bodies_in_place(rank: int, world_size: int) -> None:
    """The last rank's arrays travel to all others, as views of one message."""
    from smdistributed import collectives

    comm = collectives.init()
    native = comm._native
    arrays = [
        numbers(rank, LARGE),
        np.arange(1000, dtype=np.float64) + rank,
        np.arange(7, dtype=np.int32),
    ]
    for large in (True, False):
        sent = arrays if large else arrays[1:]
        post(native, (rank + 1) % world_size, b"\x00 header \xff", sent)
        message = take(native)
        before = (rank - 1) % world_size
        assert message.source == before
        assert message.header == b"\x00 header \xff"
        views = []
        offset = 0
        for array in sent:
            offset = -(-offset // 64) * 64
            view = np.frombuffer(message, array.dtype, array.size, offset)
            offset += array.nbytes
            views.append(view)
        assert message.nbytes == offset
        whole = memoryview(message)
        assert whole.nbytes == offset
        assert not whole.readonly
        whole.release()
        assert views[0].ctypes.data % 64 == 0
        del message
        if large:
            kept = views
    comm.barrier()
    comm.close()
    del comm, native
    gc.collect()
    # Theirs was another rank's memory, whose group is closed, and now is nobody's but this rank's.
    np.testing.assert_array_equal(kept[0], numbers(before, LARGE))
    np.testing.assert_array_equal(kept[1], np.arange(1000) + before)
    np.testing.assert_array_equal(kept[2], np.arange(7))
    for view in kept:
        assert view.flags.writeable
        view += 1
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()


def refuses_nonsense(rank: int, world_size: int) -> list[Heard]:
    with group() as native:
        if world_size == 1:
            return [
                must_hear(native.post_message, 0, b"", []),
                must_hear(native.next_message, 0.0),
            ]
        errors = [must_hear(native.post_message, dest, b"", []) for dest in (rank, 2, -1)]
        for segments in ([(0, -1)], [0], None, [(0, 1, 2)]):
            told = must_hear(native.post_message, 1 - rank, b"", segments)
            assert told.type_name == "TypeError", told
        told = must_hear(native.post_message, 1 - rank, "text", [])
        assert told.type_name == "TypeError", told
        post(native, 1 - rank, b"")
        message = take(native)
        assert message.header == b""
        assert message.nbytes == 0
        assert memoryview(message).nbytes == 0
        native.barrier()
        return errors


def waits_for_as_long_as_it_says(rank: int, world_size: int) -> None:
    with group() as native:
        assert native.next_message(0) is None
        start = time.monotonic()
        assert native.next_message(0.2) is None
        assert time.monotonic() - start >= 0.2
        if rank == 0:
            # Others may run meanwhile, and post.
            threading.Timer(0.05, post, (native, 1, b"at last", [numbers(0, LARGE)])).start()
            assert take(native).header == b"thanks"
        else:
            message = take(native, -1.0)
            np.testing.assert_array_equal(np.frombuffer(message, np.uint8), numbers(0, LARGE))
            post(native, 0, b"thanks")
        native.barrier()


def is_interrupted(rank: int, world_size: int) -> None:
    """Ctrl-C ends a wait, and harms nothing else."""
    with group() as native:
        if rank == 0:
            try:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                native.next_message(-1.0)
                raise AssertionError("not interrupted")
            except KeyboardInterrupt:
                post(native, 1, b"go on")
            assert take(native).header == b"here"
        else:
            assert take(native).header == b"go on"
            post(native, 0, b"here")
        native.barrier()


def loses_a_peer(rank: int, world_size: int) -> tuple[int, Heard, Heard] | None:
    """Rank 0 dies after some messages; the others take those first."""
    with group() as native:
        if rank == 0:
            for i in range(40):
                for dest in range(1, world_size):
                    post(native, dest, bytes([i]), [numbers(i, LARGE if i % 4 == 0 else i)])
            # All are out of this process's hands: they have been taken, or wait in shared memory.
            for _ in range(1, world_size):
                take(native)
            os.kill(os.getpid(), signal.SIGKILL)
        first = take(native)  # with it the last one has arrived, or will before rank 0 dies
        assert first.header == b"\x00"
        taken = 1
        while True:
            try:
                message = take(native)
            except Exception:
                told = must_hear(native.next_message, 0.0)
                return taken, told, must_hear(native.post_message, 3 - rank, b"", [])
            np.testing.assert_array_equal(
                np.frombuffer(message, np.uint8),
                numbers(taken, LARGE if taken % 4 == 0 else taken),
            )
            taken += 1
            if taken == 38:
                post(native, 0, b"you may go")


def ends_with_messages_about(rank: int, world_size: int) -> None:
    """Nothing is taken, kept or closed in order when the interpreter ends."""
    from smdistributed import collectives

    native = collectives.init()._native
    for i in range(50):
        post(native, 1 - rank, bytes(3000), [numbers(i, LARGE if i % 2 else 100)])
    kept = [take(native) for _ in range(10)]
    views = [np.frombuffer(message, np.uint8) for message in kept]
    native.barrier()
    globals()["_kept"] = (kept, views, native)


if __name__ == "__main__":
    ends_with_messages_about(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
