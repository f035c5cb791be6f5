# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models that the tests of model parallelism cut into partitions, and one way to train them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WORDS = 40
WIDTH = 16


class Block(nn.Module):
    """A residual block with a buffer that is kept, one that is not, and a frozen parameter."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(width), requires_grad=False)
        self.register_buffer("factor", torch.tensor(1.0))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x) * self.scale))) * self.factor


class Counter(nn.Module):
    """Has extra state, with a tensor in it, and a parameter that is not contiguous."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(width).mul(0.5).t())
        self.calls = 0
        self.seen = torch.zeros(2)

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls, "seen": self.seen}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]
        self.seen = state["seen"].clone()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x @ self.mix


class Network(nn.Module):
    """A language model in small: its embedding is its head too."""

    def __init__(self, num_blocks: int = 4, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.blocks = nn.ModuleList(Block() for _ in range(num_blocks))
        self.counter = Counter()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if not sparse:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.counter(hidden))
        return logits


def network(**kwargs: Any) -> Network:
    """The same on every rank."""
    torch.manual_seed(7)
    return Network(**kwargs)


def cut(model: Network, partitions: int) -> Network:
    """The blocks in order, as evenly as can be; the rest but `counter` in partition 0."""
    import smdistributed.modelparallel.torch as smp

    for number, block in enumerate(model.blocks):
        smp.set_partition(block, number * partitions // len(model.blocks))
    smp.set_partition(model.counter, partitions - 1)
    return model


def by_hand(partitions: int, microbatches: int = 2, **more: Any) -> dict[str, Any]:
    """A configuration in which `cut` decides."""
    return {
        "partitions": partitions,
        "microbatches": microbatches,
        "auto_partition": False,
        "default_partition": 0,
        **more,
    }


def batch(number: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    """Words and those that follow them; another for each number."""
    generator = torch.Generator().manual_seed(1000 + number)
    x = torch.randint(0, WORDS, (rows, 5), generator=generator)
    y = torch.randint(0, WORDS, (rows, 5), generator=generator)
    return x, y


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.reshape(-1, WORDS), y.reshape(-1))


def step_function() -> Any:
    """A decorated training step: `step(model, x, y)`."""
    import smdistributed.modelparallel.torch as smp

    @smp.step
    def train(model: Any, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model(x), y)
        model.backward(loss)
        return loss

    return train


def plain_step(model: nn.Module, x: Tensor, y: Tensor, microbatches: int = 2) -> None:
    """What a step does to gradients, in one process."""
    rows = x.shape[0] // microbatches
    for number in range(microbatches):
        part = slice(number * rows, (number + 1) * rows)
        loss = loss_of(model(x[part]), y[part])
        loss.backward(torch.full_like(loss, 1.0 / microbatches))
