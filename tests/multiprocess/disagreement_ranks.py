# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_disagreements.py run: calls on which rank 1 differs from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from engine_ranks import TIMEOUT_S, Heard, must_hear


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

    comm = collectives.init(timeout_s=TIMEOUT_S)

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
