# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What reductions promise about values, as functions that run on every rank.

Every check runs small (one exchange) and large (through staging buffers, or by shares over TCP).
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from tests.conformance.collectives.ranks import (
    COMPLEX,
    DTYPES,
    FLOATS,
    INTEGERS,
    TIMEOUT_S,
    factors,
    raised,
    reduced,
    tagged,
)

COUNTS = (129, 70_001)

BITWISE = ("BAND", "BOR", "BXOR")
ORDERED = ("MIN", "MAX")


def is_supported(op: str, dtype: str) -> bool:
    """The published table: AVG needs numbers, MIN and MAX an order, bitwise operations bits."""
    if op == "AVG":
        return dtype != "bool"
    if op in BITWISE:
        return dtype in (*INTEGERS, "bool")
    if op in ORDERED:
        return dtype not in COMPLEX
    return True


def every_operation_on_every_dtype(comm: Any) -> None:
    from smdistributed.collectives import ReduceOp

    for op in (op.name for op in ReduceOp if op != ReduceOp.PREMUL_SUM):
        for dtype in DTYPES:
            if not is_supported(op, dtype):
                name, text, bases = raised(comm.all_reduce, tagged(0, 3, dtype), ReduceOp[op])
                assert name == "UnsupportedError", (op, dtype)
                assert "NotImplementedError" in bases
                assert f"Cannot reduce {dtype} with {op}; expected one of: " in text, text
                continue
            data = factors if op == "PRODUCT" else tagged
            for count in COUNTS:
                array = data(comm.rank, count, dtype)
                comm.all_reduce(array, ReduceOp[op])
                expected = reduced([data(r, count, dtype) for r in range(comm.world_size)], op)
                if dtype in COMPLEX and op in ("AVG", "PRODUCT"):
                    np.testing.assert_allclose(array, expected, rtol=1e-6, err_msg=f"{op} {dtype}")
                else:
                    np.testing.assert_array_equal(array, expected, err_msg=f"{op} {dtype}")


def reduce_and_reduce_scatter_know_all_operations(comm: Any) -> None:
    from smdistributed.collectives import ReduceOp

    n = comm.world_size
    for op in ReduceOp:
        if op == ReduceOp.PREMUL_SUM:
            continue
        dtype = "float32" if op.name == "AVG" else "int32"
        for count in COUNTS:
            whole = [factors(r, n * count, dtype) for r in range(n)]
            output = np.zeros(count, dtype)
            comm.reduce_scatter(output, whole[comm.rank], op)
            expected = reduced(whole, op.name)
            np.testing.assert_array_equal(output, expected[comm.rank * count :][:count])
            array = whole[comm.rank].copy()
            comm.reduce(array, n - 1, op)
            np.testing.assert_array_equal(
                array, expected if comm.rank == n - 1 else whole[comm.rank]
            )


def premultiplied_sum_scales_each_rank_by_its_own_factor(comm: Any) -> None:
    from smdistributed.collectives import ReduceOp

    n = comm.world_size
    for dtype in ("float16", "float32", "float64"):
        for count in COUNTS:
            array = tagged(comm.rank, count, dtype)
            comm.all_reduce(array, ReduceOp.PREMUL_SUM, factor=0.5 * (comm.rank + 1))
            scaled = [
                tagged(r, count, dtype) * np.dtype(dtype).type(0.5 * (r + 1)) for r in range(n)
            ]
            np.testing.assert_array_equal(array, reduced(scaled))
            whole = tagged(comm.rank, n * count, dtype)
            output = np.zeros(count, dtype)
            comm.reduce_scatter(output, whole, ReduceOp.PREMUL_SUM, factor=2.0)
            np.testing.assert_array_equal(whole, tagged(comm.rank, n * count, dtype))
            parts = [2 * tagged(r, n * count, dtype)[comm.rank * count :][:count] for r in range(n)]
            np.testing.assert_array_equal(output, reduced(parts))


def integers_wrap_around(comm: Any) -> None:
    for dtype in INTEGERS:
        for count in COUNTS:
            array = np.full(count, np.iinfo(dtype).max, dtype)
            comm.all_reduce(array)
            expected = reduced([np.full(count, np.iinfo(dtype).max, dtype)] * comm.world_size)
            np.testing.assert_array_equal(array, expected)


