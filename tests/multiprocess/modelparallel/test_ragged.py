# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A batch that does not divide, `smp.step(ragged=True)`: means over its rows, on every rank."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import run_ranks
from torch import Tensor

SIZES = (8, 6, 3)


def trains(rank: int, world_size: int) -> list[tuple[float, float, list[float]]]:
    """For each size: the step's loss, one process's, and differences of this rank's gradients."""
    from torch import nn

    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": world_size,
            "microbatches": 4,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    plain = copy.deepcopy(net)
    smp.set_partition(net[2], world_size - 1)
    model = smp.DistributedModel(net)

    @smp.step(ragged=True)
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        model.backward(loss)
        return loss

    found = []
    expected = dict(plain.named_parameters())
    for size in SIZES:
        model.zero_grad()
        plain.zero_grad()
        x, y = torch.randn(size, 3), torch.randn(size, 2)
        loss = float(train(x, y).reduce_mean())
        wanted = nn.functional.mse_loss(plain(x), y)
        wanted.backward()
        errors = [
            float((parameter.grad - expected[name].grad).abs().max())  # type: ignore[operator]
            for name, parameter in model.local_named_parameters()
        ]
        found.append((loss, float(wanted), errors))
    return found


def test_every_row_counts_the_same() -> None:
    for outcome in run_ranks(trains, 2):
        for loss, wanted, errors in outcome:
            assert loss == pytest.approx(wanted, rel=1e-6)
            assert errors
            assert max(errors) < 1e-6
