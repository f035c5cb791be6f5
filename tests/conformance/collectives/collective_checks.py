# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each collective promises, as functions that run on every rank.

One job of N ranks makes all checks, and each becomes a test of its own in test_collectives.py: to
start ranks takes longer than to check a collective. No pytest here: ranks would import it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.conformance.collectives.ranks import (
    DTYPES,
    LARGE_COUNT,
    SMALL_COUNTS,
    TIMEOUT_S,
    reduced,
    tagged,
)


def cases(world_size: int) -> Iterator[tuple[int, str]]:
    """Sizes and dtypes: all small pairs, and what needs several rounds for some."""
    for count in SMALL_COUNTS:
        for dtype in DTYPES if count < 4000 else ("float32", "int8"):
            yield count, dtype
    if world_size <= 3:
        yield LARGE_COUNT, "float32"
        yield 130_003, "int8"
    yield 20_011, "complex128"


def all_reduce(comm: Any, count: int, dtype: str) -> None:
    """Every rank gets the sum over all ranks, in place."""
    array = tagged(comm.rank, count, dtype)
    assert comm.all_reduce(array) is None
    np.testing.assert_array_equal(
        array, reduced([tagged(r, count, dtype) for r in range(comm.world_size)])
    )


def reduce(comm: Any, count: int, dtype: str) -> None:
    """The root gets the sum; the others' arrays stay as they are."""
    for root in {0, comm.world_size - 1}:
        array = tagged(comm.rank, count, dtype)
        comm.reduce(array, root)
        expected = tagged(comm.rank, count, dtype)
        if comm.rank == root:
            expected = reduced([tagged(r, count, dtype) for r in range(comm.world_size)])
        np.testing.assert_array_equal(array, expected)


def broadcast(comm: Any, count: int, dtype: str) -> None:
    """Every rank gets the root's array."""
    for root in {0, comm.world_size // 2, comm.world_size - 1}:
        array = tagged(comm.rank, count, dtype)
        comm.broadcast(array, root)
        np.testing.assert_array_equal(array, tagged(root, count, dtype))


def all_gather(comm: Any, count: int, dtype: str) -> None:
    """Every rank gets everyone's array, in rank order."""
    output = np.zeros(comm.world_size * count, dtype)
    comm.all_gather(output, tagged(comm.rank, count, dtype))
    expected = [tagged(r, count, dtype) for r in range(comm.world_size)]
    np.testing.assert_array_equal(output, np.concatenate(expected))


def all_gather_into_lists(comm: Any, count: int, dtype: str) -> None:
    """With a list of outputs the sizes may differ from rank to rank, down to nothing."""
    sizes = [count * (r % 3) + (r == 1) for r in range(comm.world_size)]
    outputs = [np.zeros(size, dtype) for size in sizes]
    comm.all_gather(outputs, tagged(comm.rank, sizes[comm.rank], dtype))
    for r, size in enumerate(sizes):
        np.testing.assert_array_equal(outputs[r], tagged(r, size, dtype))


def all_gather_in_place(comm: Any, count: int, dtype: str) -> None:
    """The input may be this rank's part of the output."""
    output = np.zeros(comm.world_size * count, dtype)
    mine = output[comm.rank * count : (comm.rank + 1) * count]
    mine[:] = tagged(comm.rank, count, dtype)
    comm.all_gather(output, mine)
    expected = [tagged(r, count, dtype) for r in range(comm.world_size)]
    np.testing.assert_array_equal(output, np.concatenate(expected))


def reduce_scatter(comm: Any, count: int, dtype: str) -> None:
    """Each rank gets its part of the sum; inputs stay as they are."""
    whole = [tagged(r, comm.world_size * count, dtype) for r in range(comm.world_size)]
    mine = whole[comm.rank].copy()
    output = np.zeros(count, dtype)
    comm.reduce_scatter(output, mine)
    np.testing.assert_array_equal(
        output, reduced(whole)[comm.rank * count : (comm.rank + 1) * count]
    )
    np.testing.assert_array_equal(mine, whole[comm.rank])


def reduce_scatter_from_lists(comm: Any, count: int, dtype: str) -> None:
    """With a list of inputs the parts may differ in size, down to nothing."""
    sizes = [count * (r % 3) + (r == 1) for r in range(comm.world_size)]
    inputs = [tagged(comm.rank + r, size, dtype) for r, size in enumerate(sizes)]
    output = np.zeros(sizes[comm.rank], dtype)
    comm.reduce_scatter(output, inputs)
    np.testing.assert_array_equal(
        output,
        reduced([tagged(r + comm.rank, sizes[comm.rank], dtype) for r in range(comm.world_size)]),
    )


def all_to_all(comm: Any, count: int, dtype: str) -> None:
    """Part i goes to rank i, part i comes from rank i."""
    n = comm.world_size
    inputs = np.concatenate([tagged(comm.rank + r, count, dtype) for r in range(n)])
    output = np.zeros(n * count, dtype)
    comm.all_to_all(output, inputs)
    expected = np.concatenate([tagged(r + comm.rank, count, dtype) for r in range(n)])
    np.testing.assert_array_equal(output, expected)


def all_to_all_with_splits(comm: Any, count: int, dtype: str) -> None:
    """Split sizes may differ for every pair; lists of arrays mean the same."""
    n = comm.world_size

    def size(sender: int, receiver: int) -> int:
        return count * ((sender + 2 * receiver) % 3) // 2

    sent = [size(comm.rank, r) for r in range(n)]
    received = [size(r, comm.rank) for r in range(n)]
    parts = [tagged(comm.rank + 2 * r, sent[r], dtype) for r in range(n)]
    expected = [tagged(r + 2 * comm.rank, received[r], dtype) for r in range(n)]
    output = np.zeros(sum(received), dtype)
    comm.all_to_all(output, np.concatenate(parts), received, sent)
    np.testing.assert_array_equal(output, np.concatenate(expected))
    outputs = [np.zeros(k, dtype) for k in received]
    comm.all_to_all(outputs, parts)
    for output, part in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output, part)


