# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Short training runs of the models of `ddp_models.py`, and the comparison of two of them.

Runs within ranks, on data that differs by step and rank. Between ranks no difference is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ddp_models import WIDTH, Opaque
from torch import Tensor, nn

STEPS = 4
BATCH = 3
SMALL = 1 / 1024  # MiB; several buckets even for these models

Loop = Callable[[Any, torch.optim.Optimizer, int], None]


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(BATCH, WIDTH, generator=generator)
    return x, torch.randn(BATCH, 2, generator=generator)


def loss_of(model: Any, step: int) -> Tensor:
    x, y = batch(step)
    out = model(x)
    if isinstance(out, dict):
        out = out["out"]
    if isinstance(out, Opaque):
        out = out.out
    return nn.functional.mse_loss(out, y)


def each_step(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad()


def without_sync(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    with model.no_sync():
        for part in range(2):
            loss_of(model, 10 * step + part).backward()
    loss_of(model, 10 * step + 2).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(wrap: Callable[[nn.Module], Any], model: nn.Module, loop: Loop) -> dict[str, Tensor]:
    ddp = wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.005, momentum=0.9, weight_decay=0.01)
    for step in range(STEPS):
        loop(ddp, optimizer, step)
    return {name: value.detach().clone() for name, value in ddp.module.state_dict().items()}


def assert_same_bits(weights: dict[str, Tensor]) -> None:
    """Of parameters; buffers are broadcast before a forward, so after one they differ."""
    for name, weight in weights.items():
        if name.startswith("norm.running") or "num_batches" in name:
            continue
        theirs = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(theirs, weight.contiguous())
        assert all(torch.equal(other, theirs[0]) for other in theirs), name


def assert_close(ours: dict[str, Tensor], torchs: dict[str, Tensor], tolerance: float) -> None:
    for name, weight in ours.items():
        torch.testing.assert_close(
            weight, torchs[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3 + dist.get_rank())  # differs, so that the broadcast is tested too
    return make()
