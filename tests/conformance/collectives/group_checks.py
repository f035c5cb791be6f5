# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages, works, groups and arrays, as functions that run on every rank (see test_groups.py)."""

from __future__ import annotations

import array
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from smdistributed.collectives import ReduceOp, _native
from tests.conformance.collectives.ranks import TIMEOUT_S, raised, reduced, tagged

LARGE = 300_007


# --- messages ------------------------------------------------------------------------------------


def messages_of_one_tag_keep_their_order(comm: Any) -> None:
    if comm.rank == 0:
        for i in range(20):
            comm.send(np.full(i * 100, i, np.int32), 1, tag=4)
    elif comm.rank == 1:
        for i in range(20):
            output = np.zeros(i * 100, np.int32)
            comm.recv(output, 0, tag=4)
            assert set(output.tolist()) <= {i}


def tags_tell_messages_apart(comm: Any) -> None:
    """Received in another order than sent, small ones and large ones."""
    if comm.rank == 0:
        works = [
            comm.send(np.full(count, float(tag)), 1, tag=tag, async_op=True)
            for tag, count in ((1, 3), (2, LARGE), (3, 4))
        ]
        for work in works:
            work.wait()
    elif comm.rank == 1:
        for tag, count in ((3, 4), (2, LARGE), (1, 3)):
            output = np.zeros(count)
            assert comm.recv(output, 0, tag=tag) == 0
            assert set(output.tolist()) == {float(tag)}


def a_receive_from_anyone_names_its_source(comm: Any) -> None:
    if comm.rank == 0:
        sources = []
        for _ in range(comm.world_size - 1):
            output = np.zeros(5)
            source = comm.recv(output, tag=9)
            np.testing.assert_array_equal(output, tagged(source, 5, "float64"))
            sources.append(source)
        assert sorted(sources) == list(range(1, comm.world_size))
        output = np.zeros(3)
        work = comm.recv(output, tag=10, async_op=True)
        assert work.source == -1 or work.is_completed()
        work.wait()
        assert work.source == 1
    else:
        comm.send(tagged(comm.rank, 5, "float64"), 0, tag=9)
        if comm.rank == 1:
            comm.send(np.ones(3), 0, tag=10)


def a_receive_nobody_answers_times_out_and_harms_nobody(comm: Any) -> None:
    if comm.rank == 0:
        start = time.monotonic()
        name, text, bases = raised(comm.recv, np.zeros(3), 1, tag=77, timeout_s=0.5)
        assert time.monotonic() - start > 0.45
        assert name == "CollectiveTimeoutError", text
        assert "TimeoutError" in bases
        assert "rank 1 (host" in text, text
    values = np.ones(3)
    comm.all_reduce(values)
    assert values[0] == comm.world_size


def messages_to_oneself_or_nobody_are_refused(comm: Any) -> None:
    for peer in (comm.rank, comm.world_size, -2):
        name, text, _ = raised(comm.send, np.ones(3), peer)
        assert name == "ConfigurationError", text
        assert "expected another rank of the group" in text


# --- works ---------------------------------------------------------------------------------------


def works_complete_in_any_waiting_order(comm: Any) -> None:
    arrays = [tagged(comm.rank, count) for count in (1, 1000, LARGE, 0, 5)]
    works = [comm.all_reduce(values, async_op=True) for values in arrays]
    for values, work in reversed(list(zip(arrays, works, strict=True))):
        work.wait()
        assert work.is_completed()
        assert work.exception() is None
        expected = [tagged(r, values.size) for r in range(comm.world_size)]
        np.testing.assert_array_equal(values, reduced(expected))


