# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed collectives through `smddp`, compared with one-process arithmetic."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch_ranks import smddp, tagged

# Ranks that truly run at the same time, with all processors to themselves.
pytestmark = pytest.mark.quiet

SIZES = [0, 1, 127, 128, 129, 4097]
REDUCIBLE = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]
INTEGERS = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
# As bytes: what nothing can reduce must still travel.
MOVED_ONLY = [torch.float8_e4m3fn, torch.float8_e5m2]


def _sum_in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum over ranks; small integers, so exact in every dtype and any order."""
    dtype = parts[0].dtype
    if dtype == torch.bool:
        return torch.stack(parts).any(dim=0)
    return torch.stack([part.double() for part in parts]).sum(dim=0).to(dtype)


def all_reduce_sums(rank: int, world_size: int) -> None:
    with smddp():
        for dtype in REDUCIBLE:
            for count in SIZES:
                tensor = tagged(rank, count, dtype)
                expected = _sum_in_order([tagged(r, count, dtype) for r in range(world_size)])
                dist.all_reduce(tensor)
                assert torch.equal(tensor, expected), (dtype, count)
                tensor = tagged(rank, count, dtype)
                work = dist.all_reduce(tensor, async_op=True)
                assert work is not None
                work.wait()
                assert work.is_completed()
                assert work.exception() is None
                assert torch.equal(tensor, expected), ("async", dtype, count)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_all_reduce_sums_every_dtype_and_size(world_size: int) -> None:
    run_ranks(all_reduce_sums, world_size, deadline_s=120)


def all_reduce_operations(rank: int, world_size: int) -> None:
    op = dist.ReduceOp
    with smddp():
        parts = [tagged(r, 129, torch.float64) for r in range(world_size)]
        stacked = torch.stack(parts)
        floats: list[tuple[Any, torch.Tensor]] = [
            (op.AVG, stacked.mean(dim=0)),
            (op.MIN, stacked.min(dim=0).values),
            (op.MAX, stacked.max(dim=0).values),
            (op.PRODUCT, stacked.prod(dim=0)),
            (dist._make_nccl_premul_sum(0.5), (0.5 * stacked).sum(dim=0)),
        ]
        for reduce_op, expected in floats:
            tensor = parts[rank].clone()
            dist.all_reduce(tensor, op=reduce_op)
            torch.testing.assert_close(tensor, expected, rtol=1e-15, atol=0)
        integers = [tagged(r, 129, torch.int32) for r in range(world_size)]
        for reduce_op, function in (
            (op.BAND, torch.bitwise_and),
            (op.BOR, torch.bitwise_or),
            (op.BXOR, torch.bitwise_xor),
        ):
            tensor = integers[rank].clone()
            dist.all_reduce(tensor, op=reduce_op)
            expected = integers[0]
            for other in integers[1:]:
                expected = function(expected, other)
            assert torch.equal(tensor, expected), reduce_op
        complex_parts = [torch.complex(part, -part) for part in parts]
        tensor = complex_parts[rank].clone()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.stack(complex_parts).sum(dim=0))


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_reduce_operations(world_size: int) -> None:
    run_ranks(all_reduce_operations, world_size)


def _whole_numbers(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` elements whose sum over up to 3 ranks fits into 8 bits and is no multiple of them."""
    indices = torch.arange(count) % 41 - (20 if dtype.is_signed else 0)
    return (indices * (rank + 1) + (rank == 0)).to(dtype)


def integer_averages(rank: int, world_size: int) -> None:
    others = range(world_size)
    beyond_double = 2**53 + 1
    with smddp():
        for dtype in INTEGERS:
            for count in (1, 129, 70_001):
                parts = [_whole_numbers(r, count, dtype) for r in others]
                total = torch.stack([part.to(torch.int64) for part in parts]).sum(dim=0)
                expected = total.div(world_size, rounding_mode="trunc").to(dtype)
                mine = parts[rank].clone()
                dist.all_reduce(mine, op=dist.ReduceOp.AVG)
                assert torch.equal(mine, expected), (dtype, count)
                mine = parts[rank].clone()
                work = dist.all_reduce(mine, op=dist.ReduceOp.AVG, async_op=True)
                assert work is not None
                work.wait()
                assert torch.equal(mine, expected), ("async", dtype, count)
                mine = parts[rank].clone()
                dist.reduce(mine, dst=0, op=dist.ReduceOp.AVG)
                assert torch.equal(mine, expected if rank == 0 else parts[rank])
                output = torch.empty(count, dtype=dtype)
                dist.reduce_scatter_single(
                    output, torch.cat([parts[rank]] * world_size), op=dist.ReduceOp.AVG
                )
                assert torch.equal(output, expected), ("reduce_scatter", dtype, count)
        mine = torch.tensor([beyond_double, -beyond_double])
        dist.all_reduce(mine, op=dist.ReduceOp.AVG)
        assert mine.tolist() == [beyond_double, -beyond_double]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_average_of_integers_is_divided_towards_zero(world_size: int) -> None:
    """As over NCCL, and as Lightning expects; Gloo refuses averages, so this is our choice."""
    run_ranks(integer_averages, world_size, deadline_s=240)


