# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Coalesced calls with many small tensors: one engine operation, the bits of single calls."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch_ranks import smddp

from smdistributed.collectives import _native
from smdistributed.dataparallel.exceptions import SMDDPMismatch

# Below and above what is packed, in every dtype; empty ones among them.
COUNTS = [0, 1, 7, 64, 0, 1000, 4097, 20_000, 3, 0]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.float16]


def _inputs(rank: int, factor: int = 1) -> list[torch.Tensor]:
    """Numbers whose floating point sums depend on the order; all dtypes mixed in one list."""
    random = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(factor * count, generator=random) * 100).to(dtype)
        for count in COUNTS
        for dtype in DTYPES
    ]


def _bits(tensors: list[torch.Tensor]) -> list[bytes]:
    return [bytes(tensor.view(torch.uint8).tolist()) for tensor in tensors]


def same_bits(rank: int, world_size: int) -> None:
    with smddp(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        group = dist.group.WORLD
        assert group is not None
        ones = _inputs(rank)
        for tensor in ones:
            dist.all_reduce(tensor)
        together = _inputs(rank)
        group.allreduce_coalesced(together).wait()
        assert _bits(together) == _bits(ones)

        mine = _inputs(rank)
        singles = [tensor.new_empty(world_size * tensor.numel()) for tensor in mine]
        coalesced = [torch.empty_like(tensor) for tensor in singles]
        for output, tensor in zip(singles, mine, strict=True):
            dist.all_gather_single(output, tensor)
        group.all_gather_single_coalesced(coalesced, mine).wait()
        assert _bits(coalesced) == _bits(singles)

        wholes = _inputs(rank, world_size)
        singles = [tensor.new_empty(tensor.numel() // world_size) for tensor in wholes]
        coalesced = [torch.empty_like(tensor) for tensor in singles]
        for output, tensor in zip(singles, wholes, strict=True):
            dist.reduce_scatter_single(output, tensor, op=dist.ReduceOp.SUM)
        group.reduce_scatter_single_coalesced(coalesced, wholes).wait()
        assert _bits(coalesced) == _bits(singles)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_bits_are_those_of_single_calls(world_size: int) -> None:
    run_ranks(same_bits, world_size)


def operations_of_a_list(rank: int, world_size: int) -> list[tuple[str, int]]:
    from torch.distributed.distributed_c10d import _coalescing_manager

    with smddp():
        gradients = [torch.full((100,), float(rank + i)) for i in range(50)]
        dist.barrier()
        _native.start_trace()
        for is_async in (False, True):
            with _coalescing_manager(async_ops=is_async) as manager:
                for gradient in gradients:
                    dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
            if is_async:
                manager.wait()
        events, _ = _native.stop_trace()
        average = (world_size - 1) / 2
        for i, gradient in enumerate(gradients):
            assert torch.equal(gradient, torch.full((100,), average + i))
        return [(event[2], event[5]) for event in events]


def test_many_small_tensors_are_one_operation() -> None:
    for operations in run_ranks(operations_of_a_list, 2):
        assert operations == [("all_reduce", 50 * 100 * 4)] * 2


def tensors_with_holes(rank: int, world_size: int) -> None:
    with smddp():
        group = dist.group.WORLD
        assert group is not None
        outputs = [torch.zeros(2, 2 * world_size)[:, ::2] for _ in range(3)]
        inputs = [torch.full((4,), float(rank))[::2] + i for i in range(3)]
        work = group.all_gather_single_coalesced(outputs, inputs)
        work.wait()
        everything = torch.arange(float(world_size)).repeat_interleave(2)
        for i, output in enumerate(outputs):
            assert torch.equal(output.reshape(-1), everything + i)


def test_results_reach_tensors_with_holes() -> None:
    run_ranks(tensors_with_holes, 2)


def lists_that_differ(rank: int, world_size: int) -> None:
    with smddp():
        group = dist.group.WORLD
        assert group is not None
        sizes = (2, 4) if rank == 0 else (4, 2)
        with pytest.raises(SMDDPMismatch, match="another list of sizes"):
            group.allreduce_coalesced([torch.ones(size) for size in sizes]).wait()


def test_lists_that_differ_are_a_mismatch() -> None:
    run_ranks(lists_that_differ, 2)
