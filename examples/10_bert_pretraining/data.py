# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Pairs of passages from a text, with masked words: what BERT learns from.

Sample number n is drawn with a generator of its own, seeded with n. So it does not matter which
rank makes it, nor what was made before: replicas divide a batch without a message, and a run that
is resumed sees the data that it would have seen.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from modeling import NO_LABEL
from torch import Tensor
from torch.utils.data import Dataset

# Example 03 finds a text, and makes a vocabulary of it.
sys.path.append(str(Path(__file__).resolve().parents[1] / "03_gpt"))
import text

SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
PAD, CLS, SEP, MASK = range(len(SPECIAL))
MASKED_SHARE = 0.15

_END = re.compile(r"(?<=[.!?:;])\s+|\n\s*\n")
_SHORTEST = 4  # tokens of a sentence; shorter ones are headings, or numbers


class Batch(NamedTuple):
    """b pairs, t tokens each; SMP cuts each field along its first axis."""

    tokens: Tensor  # (b, t); of them some masked
    segments: Tensor  # (b, t): 0 in the first passage, 1 in the second
    is_there: Tensor  # (b, t), bool: no padding
    labels: Tensor  # (b, t): what a masked token was; elsewhere NO_LABEL
    is_elsewhere: Tensor  # (b,): 1 where the second passage does not follow the first

    def to(self, device: torch.device) -> Batch:
        return Batch(*(field.to(device) for field in self))


class Corpus:
    """The sentences of a text as numbers, and their vocabulary.

    Args:
        content: the text.
        size: of the vocabulary: special tokens, characters, and the most frequent words.
    """

    def __init__(self, content: str, size: int) -> None:
        # Split lines are joined again.
        found = ["".join(f" {word}" for word in each.split()) for each in _END.split(content)]
        self._vocabulary = text.Vocabulary.of("".join(found), size - len(SPECIAL))
        encoded = map(self.encode, found)
        self.sentences = [sentence for sentence in encoded if len(sentence) >= _SHORTEST]

    def __len__(self) -> int:
        """Tokens of the vocabulary."""
        return len(SPECIAL) + len(self._vocabulary)

    def encode(self, sentence: str) -> list[int]:
        return [len(SPECIAL) + number for number in self._vocabulary.encode(sentence)]

    def decode(self, tokens: list[int]) -> str:
        names = [*SPECIAL, *self._vocabulary.tokens]
        return "".join(f" {names[t]}" if t in (CLS, SEP, MASK) else names[t] for t in tokens if t)


class Pairs(Dataset[Batch]):
    """Endless: any number is a sample. A sample is a batch without its first axis.

    Args:
        sentences: in the order of the text.
        context: tokens of a sample.
        vocabulary: how many tokens there are, from which a few masked ones are replaced.
        seed: another seed, other samples.
    """

    def __init__(
        self, sentences: list[list[int]], context: int, vocabulary: int, seed: int
    ) -> None:
        self._sentences = sentences
        self._context, self._vocabulary, self._seed = context, vocabulary, seed

    def __getitem__(self, number: int) -> Batch:
        generator = torch.Generator().manual_seed(self._seed * 1_000_000_007 + number)
        room = self._context - 3
        start, other = torch.randint(len(self._sentences), (2,), generator=generator).tolist()
        first, following = self._passage(start, room // 2)
        is_elsewhere = torch.rand((), generator=generator) < 0.5
        second, _ = self._passage(other if is_elsewhere else following, room - len(first))

        pair = [CLS, *first, SEP, *second, SEP]
        tokens = torch.full((self._context,), PAD)
        tokens[: len(pair)] = torch.tensor(pair)
        segments = torch.zeros_like(tokens)
        segments[len(first) + 2 : len(pair)] = 1
        labels = self._mask(tokens, generator)
        return Batch(tokens, segments, tokens != PAD, labels, is_elsewhere.long())

    def _passage(self, start: int, room: int) -> tuple[list[int], int]:
        """As many sentences as there is room for, and which one follows; of the first what fits."""
        count = len(self._sentences)
        tokens = self._sentences[start % count][:room]
        following = start + 1
        while len(tokens) + len(more := self._sentences[following % count]) <= room:
            tokens, following = tokens + more, following + 1
        return tokens, following

    def _mask(self, tokens: Tensor, generator: torch.Generator) -> Tensor:
        """Changes ``tokens`` in place; returns the labels.

        Of the masked ones eight in ten become [MASK], one any token, and one stays what it is: the
        model must have an opinion of every token, as later there will be no [MASK].
        """
        places = (tokens >= len(SPECIAL)).nonzero().flatten()
        places = places[torch.randperm(len(places), generator=generator)]
        places = places[: max(1, round(MASKED_SHARE * len(places)))]
        labels = torch.full_like(tokens, NO_LABEL)
        labels[places] = tokens[places]
        kind = torch.rand(len(places), generator=generator)
        anything = torch.randint(len(SPECIAL), self._vocabulary, places.shape, generator=generator)
        tokens[places] = torch.where(kind < 0.9, anything, tokens[places])
        tokens[places[kind < 0.8]] = MASK
        return labels
