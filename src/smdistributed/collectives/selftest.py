# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Does communication work here, and how fast? A short answer to paste into an issue.

    smddprun --check                                              # two processes on this host
    smddprun -np 4 python -m smdistributed.collectives.selftest   # or under any other launcher

Every rank joins from the environment, runs each collective on arrays of several sizes and compares
the result with what one process computes. Then latency and bandwidth are measured for a moment.
Rank 0 prints the table. The exit status is 0 only if all ranks agree that everything was right.

Source: our choice.
"""

import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from smdistributed._common.errors import SmdistributedError
from smdistributed.collectives import Communicator, ReduceOp, _native, init

__all__ = ["CHECKS", "main"]

Data = NDArray[np.float32]

# Elements: empty, one, what rides along with a single flag, just above a cache line of it, several
# rounds through the staging buffers with a rest.
_COUNTS = (0, 1, 6, 1021, 65_537, 700_001)
_TIMEOUT_S = 60.0

# Bytes of float32, calls per sample. All samples together take about two seconds.
_TIMINGS = ((4, 300), (4 << 10, 300), (64 << 10, 100), (1 << 20, 20), (25 << 20, 2))
_SAMPLES = 5
_MIN_SHARED_BYTES = 64 << 10  # tensors below are not moved into shared memory


def main() -> int:
    """Run the self-test on this rank.

    Returns:
        0 if this rank and all others found everything right, else 1.
    """
    try:
        comm = init(name="selftest", timeout_s=_TIMEOUT_S)
    except (SmdistributedError, OSError) as error:
        print(f"self-test: FAILED to join: {error}", file=sys.stderr, flush=True)
        return 1
    with comm:
        try:
            failures = _run_checks(comm)
            if comm.rank == 0:
                _print_ranks(comm)
            # What is wrong is not worth measuring.
            if _sum(comm, len(failures)) == 0:
                _print_timings(comm)
        except SmdistributedError as error:
            print(f"self-test: FAILED on rank {comm.rank}: {error}", file=sys.stderr, flush=True)
            return 1
        for failure in failures:
            print(f"self-test: FAILED on rank {comm.rank}: {failure}", file=sys.stderr, flush=True)
        return 0 if _sum(comm, len(failures)) == 0 else 1


def _data(rank: int, count: int) -> Data:
    """Elements that tell their rank and index, small enough to sum without rounding."""
    return (np.arange(count) % 97 + 100 * rank).astype(np.float32)


def _all_reduce(comm: Communicator, count: int) -> tuple[Data, Data]:
    array = _data(comm.rank, count)
    comm.all_reduce(array)
    return array, np.sum([_data(r, count) for r in range(comm.world_size)], axis=0)


def _all_reduce_maximum(comm: Communicator, count: int) -> tuple[Data, Data]:
    array = _data(comm.rank, count)
    comm.all_reduce(array, ReduceOp.MAX)
    return array, _data(comm.world_size - 1, count)


def _reduce(comm: Communicator, count: int) -> tuple[Data, Data]:
    array = _data(comm.rank, count)
    root = comm.world_size - 1
    comm.reduce(array, root, ReduceOp.AVG)
    if comm.rank != root:
        return array, _data(comm.rank, count)
    return array, np.mean([_data(r, count) for r in range(comm.world_size)], axis=0)


def _broadcast(comm: Communicator, count: int) -> tuple[Data, Data]:
    array = _data(comm.rank, count)
    root = comm.world_size // 2
    comm.broadcast(array, root)
    return array, _data(root, count)


def _all_gather(comm: Communicator, count: int) -> tuple[Data, Data]:
    output = np.empty(count * comm.world_size, np.float32)
    comm.all_gather(output, _data(comm.rank, count))
    return output, np.concatenate([_data(r, count) for r in range(comm.world_size)])


def _reduce_scatter(comm: Communicator, count: int) -> tuple[Data, Data]:
    whole = count * comm.world_size
    output = np.empty(count, np.float32)
    comm.reduce_scatter(output, _data(comm.rank, whole))
    total: Data = np.sum([_data(r, whole) for r in range(comm.world_size)], axis=0)
    return output, total[comm.rank * count :][:count]


def _all_to_all(comm: Communicator, count: int) -> tuple[Data, Data]:
    whole = count * comm.world_size
    output = np.empty(whole, np.float32)
    comm.all_to_all(output, _data(comm.rank, whole))
    mine = slice(comm.rank * count, (comm.rank + 1) * count)
    return output, np.concatenate([_data(r, whole)[mine] for r in range(comm.world_size)])


def _gather(comm: Communicator, count: int) -> tuple[Data, Data]:
    output = np.empty(count * comm.world_size, np.float32) if comm.rank == 0 else None
    comm.gather(output, _data(comm.rank, count))
    if output is None:
        return np.empty(0, np.float32), np.empty(0, np.float32)
    return output, np.concatenate([_data(r, count) for r in range(comm.world_size)])


def _scatter(comm: Communicator, count: int) -> tuple[Data, Data]:
    whole = _data(0, count * comm.world_size)
    output = np.empty(count, np.float32)
    comm.scatter(output, whole if comm.rank == 0 else None)
    return output, whole[comm.rank * count :][:count]


def _send_recv(comm: Communicator, count: int) -> tuple[Data, Data]:
    """Everyone sends to the next rank."""
    output = np.empty(count, np.float32)
    if comm.world_size == 1:
        return _data(0, count), _data(0, count)
    before = (comm.rank - 1) % comm.world_size
    after = (comm.rank + 1) % comm.world_size
    sent = comm.send(_data(comm.rank, count), after, tag=1, async_op=True)
    comm.recv(output, before, tag=1)
    assert sent is not None, "an asynchronous call returns its work"
    sent.wait()
    return output, _data(before, count)


# By name: what the collective gave, and what it should have given.
CHECKS: dict[str, Callable[[Communicator, int], tuple[Data, Data]]] = {
    "all_reduce": _all_reduce,
    "all_reduce(MAX)": _all_reduce_maximum,
    "reduce(AVG)": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "send/recv": _send_recv,
}


def _run_checks(comm: Communicator) -> list[str]:
    """Every rank makes every call, wrong results or not, so that ranks stay in step."""
    failures = []
    for name, check in CHECKS.items():
        for count in _COUNTS:
            given, expected = check(comm, count)
            # Averages divide, and may do so in another order of rounding.
            if not np.allclose(given, expected, rtol=1e-6):
                wrong = np.flatnonzero(~np.isclose(given, expected, rtol=1e-6))
                failures.append(
                    f"{name} of float32 x {count}: {wrong.size} wrong elements, the first at "
                    f"{wrong[0]}: {given[wrong[0]]}; expected {expected[wrong[0]]}. Please report "
                    "this with the whole output."
                )
    comm.barrier()
    return failures


def _sum(comm: Communicator, value: int) -> int:
    array = np.array([value], np.int64)
    comm.all_reduce(array)
    return int(array[0])


def _print_ranks(comm: Communicator) -> None:
    print(
        f"{comm.world_size} ranks; kernels {_native.kernel_set()}; {_native.usable_cores()} cores "
        f"usable by rank 0; checked {len(CHECKS)} collectives x {len(_COUNTS)} sizes"
    )
    print(f"{'rank':>4}  {'host':<20} {'pid':>8}  from rank 0 by")
    for rank, peer in enumerate(comm.topology()):
        print(f"{rank:>4}  {peer['host']:<20} {peer['pid']:>8}  {peer['transport']}")
    sys.stdout.flush()


def _print_timings(comm: Communicator) -> None:
    if comm.rank == 0:
        print(f"{'all_reduce float32':<20} {'best':>12} {'median':>12} {'data':>12}  algorithm")
    for size_bytes, calls in _TIMINGS:
        array = np.zeros(size_bytes // 4, np.float32)
        _print_timing(comm, array, calls, comm.explain("all_reduce", size_bytes))
    for size_bytes, calls in _TIMINGS:
        if size_bytes < _MIN_SHARED_BYTES:
            continue
        memory = comm.allocate_shared(size_bytes)
        if _sum(comm, memory is None) or memory is None:
            if comm.rank == 0:
                print("zero copy: NO, the ranks have no memory in common (or no room in it)")
            return
        _print_timing(comm, memory.view(np.float32), calls, "zero copy: arrays in shared memory")


def _print_timing(comm: Communicator, array: Data, calls: int, how: str) -> None:
    samples_s = sorted(_time_all_reduce(comm, array, calls) for _ in range(_SAMPLES))
    if comm.rank == 0:
        best_s, median_s = samples_s[0], samples_s[_SAMPLES // 2]
        print(
            f"{_bytes_text(array.nbytes):<20} {best_s * 1e6:>9.1f} us {median_s * 1e6:>9.1f} us "
            f"{array.nbytes / median_s / 1e9:>7.2f} GB/s  {how}",
            flush=True,
        )


def _time_all_reduce(comm: Communicator, array: Data, calls: int) -> float:
    """Seconds per call."""
    comm.all_reduce(array)  # warms up
    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        comm.all_reduce(array)
    return (time.perf_counter() - start) / calls


def _bytes_text(size_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


if __name__ == "__main__":
    sys.exit(main())
