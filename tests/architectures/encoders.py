# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models that fill in words that are masked."""

from __future__ import annotations

import functools

from tests.architectures.batches import WORDS, masked_words
from tests.architectures.registry import Architecture

TITLE = "Text: encoders"

ENCODER = {
    "vocab_size": WORDS,
    "pad_token_id": 0,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}

_row = functools.partial(Architecture, make_batch=masked_words)

ROWS = (
    _row("bert", "transformers.BertForMaskedLM", ENCODER),
    _row("roberta", "transformers.RobertaForMaskedLM", ENCODER),
    _row(
        "deberta-v2",
        "transformers.DebertaV2ForMaskedLM",
        {
            **ENCODER,
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
        },
    ),
    _row("albert", "transformers.AlbertForMaskedLM", {**ENCODER, "embedding_size": 16}),
    _row(
        "distilbert",
        "transformers.DistilBertForMaskedLM",
        {
            "vocab_size": WORDS,
            "pad_token_id": 0,
            "dim": 32,
            "hidden_dim": 64,
            "n_layers": 4,
            "n_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    _row("electra", "transformers.ElectraForMaskedLM", {**ENCODER, "embedding_size": 16}),
)
