# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One shape in different memory formats: an error on all ranks; in one format: right as ever.

In the versions before this test, and over Gloo to this day, elements were mixed up in silence.
Each group meets in a file of its own: made again and again over `env://`, groups can meet the
store of the one before, which is a race of torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor
from torch_ranks import raised, smddp

VALUES = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)


def _all_reduce_coalesced(tensor: Tensor) -> None:
    dist.all_reduce_coalesced([torch.ones(2), tensor])


def _reduce_in_background(tensor: Tensor) -> None:
    work = dist.reduce(tensor, 0, async_op=True)
    assert work is not None
    work.wait()


def _broadcast(tensor: Tensor) -> None:
    dist.broadcast(tensor, 0)
    dist.barrier()  # over TCP the root has sent, and may be done, before another rank finds out


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "all_reduce": dist.all_reduce,
    "reduce": _reduce_in_background,
    "broadcast": _broadcast,
    "coalesced": _all_reduce_coalesced,
}


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.to(memory_format=torch.channels_last)


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)


def _in_different_formats(rank: int, world_size: int, folder: str) -> list[tuple[str, str]]:
    errors = []
    for name, call in CALLS.items():
        with smddp(init_method=f"file://{folder}/{name}", rank=rank, world_size=world_size):
            tensor = _channels_last(VALUES) if rank == 1 else VALUES.clone()
            errors.append(raised(call, tensor)[:2])
    with smddp(init_method=f"file://{folder}/dense", rank=rank, world_size=world_size):
        tensor = _channels_last(VALUES) if rank == 1 else _transposed(VALUES)
        errors.append(raised(dist.all_reduce, tensor)[:2])
    return errors


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_different_formats_are_a_mismatch_on_all_ranks(tmp_path: Path, transport: str) -> None:
    ranks = run_ranks(_in_different_formats, 2, str(tmp_path), env={"SMDDP_TRANSPORT": transport})
    for errors in ranks:
        assert [name for name, _ in errors] == ["SMDDPMismatch"] * len(errors)
        *single, coalesced, dense = [text for _, text in errors]
        for text in single:
            assert "rank 0 called" in text
            assert " contiguous; rank 1 called" in text
            assert "with dimensions in the order 0, 2, 3, 1 (channels_last)" in text
            assert "one memory format" in text
        assert "another list of sizes or memory formats" in coalesced
        assert "with dimensions in the order 3, 2, 1, 0; rank 1" in dense


def _in_one_format(rank: int, world_size: int) -> None:
    many = torch.arange(2.0**14).reshape([2] * 14)
    with smddp():
        for dense in (
            _channels_last(VALUES),
            _transposed(VALUES),
            many.permute(*range(13, -1, -1)),
        ):
            tensor = dense.clone() * (rank + 1)
            assert tensor.stride() == dense.stride()
            dist.all_reduce(tensor)
            assert torch.equal(tensor, dense * 3)
            dist.all_reduce_coalesced([tensor])
            assert torch.equal(tensor, dense * 6)
            tensor = dense * (rank + 1)
            dist.broadcast(tensor, 1)
            assert torch.equal(tensor, dense * 2)
        # A dimension of one element lies anywhere.
        column = torch.ones(3, 1, 2).permute(2, 1, 0).contiguous().permute(2, 1, 0)
        strided = torch.empty_strided((3, 1, 2), (1, (7, 11)[rank], 3)).copy_(column)
        dist.all_reduce(strided)
        assert torch.equal(strided, column * 2)


def test_one_format_on_all_ranks_works_in_storage_order() -> None:
    run_ranks(_in_one_format, 2)
