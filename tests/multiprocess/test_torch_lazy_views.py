# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Views that torch negates or conjugates when they are read: memory does not hold their values.

They were once sent as memory has them. What is read is right now; what is written in place is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor
from torch_ranks import raised, smddp

VALUES = torch.tensor([-1.0, -2.0, -3.0, -4.0])


def _negated() -> Tensor:
    view = torch._neg_view(-VALUES)
    assert view.is_neg()
    assert view.is_contiguous()
    assert torch.equal(view, VALUES)
    return view


def _conjugated() -> Tensor:
    view = torch.complex(VALUES, -VALUES).conj()
    assert view.is_conj()
    return view


def _is_right(rank: int, world_size: int, is_staged: bool) -> None:
    from lazy_device import staged_smddp

    start: Callable[..., Any] = staged_smddp if is_staged else smddp
    with start():
        group: Any = dist.group.WORLD
        for view in (_negated(), _conjugated()):
            expected = view.resolve_conj().resolve_neg()
            others = torch.zeros_like(expected)
            # Directly: torch refuses to send a conjugated tensor by itself.
            if rank == 0:
                group.send([view], 1, 0).wait()
            else:
                group.recv([others], 0, 0).wait()
                assert torch.equal(others, expected)
            mine = view if rank == 0 else others.zero_()
            group.broadcast([mine], root=0).wait()
            assert torch.equal(mine, expected)
            gathered = [torch.zeros_like(expected) for _ in range(world_size)]
            group.allgather([gathered], [view]).wait()
            assert all(torch.equal(each, expected) for each in gathered)
            # Also into a view, which then reads as what was gathered.
            into = [torch.zeros_like(expected), torch.zeros_like(view)]
            into[0] = into[0].conj() if view.is_conj() else torch._neg_view(into[0])
            group.allgather([into], [expected]).wait()
            assert all(torch.equal(each, expected) for each in into)
            whole = torch.zeros(8, dtype=view.dtype)
            group.all_gather_single(whole, view).wait()
            assert torch.equal(whole, torch.cat([expected, expected]))
            swapped = torch.zeros_like(expected)
            group.alltoall_base(swapped, view, [], []).wait()
            assert torch.equal(swapped, torch.cat([expected[2 * rank :][:2]] * 2))
            share = torch.zeros(2, dtype=view.dtype)
            group.reduce_scatter_single(share, view).wait()
            assert torch.equal(share, 2 * expected[2 * rank :][:2])
            summed = expected.clone() if rank == 1 else view
            group.reduce([summed], root=1).wait()
            assert torch.equal(summed, 2 * expected if rank == 1 else expected)


@pytest.mark.parametrize("is_staged", [False, True])
def test_what_is_read_of_a_lazy_view_is_its_values(is_staged: bool) -> None:
    run_ranks(_is_right, 2, is_staged)


def _is_refused(rank: int, world_size: int) -> list[tuple[str, str, list[str]]]:
    with smddp():
        group: Any = dist.group.WORLD
        told = []
        for view in (_negated(), _conjugated()):
            told += [
                raised(group.allreduce, [view]),
                raised(group.allreduce_coalesced, [view]),
                raised(group.broadcast, [view], root=1 - rank),
                raised(group.reduce, [view], root=rank),
                raised(group.recv, [view], 1 - rank, 0),
                raised(group.alltoall_base, view, torch.zeros_like(view), [], []),
            ]
        told.append(raised(dist.all_reduce, _negated()))
        return told


def test_a_lazy_view_is_not_written_in_place() -> None:
    for told in run_ranks(_is_refused, 2):
        for name, text, _ in told:
            assert name == "SMDDPConfigInvalid", text
            assert "view of shape (4,) cannot be written in place" in text
            assert "resolve_neg()" in text
