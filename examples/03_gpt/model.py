# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A small GPT: a decoder-only transformer with pre-normalisation and tied embeddings.

Shapes in comments: B windows in a batch, T tokens in a window, C width of the network, H heads,
V tokens in the vocabulary.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F  # noqa: N812 (the name every PyTorch script gives it)
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The sizes of a network; they go into the checkpoint, and must be the same to resume it."""

    vocabulary_size: int
    context: int = 128
    num_layers: int = 4
    num_heads: int = 4
    width: int = 128
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise ValueError(
                f"width={self.width} is not a multiple of num_heads={self.num_heads}; expected "
                "heads of equal size. Change one of the two."
            )


class Attention(nn.Module):
    """Causal self-attention over all heads at once."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.dropout
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, T, C)."""
        B, T, C = x.shape  # noqa: N806 (shapes keep their letters)
        qkv = self.query_key_value(x).view(B, T, 3, self.num_heads, C // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, C / H) each
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(B, T, C))
        return out


class Block(nn.Module):
    """Attention, then a feed-forward network, each added to what came in."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.feed_forward(self.norm2(x)))


class GPT(nn.Module):
    """Predicts the next token of a text.

    Its ``forward`` takes the targets too and returns the loss: DDP wants one call per step, and the
    scores of a whole batch, the largest tensor of all, need not leave the function.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary_size, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(self._initialise)
        for name, parameter in self.named_parameters():
            # What 2 * num_layers branches add up to keeps the variance of one.
            if name.endswith(("attention.output.weight", "feed_forward.2.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.num_layers))

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def scores(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T), int64, to unnormalised scores of each next token (B, T, V)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy in nats of targets (B, T), which are the tokens one place further."""
        scores = self.scores(tokens)
        return F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        num_tokens: int,
        generator: torch.Generator,
        temperature: float = 0.7,
        top_k: int = 40,
    ) -> Tensor:
        """Continue tokens (B, T) by ``num_tokens``, drawn from the ``top_k`` likeliest each time.

        Returns all of them, (B, T + num_tokens). A lower ``temperature`` makes safer choices.
        """
        for _ in range(num_tokens):
            scores = self.scores(tokens[:, -self.config.context :])[:, -1].float() / temperature
            best, which = scores.topk(min(top_k, scores.shape[-1]))
            drawn = torch.multinomial(best.softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, which.gather(1, drawn)], dim=1)
        return tokens
