# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that leave right after their last step do not look lost to those who are still in it."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from harness import run_ranks
from machine_speed import scaled

RANKS = 3
LATE_S = 0.3
WAIT_S = scaled(30.0)


def leaves_at_once(rank: int, world_size: int) -> float:
    """The leader tells rank 2 late that the step has ended; the others reset meanwhile."""
    from torch import nn

    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch.pipeline.messages.messages import End, Message
    from smdistributed.modelparallel.torch.pipeline.messages.router import Router

    post = Router.post

    def late(self: Router, to: int, message: Message) -> None:
        if isinstance(message, End) and to == RANKS - 1:
            time.sleep(LATE_S)
        post(self, to, message)

    Router.post = late  # type: ignore[method-assign, assignment]
    smp.init({"partitions": world_size, "auto_partition": False, "default_partition": 0})
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(world_size)))
    for place, layer in enumerate(net):
        smp.set_partition(layer, place)
    model = smp.DistributedModel(net)

    @smp.step
    def run(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    found = float(run(torch.ones(1, 2)).concat().sum())
    smp.reset()
    return found


def test_who_leaves_first_is_not_lost() -> None:
    assert len(set(run_ranks(leaves_at_once, RANKS))) == 1


def stays(rank: int, world_size: int, flag: str) -> bool:
    """Rank 0 goes on without steps until the other has left."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"partitions": world_size, "auto_partition": False, "default_partition": 0})

    @smp.step
    def run() -> int:
        return 1

    assert run() == [1]
    end = time.monotonic() + WAIT_S
    while rank == 0 and not Path(flag).exists() and time.monotonic() < end:
        time.sleep(0.05)
    has_left = Path(flag).exists()
    smp.reset()
    Path(flag).touch()
    return has_left


def test_who_stays_is_not_waited_for(tmp_path: Path) -> None:
    has_left, _ = run_ranks(stays, 2, str(tmp_path / "left"))
    assert has_left
