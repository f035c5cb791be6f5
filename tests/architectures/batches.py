# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Batches of the kinds that several files need."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from tests.architectures.registry import Batch, MakeBatch

WORDS = 96
LENGTH = 12
CLASSES = 5


def words(batch: int, generator: Generator, length: int = LENGTH) -> Tensor:
    """Tokens, none of which is one of the special ones that configurations name below 4."""
    return torch.randint(4, WORDS, (batch, length), generator=generator)


def next_words(batch: int, generator: Generator) -> Batch:
    """For a decoder; the labels are the tokens."""
    tokens = words(batch, generator)
    return {"input_ids": tokens, "labels": tokens}


def masked_words(batch: int, generator: Generator) -> Batch:
    """For an encoder with a head over the vocabulary: padded on the right, a third is asked for."""
    tokens = words(batch, generator)
    mask = torch.ones_like(tokens)
    mask[::2, -3:] = 0
    asked = (torch.rand(tokens.shape, generator=generator) < 0.3) & (mask == 1)
    asked[:, 0] = True
    return {
        "input_ids": tokens.masked_fill(asked, 3),
        "attention_mask": mask,
        "labels": tokens.masked_fill(~asked, -100),
    }


def translations(batch: int, generator: Generator) -> Batch:
    """For an encoder with a decoder."""
    return {"input_ids": words(batch, generator), "labels": words(batch, generator, LENGTH - 3)}


def classes(batch: int, generator: Generator) -> Tensor:
    return torch.randint(0, CLASSES, (batch,), generator=generator)


def images(size: int) -> MakeBatch:
    """Images with three channels, each with its class."""

    def make(batch: int, generator: Generator) -> Batch:
        return {
            "pixel_values": torch.randn(batch, 3, size, size, generator=generator),
            "labels": classes(batch, generator),
        }

    return make