def every_collective_can_be_asynchronous(comm: Any) -> None:
    n, mine = comm.world_size, tagged(comm.rank, 40_001)
    everyone = np.concatenate([tagged(r, 40_001) for r in range(n)])
    summed, broadcasted = mine.copy(), mine.copy()
    gathered, scattered = np.zeros_like(everyone), np.zeros_like(mine)
    collected = np.zeros_like(everyone) if comm.rank == 0 else None
    swapped, received = np.zeros_like(everyone), np.zeros_like(mine)
    reduced_to_root = mine.copy()
    works = [
        comm.all_reduce(summed, async_op=True),
        comm.broadcast(broadcasted, 1, async_op=True),
        comm.barrier(async_op=True),
        comm.all_gather(gathered, mine, async_op=True),
        comm.reduce_scatter(scattered, everyone, async_op=True),
        comm.all_to_all(swapped, everyone, async_op=True),
        comm.gather(collected, mine, async_op=True),
        comm.scatter(received, everyone if comm.rank == 0 else None, async_op=True),
        comm.reduce(reduced_to_root, 1, async_op=True),
    ]
    for work in works:
        work.wait()
    total = reduced([tagged(r, 40_001) for r in range(n)])
    np.testing.assert_array_equal(summed, total)
    np.testing.assert_array_equal(broadcasted, tagged(1, 40_001))
    np.testing.assert_array_equal(gathered, everyone)
    np.testing.assert_array_equal(scattered, mine * n)
    np.testing.assert_array_equal(swapped, np.tile(mine, n))
    if collected is not None:
        np.testing.assert_array_equal(collected, everyone)
    np.testing.assert_array_equal(received, mine)
    np.testing.assert_array_equal(reduced_to_root, total if comm.rank == 1 else mine)


def callbacks_are_called_once_with_their_work(comm: Any) -> None:
    for count in (3, LARGE):
        called = threading.Event()
        seen: list[Any] = []

        def callback(work: Any, seen: list[Any] = seen, done: Any = called) -> None:
            seen.append(work.is_completed())
            done.set()

        work = comm.all_reduce(np.ones(count), async_op=True)
        work.add_done_callback(callback)
        work.wait()
        assert called.wait(TIMEOUT_S)
        assert seen == [True]


def arrays_may_be_dropped_while_their_operation_runs(comm: Any) -> None:
    works, alive = [], []
    for _ in range(5):
        array = np.ones(LARGE)
        works.append(comm.all_reduce(array, async_op=True))
        alive.append(weakref.ref(array))
        del array
    for work in works:
        work.wait()
    # Who waits for an operation lets go of its array; else those of a job's run fill its memory.
    assert [array() for array in alive] == [None] * len(alive)


def an_array_that_nobody_waits_for_is_let_go_of(comm: Any) -> None:
    """By any call: the thread that completes an operation cannot do it."""
    alive = []
    for is_asked in (True, False):
        array = np.ones(LARGE)
        work = comm.all_reduce(array, async_op=True)
        alive.append(weakref.ref(array))
        del array
        end = time.monotonic() + TIMEOUT_S
        while is_asked and not work.is_completed():
            assert time.monotonic() < end
        del work
    assert alive[0]() is None
    small = np.ones(1)
    end = time.monotonic() + TIMEOUT_S
    is_over = np.zeros(comm.world_size, dtype=bool)
    while not is_over.all():  # every rank goes on until all have seen it
        assert time.monotonic() < end, "the array of a completed operation is kept"
        comm.all_reduce(small)
        comm.all_gather(is_over, np.array([alive[1]() is None]))


def what_an_operation_uses_cannot_be_resized(comm: Any) -> None:
    if comm.rank == 1:
        buffer = bytearray(LARGE)
        work = comm.recv(buffer, 0, tag=3, async_op=True)
        name, text, _ = raised(buffer.clear)
        assert name == "BufferError", text
        comm.send(np.zeros(1), 0)
        work.wait()
        assert buffer == bytearray([7]) * LARGE
        buffer.clear()
    elif comm.rank == 0:
        comm.recv(np.zeros(1), 1)
        sent = bytearray([7]) * LARGE
        comm.send(sent, 1, tag=3, async_op=True).wait()
        sent.clear()


