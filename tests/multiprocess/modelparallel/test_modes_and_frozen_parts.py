# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Modules in eval() for a part of a step, and models of which nothing is trained."""

from __future__ import annotations

import pytest
import torch
from harness import run_ranks
from heard import listen
from torch import Tensor, nn

DEADLINE_S = 60.0
MICROBATCHES = 4
WIDTH = 4


class Signed(nn.Module):
    """Tells in which mode it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.dense(x)
        return y if self.training else -y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = Signed(), Signed()
        self.switches_there = False

    def forward(self, x: Tensor) -> Tensor:
        self.here.eval()
        if self.switches_there:
            self.there.eval()
        y = self.there(x) * 1.0 + 1.0
        y = self.here(torch.where(y > 0, y, y / 2))
        self.here.train()
        self.there.train()
        result: Tensor = self.there(y) + self.here(y)
        return result


def modes(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    heard = listen()
    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net, whole = Net(), Net()
    whole.load_state_dict(net.state_dict())
    smp.set_partition(net.there, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x: Tensor) -> Tensor:
        loss: Tensor = model(x).mean()
        model.backward(loss)
        return loss

    batch = torch.randn(MICROBATCHES * 2, WIDTH, generator=torch.Generator().manual_seed(1))
    for _ in range(4):
        losses = train(batch).outputs
        for loss, x in zip(losses, batch.chunk(MICROBATCHES), strict=True):
            assert torch.allclose(loss, whole(x).mean(), atol=1e-5)
        assert net.here.training
    assert not heard.texts

    net.switches_there = True
    train(batch)
    train(batch)
    told = [text for text in heard.texts if "train() or eval() of main/there" in text]
    assert len(told) == (1 if rank == 0 else 0), heard.texts
    net.switches_there = False

    for parameter in net.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(Exception, match="does not require grad"):
        train(batch)
    for parameter in net.here.parameters():
        parameter.requires_grad_(True)
    net.zero_grad()
    train(batch)
    assert (net.here.dense.weight.grad is not None) == (rank == 0)
    assert net.there.dense.weight.grad is None


def test_modes_and_frozen_parts() -> None:
    """Microbatches found the mode of another one; a backward pass of nothing passed."""
    run_ranks(modes, 2, deadline_s=DEADLINE_S)
