# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of parameters: of a large network, and of very many small tensors."""

from __future__ import annotations

from collections.abc import Callable

Shapes = list[tuple[int, ...]]


def bert_base() -> Shapes:
    """Of BERT-base with its head: 12 layers of width 768, 110 million elements."""
    width = 768
    dense: Shapes = [(width, width), (width,)]
    norm: Shapes = [(width,), (width,)]
    layer = dense * 4 + norm
    layer += [(4 * width, width), (4 * width,), (width, 4 * width), (width,), *norm]
    embeddings: Shapes = [(30522, width), (512, width), (2, width), *norm]
    return [*embeddings, *(layer * 12), *dense]


def small() -> Shapes:
    """4,000 tensors, 8 million elements: what a call costs shows, and what it touches does not."""
    return [(64, 62), (64,)] * 2000


SETS: dict[str, Callable[[], Shapes]] = {"bert-base": bert_base, "small": small}
