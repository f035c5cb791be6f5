# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is trained: GPTs of several depths, whole and cut into the stages that torch wants."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["SHAPES", "Gpt", "Shape", "Stage", "batch_of", "loss_of"]

VOCABULARY = 256


@dataclass(frozen=True)
class Shape:
    """Of a model and its batches.

    Attributes:
        blocks: transformer blocks, all partitions together.
        width: of the embedding.
        length: tokens of a sequence.
        sequences: of a microbatch.
    """

    blocks: int
    width: int
    length: int
    sequences: int


SHAPES = {
    "gpt-4": Shape(4, 256, 128, 2),
    "gpt-8": Shape(8, 256, 128, 2),
    "gpt-16": Shape(16, 256, 128, 2),
    "tiny": Shape(4, 64, 16, 2),
}


class Block(nn.Module):
    """Attention and a network of two layers, both residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[sequences, length, width] to the same."""
        b, s, d = x.shape
        q, k, v = (
            part.view(b, s, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, s, d))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """All of it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Parameter(torch.zeros(shape.length, shape.width))
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[sequences, length] to [sequences, length, vocabulary]."""
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Stage(nn.Module):
    """The part of a `Gpt` that is partition `index` of `count`; shares its parameters."""

    def __init__(self, model: Gpt, index: int, count: int) -> None:
        super().__init__()
        size = len(model.blocks) // count
        self.blocks = nn.ModuleList(list(model.blocks)[index * size : (index + 1) * size])
        self.tokens = model.tokens if index == 0 else None
        self.positions = model.positions if index == 0 else None
        self.norm = model.norm if index == count - 1 else None
        self.head = model.head if index == count - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Tokens, or what the stage before returns, to that for the next one."""
        if self.tokens is not None:
            x = self.tokens(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch_of(shape: Shape, microbatches: int) -> tuple[Tensor, Tensor]:
    """Tokens and their successors, the same on all ranks."""
    generator = torch.Generator().manual_seed(1)
    size = (microbatches * shape.sequences, shape.length + 1)
    text = torch.randint(0, VOCABULARY, size, generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
