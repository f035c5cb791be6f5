# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The three models whose training steps are measured, small enough for one CPU thread per rank.

They are built from parts of `torch.nn` alone. Each says how to make a batch; a batch depends on
the rank only, so that every rank can compute what the others' gradients are and check the average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 -- torch's own name for it

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model with its data.

    Attributes:
        name: for command lines and files.
        label: for headings.
        build: makes the module, with the current random seed.
        make_batch: makes a batch (inputs, int64 classes) from a generator.
        loss: (outputs, classes) to a scalar.
    """

    name: str
    label: str
    build: Callable[[], nn.Module]
    make_batch: Callable[[torch.Generator], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]


_VOCABULARY = 1024
_CONTEXT = 64
_WIDTH = 256
_HEADS = 4
_LAYERS = 4


class _GptBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.merge = nn.Linear(_WIDTH, _WIDTH)
        self.norm_2 = nn.LayerNorm(_WIDTH)
        self.widen = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.narrow = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, _HEADS, width // _HEADS)
        q, k, v = (t.view(heads).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x))))


class _Gpt(nn.Module):
    """A decoder-only transformer: tokens [batch, length] to scores [batch, length, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.positions = nn.Embedding(_CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(*(_GptBlock() for _ in range(_LAYERS)))
        self.norm = nn.LayerNorm(_WIDTH)
        self.scores = nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.scores(self.norm(self.blocks(x)))


def _gpt_batch(generator: torch.Generator) -> Batch:
    text = torch.randint(_VOCABULARY, (6, _CONTEXT + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


class _ResidualBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm_1 = nn.BatchNorm2d(channels)
        self.conv_2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm_2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm_1(self.conv_1(x)))
        return F.relu(self.norm_2(self.conv_2(y)) + self.shortcut(x))


def _resnet18() -> nn.Module:
    """ResNet-18's layers with the 3×3 stem that is usual for 32×32 images, and 10 classes."""
    blocks: list[nn.Module] = []
    channels_in = 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [
            _ResidualBlock(channels_in, channels, stride),
            _ResidualBlock(channels, channels, 1),
        ]
        channels_in = channels
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def _image_batch(generator: torch.Generator) -> Batch:
    images = torch.randn(4, 3, 32, 32, generator=generator)
    return images, torch.randint(10, (4,), generator=generator)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def _vector_batch(generator: torch.Generator) -> Batch:
    return torch.randn(16, 64, generator=generator), torch.randint(10, (16,), generator=generator)


def _cross_entropy(scores: Tensor, classes: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), classes.flatten())


WORKLOADS: tuple[Workload, ...] = (
    Workload("gpt", "small GPT", _Gpt, _gpt_batch, _cross_entropy),
    Workload("resnet18", "ResNet-18-like", _resnet18, _image_batch, _cross_entropy),
    Workload("mlp", "tiny MLP", _mlp, _vector_batch, _cross_entropy),
)


def workload(name: str) -> Workload:
    """The workload of this name."""
    return next(found for found in WORKLOADS if found.name == name)


def batch_of(found: Workload, rank: int) -> Batch:
    """The batch of one rank, the same in every process that asks."""
    return found.make_batch(torch.Generator().manual_seed(1000 + rank))