def gather(comm: Any, count: int, dtype: str) -> None:
    """The root gets everyone's array, in rank order; the others pass no output."""
    for root in {0, comm.world_size - 1}:
        output = np.zeros(comm.world_size * count, dtype) if comm.rank == root else None
        comm.gather(output, tagged(comm.rank, count, dtype), root)
        if output is not None:
            expected = [tagged(r, count, dtype) for r in range(comm.world_size)]
            np.testing.assert_array_equal(output, np.concatenate(expected))


def scatter(comm: Any, count: int, dtype: str) -> None:
    """Each rank gets its part of the root's input; the others pass no input."""
    for root in {0, comm.world_size - 1}:
        parts = [tagged(r, count, dtype) for r in range(comm.world_size)]
        output = np.zeros(count, dtype)
        comm.scatter(output, parts if comm.rank == root else None, root)
        np.testing.assert_array_equal(output, parts[comm.rank])


def send_and_recv(comm: Any, count: int, dtype: str) -> None:
    """Everyone sends to the next rank; what arrives names its source."""
    n = comm.world_size
    if n == 1:
        return
    before, after = (comm.rank - 1) % n, (comm.rank + 1) % n
    output = np.zeros(count, dtype)
    work = comm.send(tagged(comm.rank, count, dtype), after, tag=3, async_op=True)
    assert comm.recv(output, before, tag=3) == before
    work.wait()
    np.testing.assert_array_equal(output, tagged(before, count, dtype))


CHECKS: dict[str, Callable[[Any, int, str], None]] = {
    check.__name__: check
    for check in (
        all_reduce,
        reduce,
        broadcast,
        all_gather,
        all_gather_into_lists,
        all_gather_in_place,
        reduce_scatter,
        reduce_scatter_from_lists,
        all_to_all,
        all_to_all_with_splits,
        gather,
        scatter,
        send_and_recv,
    )
}


def run_all(rank: int, world_size: int) -> tuple[str, dict[str, str]]:
    """The transport used, and what went wrong by check ("" for nothing).

    Each check has a group of its own, so that one that fails does not spoil the next.
    """
    from smdistributed import collectives

    found = {}
    with collectives.init(timeout_s=TIMEOUT_S) as world:
        for name, check in CHECKS.items():
            found[name] = ""
            comm = world.split(0)
            assert comm is not None
            with comm:
                try:
                    for count, dtype in cases(world_size):
                        check(comm, count, dtype)
                except Exception:
                    found[name] = f"{count} x {dtype}: {traceback.format_exc()}"
                    comm.abort(f"{name} failed on rank {rank}")
            world.barrier()
        return str(world.topology()[(rank + 1) % world_size]["transport"]), found


def run_with_forced_algorithm(rank: int, world_size: int) -> None:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        assert "SMDDP_ALGORITHM" in comm.explain("all_reduce", 64), "the setting must take effect"
        for count in (0, 1, 129, 70_001):
            for check in (all_reduce, reduce, broadcast, all_gather, reduce_scatter):
                check(comm, count, "float32")


def odd_sizes_around_25_mib(rank: int, world_size: int) -> None:
    from smdistributed import collectives

    count = (25 << 20) // 4
    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        for odd in (count - 1, count, count + 1):
            base = (np.arange(odd, dtype=np.int32) & 1023).astype(np.float32)
            array = base + rank
            comm.all_reduce(array)
            assert np.array_equal(array, 2 * base + 1)
            comm.broadcast(array, 1)
            output = np.zeros(2 * odd, np.float32)
            comm.all_gather(output, base + rank)
            assert np.array_equal(output[:odd], base)
            assert np.array_equal(output[odd:], base + 1)


def beyond_32_bits(rank: int, world_size: int) -> None:
    from smdistributed import collectives

    count = 2**31 + 65
    with collectives.init(timeout_s=100) as comm:
        array = np.zeros(count, np.int8)
        marks = np.array([0, 2**31 - 1, 2**31, count - 1])
        array[marks] = rank + 1
        comm.all_reduce(array)
        assert list(array[marks]) == [3, 3, 3, 3]
        assert int(np.count_nonzero(array)) == len(marks)
        if rank == 0:
            array[marks] = 7
        comm.broadcast(array, 0)
        assert list(array[marks]) == [7, 7, 7, 7]
