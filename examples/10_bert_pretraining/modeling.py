# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""BERT for pretraining: an encoder with a head for masked words and one for the next sentence.

Plain PyTorch, but for the norms, and written so that it can be cut well: all work is done inside of
modules, and the encoder is a row of layers that hand on to each other all that they need.

Shapes: b sequences of t tokens, of width w, with a vocabulary of v.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

# SMP: Apex's name and signature, on torch's kernels
from smdistributed.modelparallel.torch.nn import FusedLayerNorm

NO_LABEL = -100  # of a token that is not to be guessed


@dataclasses.dataclass(frozen=True)
class BertConfig:
    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int
    dropout: float


class Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.segment = nn.Embedding(2, config.width)
        self.norm = FusedLayerNorm(config.width, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor, segments: Tensor) -> Tensor:
        """Both (b, t); returns (b, t, w)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        summed = self.token(tokens) + self.position(positions) + self.segment(segments)
        embedded: Tensor = self.dropout(self.norm(summed))
        return embedded


class Layer(nn.Module):
    """Attention in both directions, then two linear maps; each added to its input, and normed."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads, self.dropout_p = config.heads, config.dropout
        self.query_key_value = nn.Linear(config.width, 3 * config.width)
        self.attention_output = nn.Linear(config.width, config.width)
        self.attention_norm = FusedLayerNorm(config.width, eps=1e-12)
        self.intermediate = nn.Linear(config.width, 4 * config.width)
        self.output = nn.Linear(4 * config.width, config.width)
        self.output_norm = FusedLayerNorm(config.width, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Hidden states (b, t, w), and which tokens are there (b, t); so is what it returns.

        One argument and one result, as nn.Sequential wants it.
        """
        hidden, is_there = state
        hidden = self.attention_norm(hidden + self.dropout(self._attend(hidden, is_there)))
        wide = functional.gelu(self.intermediate(hidden))
        return self.output_norm(hidden + self.dropout(self.output(wide))), is_there

    def _attend(self, hidden: Tensor, is_there: Tensor) -> Tensor:
        b, t, w = hidden.shape
        q, k, v = self.query_key_value(hidden).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            *(q, k, v),
            attn_mask=is_there[:, None, None, :],
            dropout_p=self.dropout_p if self.training else 0.0,
        )
        mixed: Tensor = self.attention_output(attended.transpose(1, 2).reshape(b, t, w))
        return mixed


class MaskedWordsHead(nn.Module):
    def __init__(self, config: BertConfig, embedding: nn.Parameter) -> None:
        super().__init__()
        self.transform = nn.Linear(config.width, config.width)
        self.norm = FusedLayerNorm(config.width, eps=1e-12)
        self.decoder = nn.Linear(config.width, config.vocabulary)
        # Tied: SMP keeps the head and the embedding on one partition.
        self.decoder.weight = embedding

    def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """Scores (b, t, v) of all words at all places."""
        scores: Tensor = self.decoder(self.norm(functional.gelu(self.transform(state[0]))))
        return scores


class NextSentenceHead(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.width, config.width)
        self.classifier = nn.Linear(config.width, 2)

    def forward(self, state: tuple[Tensor, Tensor]) -> Tensor:
        """Scores (b, 2), from the first token of each sequence: goes on, or from elsewhere."""
        scores: Tensor = self.classifier(torch.tanh(self.pooler(state[0][:, 0])))
        return scores


class BertForPreTraining(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = nn.Sequential(*(Layer(config) for _ in range(config.layers)))
        self.masked_words = MaskedWordsHead(config, self.embeddings.token.weight)
        self.next_sentence = NextSentenceHead(config)
        self.apply(_initialise)

    def forward(self, tokens: Tensor, segments: Tensor, is_there: Tensor) -> tuple[Tensor, Tensor]:
        """All (b, t); returns the scores of both heads."""
        state = self.encoder((self.embeddings(tokens, segments), is_there))
        return self.masked_words(state), self.next_sentence(state)


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def losses(
    scores: tuple[Tensor, Tensor], labels: Tensor, is_elsewhere: Tensor
) -> tuple[Tensor, Tensor]:
    """Of the masked words, labels (b, t), and of the next sentence, (b,): means."""
    words = functional.cross_entropy(
        scores[0].flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL
    )
    return words, functional.cross_entropy(scores[1], is_elsewhere)