def half_average_near_overflow(rank: int, world_size: int) -> None:
    with smddp():
        tensor = torch.full((1000,), 60000.0, dtype=torch.float16)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert torch.equal(tensor, torch.full((1000,), 60000.0, dtype=torch.float16))
        tensor = torch.zeros(1000)
        if rank == 1:
            tensor[500] = float("nan")
        dist.all_reduce(tensor)
        assert tensor.isnan().nonzero().flatten().tolist() == [500]


def test_half_average_does_not_overflow_and_nan_reaches_all() -> None:
    """Source: dataparallel specification, section 12, point 4."""
    run_ranks(half_average_near_overflow, 8, deadline_s=120)


def list_collectives(rank: int, world_size: int) -> None:
    others = range(world_size)
    with smddp():
        for dtype in [torch.float32, torch.int16, torch.bool, *MOVED_ONLY]:
            for count in (0, 1, 129):
                mine = tagged(rank, count, dtype)

                tensor = tagged(rank, count, dtype)
                dist.broadcast(tensor, src=world_size - 1)
                _same(tensor, tagged(world_size - 1, count, dtype))

                outputs = [torch.empty(count, dtype=dtype) for _ in others]
                dist.all_gather(outputs, mine)
                for r in others:
                    _same(outputs[r], tagged(r, count, dtype))

                output = torch.empty(world_size * count, dtype=dtype)
                dist.all_gather_single(output, mine)
                _same(output, torch.cat([tagged(r, count, dtype) for r in others]))

                gathered = [torch.empty(count, dtype=dtype) for _ in others] if rank == 0 else None
                dist.gather(mine, gathered, dst=0)
                for r, tensor in enumerate(gathered or []):
                    _same(tensor, tagged(r, count, dtype))

                shares = [tagged(10 + r, count, dtype) for r in others] if rank == 0 else None
                tensor = torch.empty(count, dtype=dtype)
                dist.scatter(tensor, shares, src=0)
                _same(tensor, tagged(10 + rank, count, dtype))

                # Rank r sends r -> p the tag of 3r + p.
                inputs = [tagged(3 * rank + p, count, dtype) for p in others]
                outputs = [torch.empty(count, dtype=dtype) for _ in others]
                dist.all_to_all(outputs, inputs)
                for r in others:
                    _same(outputs[r], tagged(3 * r + rank, count, dtype))


def _same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_gather_and_scatter_forms_move_every_kind_of_dtype(world_size: int) -> None:
    run_ranks(list_collectives, world_size, deadline_s=120)


def uneven_shares(rank: int, world_size: int) -> None:
    others = range(world_size)
    with smddp():
        outputs = [torch.empty(r, 3) for r in others]
        dist.all_gather(outputs, tagged(rank, 3 * rank).view(rank, 3))
        for r in others:
            assert torch.equal(outputs[r], tagged(r, 3 * r).view(r, 3))

        # Input i of rank r has i + 1 elements; rank i receives the sum of the inputs i.
        inputs = [tagged(rank + i, i + 1) for i in others]
        output = torch.empty(rank + 1)
        dist.reduce_scatter(output, inputs)
        assert torch.equal(output, _sum_in_order([tagged(r + rank, rank + 1) for r in others]))

        # Rank r sends p + 1 rows to rank p, so it receives r + 1 rows from each.
        splits = [p + 1 for p in others]
        mine = torch.stack([tagged(rank, 2) * (p + 1) for p in others for _ in range(p + 1)])
        output = torch.empty(world_size * (rank + 1), 2)
        dist.all_to_all_single(output, mine, [rank + 1] * world_size, splits)
        expected = [tagged(r, 2) * (rank + 1) for r in others for _ in range(rank + 1)]
        assert torch.equal(output, torch.stack(expected))


@pytest.mark.parametrize("world_size", [2, 3])
def test_uneven_shares(world_size: int) -> None:
    run_ranks(uneven_shares, world_size)