def what_a_call_uses_cannot_be_resized(comm: Any) -> None:
    """By another thread, while one is inside the call."""
    calls = {
        "all_reduce": lambda buffer, _: comm.all_reduce(buffer),
        "all_gather": lambda buffer, parts: comm.all_gather(parts, buffer),
    }
    for call in calls.values():
        buffer = bytearray([1]) * LARGE
        parts = [bytearray(LARGE) for _ in range(comm.world_size)]
        if comm.rank != 0:
            comm.recv(np.zeros(1), 0)  # it has tried
            call(buffer, parts)
            continue
        address, count, _ = _native.buffer(buffer)
        inside = threading.Thread(target=call, args=(buffer, parts))
        inside.start()
        end = time.monotonic() + TIMEOUT_S
        while not _native.is_in_use(address, count):
            assert time.monotonic() < end
        name, text, _ = raised(buffer.clear)
        for peer in range(1, comm.world_size):
            comm.send(np.zeros(1), peer)
        inside.join()
        assert name == "BufferError", text
        buffer.clear()


def a_callback_that_would_wait_is_refused(comm: Any) -> None:
    """The thread that carries out operations runs it: it would wait for itself."""
    values = np.ones(LARGE)
    others = range(1, comm.world_size)
    if comm.rank == 0:  # what the others have begun goes on when they have been told
        for tag in (1, 2):
            for peer in others:
                comm.recv(np.zeros(1), peer, tag=tag)
                if tag == 1:
                    comm.send(np.zeros(1), peer, tag=3)
        comm.all_reduce(values)
    else:
        begun = comm.all_reduce(values, async_op=True)
        told: list[tuple[str, str, list[str]]] = []
        closed: list[tuple[str, str, list[str]]] = []
        called = threading.Event()
        untouched = np.ones(3)

        def callback(_: Any) -> None:
            told.append(raised(begun.wait))
            told.append(raised(comm.all_reduce, untouched, ReduceOp.PREMUL_SUM, factor=2.0))
            told.append(raised(comm.send, np.ones(3), 0))
            told.append(raised(comm.recv, np.ones(3), 0))
            closed.append(raised(comm.close))
            called.set()

        comm.recv(np.zeros(1), 0, tag=3, async_op=True).add_done_callback(callback)
        comm.send(np.zeros(1), 0, tag=1)
        assert called.wait(TIMEOUT_S)
        for name, text, _ in told:
            assert name == "ConfigurationError", text
            assert "is waited for in a done-callback" in text
        assert "is closed in a done-callback" in closed[0][1]
        assert (untouched == 1).all()
        comm.send(np.zeros(1), 0, tag=2)
        begun.wait()
    assert values[0] == comm.world_size


def a_callback_is_refused_also_if_nothing_is_under_way(comm: Any) -> None:
    """Whether it is must not depend on how far another thread has come."""
    if comm.rank == 0:
        for peer in range(1, comm.world_size):
            comm.recv(np.zeros(1), peer)  # its callback is there
            comm.send(bytes(8), peer)
    else:
        received = bytearray(8)
        work = comm.recv(received, 0, async_op=True)
        told: list[tuple[str, str, list[str]]] = []
        called = threading.Event()

        def callback(_: Any) -> None:
            received.clear()  # is the caller's again
            told.extend(raised(call) for call in (comm.barrier, comm.close))
            called.set()

        name, text, _ = raised(work.add_done_callback, 5)
        assert name == "TypeError", text
        name, text, _ = raised(work.wait, "abc")
        assert name == "TypeError", text
        work.add_done_callback(callback)
        comm.send(np.zeros(1), 0)
        assert called.wait(TIMEOUT_S)
        assert len(told) == 2
        for name, text, _ in told:
            assert name == "ConfigurationError", text
    comm.barrier()


def a_signal_handler_that_would_wait_is_refused(comm: Any) -> None:
    """It runs inside a call of its thread, which goes on only after it."""
    if threading.current_thread() is not threading.main_thread():
        return
    told: list[tuple[str, str, list[str]]] = []
    others = [rank for rank in range(comm.world_size) if rank != comm.rank]

    def handler(*_: Any) -> None:
        told.extend(
            raised(call)
            for call in (
                comm.barrier,
                lambda: comm.recv(np.zeros(1), others[0], tag=9),
                comm.all_reduce(np.ones(1), async_op=True).wait,
                comm.close,
            )
        )
        single.barrier()  # another group, which is not waited for
        single.close()

    before = signal.signal(signal.SIGALRM, handler)
    single = comm.split(comm.rank)
    try:
        values = np.ones(3)
        if comm.rank == 0:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            for peer in others:
                comm.recv(np.zeros(1), peer)  # the handler runs here
            comm.all_reduce(values)
        else:
            time.sleep(1.0)
            comm.send(np.zeros(1), 0)
            comm.all_reduce(np.ones(1))  # that of the handler
            comm.all_reduce(values)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert values[0] == comm.world_size
    if comm.rank == 0:
        assert len(told) == 4
        for name, text, _ in told:
            assert name == "ConfigurationError", text
            assert "in a signal handler that interrupts" in text, text