def averages_of_integers_are_divided_towards_zero(comm: Any) -> None:
    """The quotient is one of integers: int64 has numbers that no double has."""
    from smdistributed.collectives import ReduceOp

    n = comm.world_size
    for dtype in INTEGERS:
        # Sums near either end of the type, with every remainder.
        for end, inwards in ((np.iinfo(dtype).min, 1), (np.iinfo(dtype).max, -1)):
            for count in COUNTS:
                steps = np.arange(count) % 5
                arrays = [
                    (end // n + inwards * (1 + (r == 0) * steps)).astype(dtype) for r in range(n)
                ]
                array = arrays[comm.rank].copy()
                comm.all_reduce(array, ReduceOp.AVG)
                np.testing.assert_array_equal(array, reduced(arrays, "AVG"), err_msg=dtype)


def ranks_by_host(comm: Any) -> list[list[int]]:
    """Ranks that share memory, in rank order; one that shares it with nobody is alone."""
    shares = [peer for peer, seen in enumerate(comm.topology()) if seen["transport"] != "tcp"]
    lowest = np.zeros(comm.world_size, np.int64)
    comm.all_gather(lowest, np.array([min(shares)], np.int64))
    return [list(np.flatnonzero(lowest == each)) for each in sorted(set(lowest.tolist()))]


def sums_are_taken_in_rank_order(comm: Any) -> None:
    """The bits are those of one process that adds rank 0, 1, 2, ... of each host, then the hosts.

    No algorithm may show. On one host that is rank 0, 1, 2, ... of the group.
    """
    hosts = ranks_by_host(comm)
    for dtype in ("float32", "float64"):
        for count in (*COUNTS, 3):
            arrays = [np.random.default_rng(r).normal(size=count) for r in range(comm.world_size)]
            arrays = [array.astype(dtype) for array in arrays]
            array = arrays[comm.rank].copy()
            comm.all_reduce(array)
            parts = [reduced([arrays[rank] for rank in ranks]) for ranks in hosts]
            np.testing.assert_array_equal(array, reduced(parts))


def average_of_equal_halves_is_that_half(comm: Any) -> None:
    """60000 x 8 is far beyond float16; an average that summed in float16 would be infinite."""
    from smdistributed.collectives import ReduceOp

    for count in COUNTS:
        array = np.full(count, 60000, np.float16)
        comm.all_reduce(array, ReduceOp.AVG)
        assert set(array.tolist()) == {60000.0}


def a_sum_beyond_float16_is_infinite(comm: Any) -> None:
    for count in COUNTS:
        array = np.full(count, 60000, np.float16)
        comm.all_reduce(array)
        assert np.isposinf(array).all()


def nan_from_one_rank_reaches_all(comm: Any) -> None:
    from smdistributed.collectives import ReduceOp

    for dtype in FLOATS:
        for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT):
            for count in COUNTS:
                array = np.ones(count, dtype)
                if comm.rank == comm.world_size - 1:
                    array[[0, count // 2, count - 1]] = np.nan
                comm.all_reduce(array, op)
                assert list(np.flatnonzero(np.isnan(array))) == [0, count // 2, count - 1], op


def sixteen_bits_accumulate_in_float32(comm: Any) -> None:
    """One rounding at the end: at most half a unit in the last place from the float32 sum."""
    for count in COUNTS:
        halves = [
            np.random.default_rng(r).normal(size=count).astype(np.float16)
            for r in range(comm.world_size)
        ]
        array = halves[comm.rank].copy()
        comm.all_reduce(array)
        np.testing.assert_array_equal(array, reduced(halves))

        # Through DLPack, as NumPy has no bfloat16.
        brains = [torch.from_numpy(half.astype(np.float32)).bfloat16() for half in halves]
        tensor = brains[comm.rank].clone()
        comm.all_reduce(tensor)
        total = brains[0].float()
        for brain in brains[1:]:
            total = total + brain.float()
        assert torch.equal(tensor, total.bfloat16())


CHECKS = {
    check.__name__: check
    for check in (
        every_operation_on_every_dtype,
        reduce_and_reduce_scatter_know_all_operations,
        premultiplied_sum_scales_each_rank_by_its_own_factor,
        integers_wrap_around,
        averages_of_integers_are_divided_towards_zero,
        sums_are_taken_in_rank_order,
        average_of_equal_halves_is_that_half,
        a_sum_beyond_float16_is_infinite,
        nan_from_one_rank_reaches_all,
        sixteen_bits_accumulate_in_float32,
    )
}


def run_check(rank: int, world_size: int, name: str) -> None:
    from smdistributed import collectives

    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        CHECKS[name](comm)
        comm.barrier()


def bits_of_results(rank: int, world_size: int) -> dict[str, str]:
    """Digest of what this rank got, by dtype and size, from data that rounds."""
    from smdistributed import collectives

    digests = {}
    with collectives.init(timeout_s=TIMEOUT_S) as comm:
        for dtype in (*FLOATS, *COMPLEX):
            for count in (1, 7, *COUNTS):
                array = np.random.default_rng(rank).normal(size=count).astype(dtype)
                array[0] = np.nan if count == 7 else array[0]
                comm.all_reduce(array)
                digests[f"{dtype} x {count}"] = hashlib.sha256(array.tobytes()).hexdigest()
    return digests
