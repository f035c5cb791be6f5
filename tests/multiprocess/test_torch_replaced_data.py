# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`tensor.data = other` while a call uses the old memory: it stays until the call is complete.

Source: what "never touched after" means for the caller's memory (docs/thread_model.md, Lifetimes).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch_ranks import smddp, tagged

COUNT = 1_000_003  # so large that the allocator gives it back to the system at once


def _message(tensor: torch.Tensor) -> Any:
    return dist.isend(tensor, 1)


def _sum(tensor: torch.Tensor) -> Any:
    return dist.all_reduce(tensor, async_op=True)


def _sum_of_two(tensor: torch.Tensor) -> Any:
    return dist.all_reduce_coalesced([tensor, torch.ones(3)], async_op=True)


def _all(tensor: torch.Tensor) -> Any:
    return dist.all_gather([torch.empty(COUNT), torch.empty(COUNT)], tensor, async_op=True)


CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[torch.Tensor], Any]]] = {
    "message": (_message, lambda tensor: dist.recv(tensor, 0)),
    "sum": (_sum, dist.all_reduce),
    "sum of two": (_sum_of_two, lambda t: dist.all_reduce_coalesced([t, torch.ones(3)])),
    "all": (
        _all,
        lambda t: dist.all_gather([t, torch.empty(COUNT)], torch.zeros(COUNT)),
    ),
    "blocking sum": (dist.all_reduce, dist.all_reduce),
    "blocking broadcast": (
        lambda tensor: dist.broadcast(tensor, 0),
        lambda tensor: dist.broadcast(tensor, 0),
    ),
}


def replaced(rank: int, world_size: int, call: str) -> None:
    begin, take = CALLS[call]
    with smddp():
        tensor = tagged(rank, COUNT)
        if rank == 0:
            if call.startswith("blocking"):
                caller = threading.Thread(target=begin, args=(tensor,))
                caller.start()
                time.sleep(0.2)
                tensor.data = torch.zeros(1)
                caller.join()
            else:
                work = begin(tensor)
                tensor.data = torch.zeros(1)
                time.sleep(0.2)
                work.wait()
        else:
            time.sleep(0.6)
            take(tensor)
            first, second = tagged(0, COUNT), tagged(1, COUNT)
            assert torch.equal(tensor, first + second if "sum" in call else first)


def with_holes(rank: int, world_size: int) -> None:
    whole = torch.zeros(2 * world_size)
    outputs = [whole[2 * r : 2 * r + 2][::2] for r in range(world_size)]
    other = torch.full((1,), -1.0)
    with smddp():
        work = dist.all_gather(outputs, torch.full((1,), 5.0 + rank), async_op=True)
        outputs[0].data = other
        work.wait()
    assert whole.tolist() == [5.0, 0.0, 6.0, 0.0]
    assert other.tolist() == [-1.0]


def test_a_result_with_holes_goes_where_it_was_asked_for() -> None:
    run_ranks(with_holes, 2)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("call", CALLS)
def test_the_old_memory_is_used_to_the_end(call: str, transport: str) -> None:
    run_ranks(replaced, 2, call, env={"SMDDP_TRANSPORT": transport})
