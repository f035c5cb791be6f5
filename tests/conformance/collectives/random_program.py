# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a program of collectives on every rank and compares each step with NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.conformance.collectives.ranks import TIMEOUT_S, factors, reduced

REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
MOVEMENTS = ("broadcast", "all_gather", "all_to_all", "gather", "scatter", "send_recv")


@dataclasses.dataclass(frozen=True)
class Step:
    """One collective, as every rank makes it.

    Attributes:
        count: elements of the smallest part.
        root: taken modulo the world size.
    """

    collective: str
    count: int
    dtype: str
    op: str
    root: int
    is_async: bool


def run_program(rank: int, world_size: int, steps: list[Step]) -> None:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        pending: list[tuple[Step, Any, Any, Any]] = []
        for number, step in enumerate(steps):
            work, output, expected = _start(comm, step, number)
            if work is None:
                _compare(step, output, expected)
            else:
                pending.append((step, work, output, expected))
        for step, work, output, expected in pending:
            work.wait()
            _compare(step, output, expected)


def _compare(step: Step, output: Any, expected: Any) -> None:
    np.testing.assert_array_equal(output, expected, err_msg=str(step))


def _start(comm: Any, step: Step, number: int) -> tuple[Any, Any, Any]:
    """(work or None, what will hold the result, what the result must be)."""
    from smdistributed.collectives import ReduceOp

    n, rank, root = comm.world_size, comm.rank, step.root % comm.world_size

    def data(of_rank: int, parts: int = 1) -> Any:
        return factors(of_rank + number, step.count * parts, step.dtype)

    def part(of: Any, index: int) -> Any:
        return of[index * step.count : (index + 1) * step.count]

    options: dict[str, Any] = {"async_op": step.is_async}
    everyone = [data(r) for r in range(n)]
    output = data(rank)
    if step.collective in REDUCTIONS:
        op = ReduceOp[step.op]
        if step.collective == "all_reduce":
            return comm.all_reduce(output, op, **options), output, reduced(everyone, step.op)
        if step.collective == "reduce":
            expected = reduced(everyone, step.op) if rank == root else everyone[rank]
            return comm.reduce(output, root, op, **options), output, expected
        whole = [data(r, n) for r in range(n)]
        work = comm.reduce_scatter(output, whole[rank], op, **options)
        return work, output, part(reduced(whole, step.op), rank)
    if step.collective == "broadcast":
        return comm.broadcast(output, root, **options), output, everyone[root]
    if step.collective == "all_gather":
        output = np.zeros(n * step.count, step.dtype)
        return comm.all_gather(output, data(rank), **options), output, np.concatenate(everyone)
    if step.collective == "all_to_all":
        output = np.zeros(n * step.count, step.dtype)
        expected = np.concatenate([part(data(r, n), rank) for r in range(n)])
        return comm.all_to_all(output, data(rank, n), **options), output, expected
    if step.collective == "gather":
        output = np.zeros(n * step.count if rank == root else 0, step.dtype)
        work = comm.gather(output if rank == root else None, data(rank), root, **options)
        return work, output, np.concatenate(everyone) if rank == root else output
    if step.collective == "scatter":
        work = comm.scatter(output, data(root, n) if rank == root else None, root, **options)
        return work, output, part(data(root, n), rank)
    output = np.zeros(step.count, step.dtype)
    comm.send(data(rank), (rank + 1) % n, tag=number, async_op=True)
    work = comm.recv(output, (rank - 1) % n, tag=number, **options)
    return (work if step.is_async else None), output, everyone[(rank - 1) % n]