def ctrl_c_in_a_callback_is_raised_after_it(comm: Any) -> None:
    """Where the user can catch it, on the main thread; and the other callbacks are called."""
    called: list[threading.Thread] = []
    values = np.ones(LARGE)
    has_raised = False
    if comm.rank == 0:

        def interrupted(_: Any) -> None:
            called.append(threading.current_thread())
            if called[0] is threading.main_thread():
                raise KeyboardInterrupt

        work = comm.all_reduce(values, async_op=True)
        try:
            work.add_done_callback(interrupted)
            work.add_done_callback(lambda _: called.append(threading.current_thread()))
            work.wait()
            for _ in range(1000):  # Python looks for it now and then
                pass
        except KeyboardInterrupt:
            has_raised = True
        work.wait()
        end = time.monotonic() + TIMEOUT_S
        while len(called) < 2:
            assert time.monotonic() < end
        assert has_raised == (called[0] is threading.main_thread())
    else:
        time.sleep(0.3)
        comm.all_reduce(values)
    assert values[0] == comm.world_size


class _Exports:
    """DLPack of an array that nobody else has, as some libraries make it when they are asked."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __dlpack__(self, **options: Any) -> Any:
        return self._make().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def what_dlpack_exports_is_held(comm: Any) -> None:
    """It may be the only owner of the memory."""
    large = 10 * LARGE  # given back to the system at once
    for is_async in (False, True):
        if comm.rank == 0:
            sent = _Exports(lambda: torch.full((large,), 7.0))
            for peer in range(1, comm.world_size):
                work = comm.send(sent, peer, async_op=is_async)
                if is_async:
                    torch.zeros(large)  # where it would lie by now
                    comm.send(np.zeros(1), peer, tag=1)
                    work.wait()
        else:
            received = np.zeros(large, np.float32)
            if is_async:
                comm.recv(np.zeros(1), 0, tag=1)
            comm.recv(received, 0)
            assert (received == 7).all()


def read_only_memory_is_not_written_to(comm: Any) -> None:
    memory = bytes(40)
    array = np.frombuffer(memory, np.float32)
    for each in (array, _Exports(lambda: array)):
        name, text, _ = raised(comm.recv, each, (comm.rank + 1) % comm.world_size)
        assert name == "ValueError", text
        assert "writable" in text, text
    assert memory == bytes(40)


def arrays_in_lists_of_any_class_are_held(comm: Any) -> None:
    class Parts(list[Any]):
        pass

    parts = Parts(bytearray(LARGE) for _ in range(comm.world_size))
    mine = bytearray([comm.rank]) * LARGE
    if comm.rank != 0:
        comm.recv(np.zeros(1), 0)
    work = comm.all_gather(parts, mine, async_op=True)
    if comm.rank == 0:
        for array in (*parts, mine):
            name, text, _ = raised(array.clear)
            assert name == "BufferError", text
        for peer in range(1, comm.world_size):
            comm.send(np.zeros(1), peer)
    work.wait()
    assert [part[0] for part in parts] == list(range(comm.world_size))


def a_call_that_has_raised_holds_nothing(comm: Any) -> None:
    """Also while its traceback lives: an `except` may close what the arrays lie in."""
    peer = (comm.rank + 1) % comm.world_size
    buffer, parts = bytearray(8), [bytearray(3) for _ in range(comm.world_size)]
    for is_async in (False, True):
        for call in (
            lambda: comm.recv(buffer, peer, timeout_s=0.05, async_op=False),
            lambda a=is_async: comm.recv(buffer, comm.world_size, async_op=a),
            lambda a=is_async: comm.send(buffer, comm.rank, async_op=a),
            lambda a=is_async: comm.all_gather(parts, buffer, async_op=a),
        ):
            try:
                call()
            except Exception:
                for array in (buffer, *parts):
                    array.append(0)
                    array.pop()
            else:
                raise AssertionError("it did not raise")


class _Interrupted:
    """What raises on top of a receive that has begun, as the handler of a signal may."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def recv_ptr(self, *arguments: Any) -> None:
        self._native.recv_ptr(*arguments)
        raise TimeoutError