def reductions_to_one(rank: int, world_size: int) -> None:
    others = range(world_size)
    with smddp():
        for root in others:
            tensor = tagged(rank, 129)
            dist.reduce(tensor, dst=root)
            total = _sum_in_order([tagged(r, 129) for r in others])
            # Documented by us, stronger than torch: other ranks keep their values.
            assert torch.equal(tensor, total if rank == root else tagged(rank, 129))
        output = torch.empty(129)
        mine = torch.cat([tagged(rank + p, 129) for p in others])
        expected = _sum_in_order([tagged(r + rank, 129) for r in others])
        dist.reduce_scatter_single(output, mine)
        assert torch.equal(output, expected)
        dist.reduce_scatter_single(output, mine, op=dist.ReduceOp.AVG)
        torch.testing.assert_close(output, expected / world_size, rtol=1e-6, atol=0)


@pytest.mark.parametrize("world_size", [2, 3])
def test_reductions_to_one(world_size: int) -> None:
    run_ranks(reductions_to_one, world_size)


def coalesced_forms(rank: int, world_size: int) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    others = range(world_size)
    counts = [1, 129, 0, 4097]
    with smddp(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        tensors = [tagged(rank, count) for count in counts]
        dist.all_reduce_coalesced(tensors)
        for tensor, count in zip(tensors, counts, strict=True):
            assert torch.equal(tensor, _sum_in_order([tagged(r, count) for r in others]))

        lists = [[torch.empty(count) for count in counts] for _ in others]
        dist.all_gather_coalesced(lists, [tagged(rank, count) for count in counts])
        for r in others:
            for tensor, count in zip(lists[r], counts, strict=True):
                assert torch.equal(tensor, tagged(r, count))

        tensors = [tagged(rank, count) for count in counts]
        with _coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        outputs = [torch.empty(world_size * count) for count in counts]
        with _coalescing_manager():
            for output, count in zip(outputs, counts, strict=True):
                dist.all_gather_single(output, tagged(rank, count))
        shares = [torch.empty(count) for count in counts]
        with _coalescing_manager(device=torch.device("cpu")):
            for share, output in zip(shares, outputs, strict=True):
                dist.reduce_scatter_single(share, output)
        for tensor, output, share, count in zip(tensors, outputs, shares, counts, strict=True):
            everything = [tagged(r, count) for r in others]
            assert torch.equal(tensor, _sum_in_order(everything))
            assert torch.equal(output, torch.cat(everything))
            assert torch.equal(share, world_size * tagged(rank, count))


@pytest.mark.parametrize("world_size", [2, 3])
def test_coalesced_forms(world_size: int) -> None:
    run_ranks(coalesced_forms, world_size)


def handle_of_several(rank: int, world_size: int) -> None:
    """What `batch_isend_irecv` and the coalescing manager hand out."""
    cpu = torch.device("cpu")
    mine, theirs = tagged(rank, 5), torch.empty(5)
    with smddp():
        group = dist.group.WORLD
        group._start_coalescing(cpu)
        group.send([mine], (rank + 1) % world_size, 3)
        group.recv([theirs], (rank - 1) % world_size, 3)
        work = group._end_coalescing(cpu)
        future = work.get_future()
        work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        for result in (work.result(), future.wait()):
            assert [tensor.data_ptr() for tensor in result] == [mine.data_ptr(), theirs.data_ptr()]
        assert torch.equal(theirs, tagged((rank - 1) % world_size, 5))


def test_handle_of_several() -> None:
    run_ranks(handle_of_several, 2)


def functional_collectives(rank: int, world_size: int) -> None:
    import torch.distributed._functional_collectives as functional

    group = list(range(world_size))
    with smddp():
        mine = tagged(rank, 6)
        total = _sum_in_order([tagged(r, 6) for r in group])
        everything = torch.cat([tagged(r, 6) for r in group])
        assert torch.equal(functional.all_reduce(mine, "sum", group).wait(), total)
        assert torch.equal(mine, tagged(rank, 6)), "functional forms must not change their input"
        gathered = functional.all_gather_tensor(mine, 0, group)
        assert torch.equal(gathered + 0, everything)
        scattered = functional.reduce_scatter_tensor(everything, "sum", 0, group)
        assert torch.equal(scattered + 0, world_size * tagged(rank, 6))
        assert torch.equal(functional.broadcast(mine, 0, group) + 0, tagged(0, 6))
        first, second = functional.all_reduce_coalesced([mine, 2 * mine], "sum", group)
        assert torch.equal(first + 0, total)
        assert torch.equal(second + 0, 2 * total)
        pair = functional.all_gather_into_tensor_coalesced([mine, 2 * mine], group)
        assert torch.equal(pair[0] + 0, everything)
        assert torch.equal(pair[1] + 0, 2 * everything)
        pair = functional.reduce_scatter_tensor_coalesced(
            [everything, 2 * everything], "sum", [0, 0], group
        )
        assert torch.equal(pair[0] + 0, world_size * mine)
        exchanged = functional.all_to_all_single(everything, None, None, group)
        assert torch.equal(exchanged + 0, torch.cat([tagged(rank, 6)] * world_size))


def test_functional_collectives() -> None:
    run_ranks(functional_collectives, 2)


def dense_but_not_contiguous(rank: int, world_size: int) -> None:
    others = range(world_size)
    with smddp():
        image = tagged(rank, 2 * 3 * 4 * 5).view(2, 3, 4, 5)
        image = image.to(memory_format=torch.channels_last)
        dist.all_reduce(image)
        total = _sum_in_order([tagged(r, 120) for r in others]).view(2, 3, 4, 5)
        assert torch.equal(image, total)
        assert image.is_contiguous(memory_format=torch.channels_last)

        outputs = [torch.zeros(12)[::2] for _ in others]
        dist.all_gather(outputs, torch.arange(12.0)[::2] + rank)
        for r in others:
            assert torch.equal(outputs[r], torch.arange(12.0)[::2] + r)
        output = torch.zeros(4)[::2]
        work = dist.scatter(
            output, [tagged(r, 2) for r in others] if rank == 0 else None, src=0, async_op=True
        )
        work.wait()
        assert torch.equal(output, tagged(rank, 2)), "the copy back must have happened in wait()"
        output = torch.zeros(4)[::2]
        future = dist.reduce_scatter_single(
            output, torch.ones(2 * world_size), async_op=True
        ).get_future()
        future.wait()
        assert output.tolist() == [world_size] * 2, "the copy back must have happened in the future"


def test_tensors_with_other_strides() -> None:
    run_ranks(dense_but_not_contiguous, 2)


def sparse_sum(rank: int, world_size: int) -> None:
    with smddp():
        for shape in [(6,), (6, 2)]:
            dense = torch.zeros(shape)
            dense[rank], dense[3] = rank + 1, 1
            tensor = dense.to_sparse(sparse_dim=1)
            dist.all_reduce(tensor)
            expected = torch.zeros(shape)
            for r in range(world_size):
                expected[r] += r + 1
            expected[3] += world_size
            assert tensor.is_coalesced()
            assert torch.equal(tensor.to_dense(), expected)
        empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), [], (4,))
        work = dist.all_reduce(empty, async_op=True)
        work.wait()
        assert empty._nnz() == 0


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sparse_tensors_add_up(world_size: int) -> None:
    run_ranks(sparse_sum, world_size)


