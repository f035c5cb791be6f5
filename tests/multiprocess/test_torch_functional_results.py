# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a functional collective returns may be used in any other collective at once.

Source: torch's `AsyncCollectiveTensor`, which is waited for when it is first used, as over Gloo.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from harness import run_ranks
from torch_ranks import smddp, tagged

SHAPE = (3, 5)


def _uses(rank: int, size: int) -> None:
    peer = (rank + 1) % size
    each = [tagged(r, 15).view(SHAPE) for r in range(size)]
    mine, total = each[rank], sum(each)

    def begun() -> torch.Tensor:
        tensor = functional.all_reduce(mine, "sum", dist.group.WORLD)
        assert type(tensor) is functional.AsyncCollectiveTensor
        return tensor

    summed = begun()
    dist.all_reduce(summed)
    assert torch.equal(summed, total * size)

    later = begun()
    dist.all_reduce(later, async_op=True).wait()
    assert torch.equal(later, total * size)

    view = begun().view(-1)
    dist.broadcast(view, src=0)
    assert torch.equal(view, total.view(-1))

    part = begun().view(-1).chunk(3)[2]
    dist.all_reduce(part)
    assert torch.equal(part, total.view(-1).chunk(3)[2] * size)

    turned = begun().t()
    dist.all_reduce(turned)
    assert torch.equal(turned, total.t() * size)

    parts = [torch.zeros(SHAPE) for _ in range(size)]
    dist.all_gather(parts, begun())
    assert all(torch.equal(part, total) for part in parts)

    parts = [begun() for _ in range(size)]
    dist.all_gather(parts, mine)
    assert all(torch.equal(part, one) for part, one in zip(parts, each, strict=True))

    whole = torch.zeros(size * SHAPE[0], SHAPE[1])
    dist.all_gather_into_tensor(whole, begun())
    assert torch.equal(whole, torch.cat([total] * size))

    share = torch.zeros(SHAPE)
    dist.reduce_scatter(share, [begun() for _ in range(size)])
    assert torch.equal(share, total * size)

    swapped = [torch.zeros(SHAPE) for _ in range(size)]
    dist.all_to_all(swapped, [begun() for _ in range(size)])
    assert all(torch.equal(part, total) for part in swapped)

    received = begun()
    request = dist.isend(begun(), peer)
    dist.recv(received, (rank - 1) % size)
    request.wait()
    assert torch.equal(received, total)

    several = [begun(), begun()]
    dist.all_reduce_coalesced(several)
    assert all(torch.equal(tensor, total * size) for tensor in several)


def over(rank: int, size: int, backend: str) -> None:
    if backend == "smddp":
        with smddp():
            _uses(rank, size)
    else:
        dist.init_process_group(backend)
        _uses(rank, size)
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["smddp", "gloo"])
def test_results_are_waited_for(backend: str) -> None:
    run_ranks(over, 2, backend)