def what_has_begun_keeps_its_memory_whatever_is_raised(comm: Any) -> None:
    """Also while the traceback, and with it all that is held, lives."""
    peer = (comm.rank - 1) % comm.world_size
    buffer, native = bytearray(8), comm._native
    comm._native = _Interrupted(native)
    try:
        comm.recv(buffer, peer, async_op=True)
    except TimeoutError:
        name, text, _ = raised(buffer.append, 0)
        assert name == "BufferError", text
    finally:
        comm._native = native
    comm.barrier()
    comm.send(bytes([comm.rank] * 8), (comm.rank + 1) % comm.world_size)
    end = time.monotonic() + TIMEOUT_S
    while buffer != bytes([peer] * 8):
        assert time.monotonic() < end
    comm.barrier()


def views_of_the_caller_stay_usable(comm: Any) -> None:
    view = memoryview(bytearray(8))
    comm.gather([(view, view)], np.zeros(1), root=0) if comm.rank else comm.gather(
        [np.zeros(1) for _ in range(comm.world_size)], np.zeros(1), root=0
    )
    raised(comm.all_gather, [(view, view)], np.zeros(1))
    raised(comm.send, view, comm.rank)
    comm.broadcast(view, 0)
    assert view[0] == 0
    view.release()


def what_cannot_be_used_is_named(comm: Any) -> None:
    released = memoryview(bytearray(8))
    released.release()
    for call in (comm.all_reduce, lambda array: comm.send(array, (comm.rank + 1) % 3)):
        name, text, _ = raised(call, released)
        assert name == "ValueError", text
        assert "this memoryview cannot be used" in text, text


def a_rank_below_zero_is_nobody(comm: Any) -> None:
    name, text, _ = raised(comm.recv, np.zeros(1), -1)
    assert name == "ValueError", text
    assert "recv names rank -1; expected 0 to" in text


def elements_without_memory_are_refused(comm: Any) -> None:
    native = comm.native
    peer = (comm.rank + 1) % comm.world_size
    calls = {
        "send": lambda: native.send_ptr(0, 3, _native.FLOAT32, peer),
        "recv": lambda: native.recv_ptr(0, 3, _native.FLOAT32, peer),
        "all_reduce": lambda: native.all_reduce_ptr(0, 3, _native.FLOAT32, _native.SUM),
        "broadcast": lambda: native.broadcast_ptr(0, 3, _native.FLOAT32, 0),
        "all_gather": lambda: native.all_gather_ptr(
            0, [0] * comm.world_size, [3] * comm.world_size, _native.FLOAT32
        ),
    }
    for call, function in calls.items():
        name, text, _ = raised(function)
        assert name == "ConfigurationError", text
        assert call in text
        assert "without memory behind them" in text
    native.all_reduce_ptr(0, 0, _native.FLOAT32, _native.SUM)


