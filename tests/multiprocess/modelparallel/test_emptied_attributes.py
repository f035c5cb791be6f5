# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A container that a module on another rank empties, and then takes away."""

from __future__ import annotations

from typing import Any

import torch
from harness import run_ranks
from torch import Tensor, nn

DEADLINE_S = 60.0
MICROBATCHES = 3
WIDTH = 4


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.kept: Any = None

    def forward(self, x: Tensor, call: int) -> Tensor:
        y: Tensor = self.dense(x)
        self.kept = [[y.mean()], [], None, {"loss": y.sum()}, {}, None][call]
        return y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.remote = nn.Linear(WIDTH, WIDTH), Keeping()

    def forward(self, x: Tensor) -> tuple[Tensor, list[int]]:
        x, found = self.first(x), []
        for call in range(6):
            x = self.remote(x, call)
            found.append(-1 if self.remote.kept is None else len(self.remote.kept))
        return x, found


def emptied(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    net = Net()
    smp.set_partition(net.remote, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x: Tensor) -> list[int]:
        y, found = model(x)
        model.backward(y.mean())
        result: list[int] = found
        return result

    for _ in range(3):
        for numbers in zip(*train(torch.ones(MICROBATCHES, WIDTH)), strict=True):
            assert numbers == (1, 0, -1, 1, 0, -1)


def test_a_container_that_is_emptied_and_taken_away() -> None:
    """The caller kept the empty one."""
    run_ranks(emptied, 2, deadline_s=DEADLINE_S)
