# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A text as GPT-2 wants it: pieces of words, in windows of equal length, and no download."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

# Example 03 finds a text.
sys.path.append(str(Path(__file__).resolve().parents[1] / "03_gpt"))
from text import load as load_text

__all__ = ["Windows", "load_text", "train_tokenizer"]

END = "<|endoftext|>"


def train_tokenizer(content: str, vocabulary: int, context: int) -> PreTrainedTokenizerFast:
    """Byte pairs, as in GPT-2, but those of this text; the same on every rank that calls it.

    Args:
        content: the text.
        vocabulary: number of tokens, 257 at least: one for each byte, and the end of a text.
        context: tokens in a window.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([content], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        model_max_length=context,
        model_input_names=["input_ids", "attention_mask"],
    )


class Windows(Dataset[Tensor]):
    """Endless: window number n begins where a generator says that is seeded with n.

    So it does not matter which rank asks for it, nor what was asked for before: replicas divide a
    batch without a message, and a run that is resumed sees the data that it would have seen.

    Args:
        tokenizer: whose longest input is the length of a window.
        content: the text.
        seed: another seed, other windows.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, content: str, seed: int) -> None:
        self._tokens = torch.tensor(tokenizer(content, verbose=False)["input_ids"])
        self._context, self._seed = tokenizer.model_max_length, seed

    def __getitem__(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed * 1_000_000_007 + number)
        last = len(self._tokens) - self._context
        start = int(torch.randint(last + 1, (), generator=generator))
        return self._tokens[start : start + self._context]