def short_forms(rank: int, world_size: int) -> None:
    with smddp():
        group = dist.group.WORLD
        assert group is not None
        tensor = tagged(rank, 3)
        group.allreduce(tensor, op=dist.ReduceOp.MAX).wait()
        assert torch.equal(tensor, tagged(world_size - 1, 3))
        tensor = tagged(rank, 3)
        group.allreduce([tensor]).wait()
        assert torch.equal(tensor, _sum_in_order([tagged(r, 3) for r in range(world_size)]))
        tensor = tagged(rank, 3)
        group.broadcast(tensor, root=1).wait()
        assert torch.equal(tensor, tagged(1, 3))
        outputs = [torch.empty(3) for _ in range(world_size)]
        group.allgather(outputs, tagged(rank, 3)).wait()
        assert torch.equal(outputs[-1], tagged(world_size - 1, 3))
        group.barrier().wait()


def test_short_forms_of_the_group_methods() -> None:
    run_ranks(short_forms, 2)


def objects(rank: int, world_size: int) -> None:
    mine = {"rank": rank, "text": "x" * (100 * rank)}
    theirs = [{"rank": r, "text": "x" * (100 * r)} for r in range(world_size)]
    with smddp():
        everything: list[Any] = [None] * world_size
        dist.all_gather_object(everything, mine)
        assert everything == theirs
        broadcast = [mine]
        dist.broadcast_object_list(broadcast, src=1)
        assert broadcast == [theirs[1]]
        gathered = [None] * world_size if rank == 0 else None
        dist.gather_object(mine, gathered, dst=0)
        assert gathered == (theirs if rank == 0 else None)
        scattered: list[Any] = [None]
        dist.scatter_object_list(scattered, theirs if rank == 0 else None, src=0)
        assert scattered == [mine]
        if rank == 0:
            dist.send_object_list([mine], dst=1)
        elif rank == 1:
            received: list[Any] = [None]
            dist.recv_object_list(received, src=0)
            assert received == [theirs[0]]


@pytest.mark.parametrize("world_size", [2, 3])
def test_object_collectives(world_size: int) -> None:
    run_ranks(objects, world_size)
