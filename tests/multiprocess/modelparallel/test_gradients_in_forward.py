# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models that take a gradient in their forward, as models of forces do, beside one process.

The automatic partition watches one forward pass without gradients, where torch would raise "element
0 of tensors does not require grad".
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn

MICROBATCHES = 2
STEPS = 3
WIDTH = 32


class Forces(nn.Module):
    """An energy that is derived by positions, where gradients are on or where it turns them on."""

    def __init__(self, turns_on: bool) -> None:
        super().__init__()
        self.turns_on = turns_on
        self.energy = nn.Linear(WIDTH, WIDTH)
        rows = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.rest = nn.Sequential(*rows)

    def forward(self, positions: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.turns_on or torch.is_grad_enabled()):
            positions = positions.clone().requires_grad_()
            energy = self.energy(positions).tanh().square().sum()
            (force,) = torch.autograd.grad(energy, positions, create_graph=True)
        result: Tensor = self.rest(force)
        return result


def _make(turns_on: bool) -> Forces:
    torch.manual_seed(0)
    return Forces(turns_on)


def _batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, WIDTH, generator=generator) for _ in range(STEPS)]


def _train_whole(turns_on: bool) -> tuple[list[float], dict[str, Tensor]]:
    model = _make(turns_on)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for batch in _batches():
        optimizer.zero_grad()
        parts = [(model(x) - 1).square().mean() for x in batch.chunk(MICROBATCHES)]
        loss = torch.stack(parts).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def train(rank: int, world_size: int, turns_on: bool, delayed: bool) -> Any:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "pipeline_parallel_degree": world_size,
            "microbatches": MICROBATCHES,
            "memory_weight": 1.0,
            "delayed_parameter_initialization": delayed,
        }
    )
    with smp.delay_param_initialization(enabled=delayed):
        model = smp.DistributedModel(_make(turns_on))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))

    @smp.step
    def step(x: Tensor) -> Tensor:
        loss = (model(x) - 1).square().mean()
        model.backward(loss)
        return loss

    losses = []
    for batch in _batches():
        optimizer.zero_grad()
        losses.append(step(batch).reduce_mean().item())
        optimizer.step()
    return losses, dict(model.state_dict()), len(list(model.local_parameters()))


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("turns_on", [False, True])
def test_a_gradient_in_forward_is_that_of_one_process(turns_on: bool, delayed: bool) -> None:
    losses, state = _train_whole(turns_on)
    found = run_ranks(train, 2, turns_on, delayed)
    for found_losses, found_state, held in found:
        assert found_losses == pytest.approx(losses, rel=1e-6)
        assert held > 0
        for name, value in state.items():
            torch.testing.assert_close(found_state[name], value)
