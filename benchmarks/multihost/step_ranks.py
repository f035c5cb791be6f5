# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each rank does for `step.py`: steps of DistributedDataParallel, columns in turn.

The network is a row of equal layers. Each layer waits in forward and in backward for as long as an
accelerator would compute; the processors of the machine, which all test hosts share, are left to
communication, as they are on a host with an accelerator.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from common.rounds import in_turn
from layouts import FORWARD_SHARE, LAYERS
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1024  # a layer has 4 MiB of float32 weights
GRADIENT_BYTES = LAYERS * WIDTH * WIDTH * 4
FREE = "compute"  # the column without communication


@dataclasses.dataclass(frozen=True)
class Plan:
    """`steps` steps per turn and `rounds` turns per column; a step computes `compute_s` seconds."""

    columns: tuple[str, ...]
    bucket_mb: float
    compute_s: float
    steps: int
    rounds: int


class _Wait(torch.autograd.Function):
    """The identity, which takes a third of the time in forward and the rest in backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds * FORWARD_SHARE)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds * (1 - FORWARD_SHARE))
        return gradient, None


class Network(nn.Module):
    """Layers that take `compute_s` seconds a step together."""

    def __init__(self, compute_s: float) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.wait_s = compute_s / LAYERS

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = _Wait.apply(layer(x), self.wait_s)
        return x


def measure(rank: int, world_size: int, plan: Plan) -> dict[str, list[list[float]]]:
    """Seconds of each step, by column and round; the slowest rank's.

    A step is a forward and a backward; what an optimizer does has nothing to do with the link.
    Raises `AssertionError` if a gradient is not the mean over the ranks.
    """
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (imported for its effect)

    torch.set_num_threads(1)
    dist.init_process_group("smddp")
    groups = {"smddp": None, "gloo": dist.new_group(backend="gloo")}
    models: dict[str, DistributedDataParallel] = {}
    for name in groups:
        models[name] = DistributedDataParallel(
            Network(plan.compute_s),
            process_group=groups[name],
            bucket_cap_mb=plan.bucket_mb,
            gradient_as_bucket_view=True,
        )
        _verify(models[name], rank, world_size)
    seconds: dict[str, list[list[float]]] = {name: [] for name in plan.columns}
    for number in range(plan.rounds):
        for name in in_turn(plan.columns, number):
            model = models["smddp" if name == FREE else name]
            turn = _turn(model, plan.steps, synchronise=name != FREE)
            slowest = torch.tensor(turn, dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            seconds[name].append(slowest.tolist())
    dist.destroy_process_group()
    return seconds


def _turn(model: DistributedDataParallel, steps: int, *, synchronise: bool) -> list[float]:
    data = torch.ones(1, WIDTH)
    seconds = []
    for number in range(steps + 1):
        dist.barrier()
        begin = time.perf_counter()
        with nullcontext() if synchronise else model.no_sync():
            model(data).sum().backward()
        if number > 0:  # the first one has cold caches and, with DDP, may wait for the last turn
            seconds.append(time.perf_counter() - begin)
    return seconds


def _verify(model: DistributedDataParallel, rank: int, world_size: int) -> None:
    """The network is linear: the mean of the ranks' gradients is that of their mean input."""
    data = torch.full((1, WIDTH), float(rank + 1))
    model(data).sum().backward()
    alone = Network(0.0)
    alone(torch.full((1, WIDTH), (world_size + 1) / 2)).sum().backward()
    for ours, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert ours.grad is not None
        assert expected.grad is not None
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-4, atol=1e-4)
    model.zero_grad(set_to_none=False)