def a_forked_child_cannot_wait_for_its_parents_works(comm: Any) -> None:
    values = np.ones(LARGE)
    received = np.zeros(3)
    if comm.rank == 0:
        works = [comm.recv(received, 1, async_op=True), comm.all_reduce(values, async_op=True)]
        for work in works:
            child = os.fork()
            if child == 0:
                is_told = True
                for call in (work.wait, lambda w=work: w.add_done_callback(print)):
                    name, text, _ = raised(call)
                    is_told = is_told and name == "ConfigurationError"
                    is_told = is_told and "before this process was forked" in text
                os._exit(0 if is_told else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        comm.send(np.zeros(1), 1)
    elif comm.rank == 1:
        comm.recv(np.zeros(1), 0)  # until the children have ended
        comm.send(np.ones(3), 0)
    if comm.rank == 0:
        for work in works:
            work.wait()
        assert received[0] == 1
    else:
        comm.all_reduce(values)
    assert values[0] == comm.world_size


def a_wait_that_ends_first_leaves_the_operation_running(comm: Any) -> None:
    values = np.ones(3)
    if comm.rank != 0:
        comm.recv(np.zeros(1), 0)  # until rank 0 has given up waiting
    work = comm.all_reduce(values, async_op=True)
    if comm.rank == 0:
        name, text, _ = raised(work.wait, 0.1)
        assert name == "CollectiveTimeoutError", text
        assert "the operation goes on" in text
        for peer in range(1, comm.world_size):
            comm.send(np.zeros(1), peer)
    work.wait()
    assert values[0] == comm.world_size


# --- groups --------------------------------------------------------------------------------------


def a_closed_group_leaves_the_array_as_it_is(comm: Any) -> None:
    sub = comm.split(0)
    sub.close()
    values = np.ones(3)
    name, text, _ = raised(sub.all_reduce, values, ReduceOp.PREMUL_SUM, factor=2.0)
    assert name == "ConfigurationError", text
    assert (values == 1).all()


def split_makes_groups_by_color_ordered_by_key(comm: Any) -> None:
    sub = comm.split(comm.rank % 2, key=-comm.rank)
    members = sorted((r for r in range(comm.world_size) if r % 2 == comm.rank % 2), reverse=True)
    assert sub.world_size == len(members)
    assert sub.rank == members.index(comm.rank)
    for count in (3, LARGE):
        values = tagged(comm.rank, count)
        sub.all_reduce(values)
        np.testing.assert_array_equal(values, reduced([tagged(r, count) for r in members]))
    values = np.ones(2)
    comm.all_reduce(values)
    assert values[0] == comm.world_size
    sub.close()


def ranks_without_a_color_get_no_group(comm: Any) -> None:
    sub = comm.split(None if comm.rank == 0 else 5)
    if comm.rank == 0:
        assert sub is None
    else:
        assert (sub.rank, sub.world_size) == (comm.rank - 1, comm.world_size - 1)
        sub.barrier()
        sub.close()
    comm.barrier()


def groups_work_at_the_same_time_from_several_threads(comm: Any) -> None:
    subs = [comm.split(0) for _ in range(3)]
    failures: list[str] = []

    def work(sub: Any, seed: int) -> None:
        for i in range(20):
            values = np.full((i * 977) % 30_000 + 1, seed + sub.rank, np.float64)
            sub.all_reduce(values)
            expected = sum(seed + r for r in range(sub.world_size))
            if set(values.tolist()) != {float(expected)}:
                failures.append(f"group {seed}, round {i}")

    threads = [threading.Thread(target=work, args=(sub, i)) for i, sub in enumerate(subs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert failures == []
    for sub in subs:
        sub.close()


def abort_reaches_every_rank_with_its_reason(comm: Any) -> None:
    sub = comm.split(0)

    def use() -> None:
        sub.barrier()  # over messages rank 1 may be through with it, and abort, before the others
        if comm.rank == 1:
            sub.abort("the disk is full")
        for _ in range(3):
            sub.all_reduce(np.ones(3))

    name, text, _ = raised(use)
    assert name == "PeerLostError", text
    assert "the disk is full" in text
    assert "rank 1 (host" in text
    sub.close()


# --- arrays --------------------------------------------------------------------------------------


def everything_with_the_buffer_protocol_or_dlpack_is_accepted(comm: Any) -> None:
    n = comm.world_size
    plain = array.array("d", [comm.rank, 1.0])
    comm.all_reduce(plain)
    assert list(plain) == [sum(range(n)), n]
    raw = bytearray([1, 2, 3])
    comm.all_reduce(memoryview(raw))
    assert list(raw) == [n, 2 * n, 3 * n]
    gathered = bytearray(2 * n)
    comm.all_gather(gathered, bytes([comm.rank, 7]))
    assert list(gathered) == [byte for r in range(n) for byte in (r, 7)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.complex64):
        tensor = (torch.arange(6).reshape(2, 3) + comm.rank).to(dtype)
        comm.all_reduce(tensor)
        expected = torch.arange(6).reshape(2, 3) * n + sum(range(n))
        assert torch.equal(tensor, expected.to(dtype)), dtype
    shaped = np.ones((2, 3, 4), np.int16)
    comm.all_reduce(shaped)
    assert shaped.shape == (2, 3, 4)
    assert (shaped == n).all()
    scalar = np.array(2.0)
    comm.all_reduce(scalar)
    assert scalar == 2.0 * n


def what_cannot_be_used_is_refused_in_words(comm: Any) -> None:
    """Before anything moves, so the group goes on."""
    n = comm.world_size
    read_only = np.ones(4)
    read_only.flags.writeable = False
    swapped = np.ones(4).astype(np.dtype("float64").newbyteorder(">"))
    cases: list[tuple[Any, str]] = [
        (lambda: comm.all_reduce(np.ones((4, 4)).T[1:]), "contiguous"),
        (lambda: comm.all_reduce(np.ones(8)[::2]), "contiguous"),
        (lambda: comm.all_reduce(read_only), "writable"),
        (lambda: comm.all_reduce(b"read-only"), "writable"),
        (lambda: comm.all_reduce(swapped), "native byte order"),
        (lambda: comm.all_reduce(np.array(["a"])), "expected booleans, integers, floats"),
        (lambda: comm.all_reduce(np.array([object()])), "expected booleans, integers, floats"),
        (lambda: comm.all_reduce([1.0, 2.0]), "a list or tuple is no array"),
        (lambda: comm.all_reduce(None), "is no array"),
        (lambda: comm.all_reduce(torch.ones(4, 4).T), "contiguous"),
        (lambda: comm.all_reduce(torch._neg_view(torch.ones(4))), "resolve_neg()"),
        (lambda: comm.all_reduce(torch.ones(4, dtype=torch.complex64).conj()), "resolve_conj()"),
        (lambda: comm.all_gather(np.ones(n + 1), np.ones(1)), "expected"),
        (lambda: comm.all_gather(np.ones(n, np.int32), np.ones(1)), "element types"),
        (lambda: comm.all_gather([np.ones(1)] * (n + 1), np.ones(1)), "one per rank"),
        (lambda: comm.reduce_scatter(np.ones(2), np.ones(2 * n + 1)), "expected"),
        (lambda: comm.all_to_all(np.ones(n + 1), np.ones(n + 1)), "Pass"),
        (lambda: comm.all_to_all(np.ones(n), np.ones(n), [n], [1] * n), "output_splits"),
        (lambda: comm.all_to_all(np.ones(n), np.ones(n), [1] * n, [2] * n), "input_splits"),
        (lambda: comm.broadcast(np.ones(2), n), "is not a rank of this group"),
        (lambda: comm.broadcast(np.ones(2), -1), "is not a rank of this group"),
    ]
    for call, help_text in cases:
        name, text, bases = raised(call)
        assert "ValueError" in bases, (name, text)
        assert help_text in text, text
    values = np.ones(3)
    comm.all_reduce(values)
    assert values[0] == n


def read_only_arrays_can_be_sent(comm: Any) -> None:
    read_only = tagged(comm.rank, 5)
    read_only.flags.writeable = False
    output = np.zeros(5 * comm.world_size, np.float32)
    comm.all_gather(output, read_only)
    comm.reduce(read_only if comm.rank else read_only.copy(), 0)
    comm.broadcast(read_only if comm.rank == 0 else np.zeros(5, np.float32), 0)
    np.testing.assert_array_equal(output[:5], tagged(0, 5))


CHECKS = {
    name: check
    for name, check in list(globals().items())
    if callable(check)
    and getattr(check, "__module__", "") == __name__
    and not isinstance(check, type)
}


def run_check(rank: int, world_size: int, name: str) -> None:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        CHECKS[name](comm)
        comm.barrier()
