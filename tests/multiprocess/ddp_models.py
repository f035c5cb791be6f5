# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small models, each with something that a data-parallel wrapper could get wrong."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 12


class Plain(nn.Module):
    """Also holds a shared parameter, a frozen one, a scalar, and a buffer that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 40)
        self.norm = nn.BatchNorm1d(40)
        self.tied = nn.Linear(40, 40)
        self.again = nn.Linear(40, 40)
        self.again.weight = self.tied.weight
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.ones(40), requires_grad=False)
        self.last = nn.Linear(40, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        h = torch.tanh(self.again(torch.tanh(self.tied(h)))) * self.scale + self.frozen
        result: Tensor = self.last(h)
        return result


class Images(nn.Module):
    """Convolutions in channels_last, so that gradients are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.last = nn.Linear(8 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        image = x.reshape(-1, 3, 2, 2).repeat(1, 1, 2, 2).to(memory_format=torch.channels_last)
        result: Tensor = self.last(torch.tanh(self.convolution(image)).flatten(1))
        return result


class Mixed(nn.Module):
    """Parameters of four dtypes in turns."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for dtype in dtypes)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = torch.tanh(layer(x.to(layer.weight.dtype))).to(torch.float32)
        result: Tensor = self.last(x)
        return result


class Branches(nn.Module):
    """Which of its branches it uses depends on rank and step; the last one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(4))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        branch = self.branches[(dist.get_rank() + self.calls) % 3]
        result: Tensor = branch(torch.tanh(self.common(x)))
        return result


class Unused(nn.Module):
    """One parameter that no step uses, the same on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(WIDTH, 2)
        self.spare = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.used(x)
        return result


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, 2)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = checkpoint(self.middle, h, use_reentrant=self.reentrant)
        result: Tensor = self.last(h)
        return result


class Embedded(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(50, WIDTH, sparse=sparse)
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.table((x.abs() * 10).long().clamp(max=49)).mean(1))
        return result


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(WIDTH, 2)
        self.two = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


class DictOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        return {"out": super().forward(x), "extras": [x.sum(), "text"]}


class Opaque:
    """An output in which nobody can find tensors."""

    def __init__(self, out: Tensor) -> None:
        self.out = out


class OpaqueOutput(Plain):
    def forward(self, x: Tensor) -> Any:
        return Opaque(super().forward(x))
