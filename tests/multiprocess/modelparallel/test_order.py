# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What of a step's order does not depend on timing.

Ranks work on what is ready. Still, each module that runs once in a microbatch takes the
microbatches in their order, forward and backward: what goes from one rank to another keeps its
order, and of what is ready the lowest microbatch comes first. So gradients are sums in one order,
and buffers are updated in one order: the same bits in every run, from the second step on.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn
from torch.autograd import Function

RANKS = 3
WIDTH = 8
MICROBATCHES = 6
RUNS = 6
DEADLINE_S = 110.0

Log = list[tuple[str, int]]


class Pause(Function):
    """Takes a time of its own, in both passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Part) -> Tensor:
        ctx.part = part
        part.pause()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.part.pause()
        return gradients[0], None


class Part(nn.Module):
    """Notes the microbatches that it sees: their numbers come with them."""

    def __init__(self, inner: Part | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.inner = inner
        self.pauses: torch.Generator | None = None
        self.log: Log = []

    def pause(self) -> None:
        if self.pauses is not None:
            time.sleep(float(torch.rand((), generator=self.pauses)) * 0.01)

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        microbatch = int(number[0])
        self.log.append(("forward", microbatch))
        x = Pause.apply(x, self)  # type: ignore[no-untyped-call]
        x = torch.tanh(self.norm(self.dense(x)))
        if self.inner is not None:
            x = x + self.inner(x, number)
        if x.requires_grad:
            x.register_hook(lambda _: self.log.append(("backward", microbatch)))
        return x


class Net(nn.Module):
    """A chain, or branches that are joined again: `a` on the leader, `b` and `d` on rank 1."""

    def __init__(self, has_branches: bool) -> None:
        super().__init__()
        self.has_branches = has_branches
        self.a, self.b, self.c, self.d = Part(), Part(Part()), Part(), Part()

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        x = self.a(x, number)
        if not self.has_branches:
            return self.d(self.c(self.b(x, number), number), number)
        joined = self.b(x, number) + self.c(x, number)
        return self.d(joined, number) + x


def takes_microbatches_in_order(
    rank: int, world_size: int, has_branches: bool, pipeline: str
) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": world_size,
            "microbatches": MICROBATCHES,
            "pipeline": pipeline,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(3)
    net = Net(has_branches)
    for part, place in ((net.b, 1), (net.b.inner, 2), (net.c, 2), (net.d, 1)):
        smp.set_partition(part, place)
    model = smp.DistributedModel(net)

    @smp.step
    def step(model: Any, x: Tensor, number: Tensor) -> Tensor:
        loss: Tensor = model(x, number).pow(2).mean()
        model.backward(loss)
        return loss

    x = torch.randn(2 * MICROBATCHES, WIDTH)
    number = torch.arange(MICROBATCHES).repeat_interleave(2)
    parts = [part for part in net.modules() if isinstance(part, Part)]
    fresh = copy.deepcopy(model.state_dict())

    def run(seed: int | None, is_first: bool = False) -> dict[str, Tensor]:
        """Gradients, and buffers after the step."""
        model.load_state_dict(fresh)
        for parameter in model.parameters():
            parameter.grad = None
        for part in parts:
            part.log.clear()
            part.pauses = None if seed is None else torch.Generator().manual_seed(seed)
        step(model, x, number)
        for part in parts:
            for phase in ("forward", "backward"):
                seen = [microbatch for each, microbatch in part.log if each == phase]
                # In the first step a microbatch waits for what others are promised.
                assert is_first or seen in ([], list(range(MICROBATCHES))), (phase, seen)
        found = {name: parameter.grad for name, parameter in model.local_named_parameters()}
        return {**found, **{name: b.clone() for name, b in model.local_named_buffers()}}

    run(None, is_first=True)
    expected = run(None)
    assert expected
    for seed in range(RUNS):
        found = run(100 * seed + rank)
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
    smp.reset()


@pytest.mark.timeout(DEADLINE_S + 10)
@pytest.mark.parametrize("pipeline", ["interleaved", "simple"])
@pytest.mark.parametrize("has_branches", [False, True])
def test_modules_take_microbatches_in_order(has_branches: bool, pipeline: str) -> None:
    run_ranks(takes_microbatches_in_order, RANKS, has_branches, pipeline, deadline_s=DEADLINE_S)
