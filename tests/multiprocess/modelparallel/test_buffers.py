# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Buffers that are updated in steps: by their module, and by code on another rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import run_ranks
from heard import listen
from torch import Tensor, nn

DEADLINE_S = 60.0
MICROBATCHES = 4
WIDTH = 4

Way = Callable[["Net", Tensor], Tensor]


class Counting(nn.Module):
    """Counts its calls, in integers, and computes with them."""

    calls: Tensor
    is_odd: Tensor
    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH, momentum=None)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("is_odd", torch.tensor(False))
        self.register_buffer("rows", torch.zeros(WIDTH, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.is_odd = ~self.is_odd
        self.rows[int(self.calls) % WIDTH] += len(x)
        y: Tensor = self.norm(self.dense(x))
        return y * self.calls + self.rows if bool(self.is_odd) else y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.remote = Counting()
        self.way: Way = plain

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, self.first(x))


def plain(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.remote(x)
    return y


def counts_elsewhere(net: Net, x: Tensor) -> Tensor:
    net.remote.calls.add_(1)
    return plain(net, x)


def zeroes_elsewhere(net: Net, x: Tensor) -> Tensor:
    net.remote.rows.zero_()
    return plain(net, x)


def sets_elsewhere(net: Net, x: Tensor) -> Tensor:
    net.remote.calls += 1
    return plain(net, x)


def buffers(rank: int, world_size: int) -> None:
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
    smp.set_partition(net.remote, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x: Tensor) -> Tensor:
        loss: Tensor = model(x).pow(2).mean()
        model.backward(loss)
        return loss.detach()

    batch = torch.randn(MICROBATCHES * 3, WIDTH, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        losses = train(batch).outputs
        for loss, x in zip(losses, batch.chunk(MICROBATCHES), strict=True):
            assert torch.allclose(loss, whole(x).pow(2).mean(), atol=1e-4)
    assert not any("was changed in a step" in text for text in heard.texts)
    if rank == 1:
        for name, buffer in net.remote.named_buffers():
            assert torch.allclose(buffer, whole.remote.get_buffer(name), atol=1e-5), name

    # Outside of steps every rank does it.
    for module in (net, whole):
        module.remote.norm.reset_running_stats()
        module.remote.calls.zero_()
    train(batch)
    assert not any("was changed in a step" in text for text in heard.texts)

    for way, name in ((counts_elsewhere, "calls"), (zeroes_elsewhere, "rows")):
        net.way = way
        train(batch)
        train(batch)
        told = [text for text in heard.texts if "was changed in a step" in text]
        heard.texts.clear()
        assert len(told) == (1 if rank == 0 else 0)
        if rank == 0:
            assert f"buffer '{name}' of main/remote" in told[0]
            assert "is on partition 1" in told[0]
    net.way = sets_elsewhere
    with pytest.raises(Exception, match="buffer 'calls' of main/remote was set in a step"):
        train(batch)
    net.way = plain
    train(batch)


def test_buffers_that_change_in_steps() -> None:
    """What another rank than theirs did with buffers was lost, up to 2.0.0 without a word."""
    run_ranks(buffers, 2, deadline_s=DEADLINE_S)
