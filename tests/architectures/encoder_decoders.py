# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders with decoders: translation, summaries."""

from __future__ import annotations

import functools

from tests.architectures.batches import WORDS, translations
from tests.architectures.decoders import CACHE, NO_CACHE
from tests.architectures.registry import Architecture

TITLE = "Text: encoders with decoders"

BART = {
    "vocab_size": WORDS,
    "d_model": 32,
    "max_position_embeddings": 64,
    "encoder_layers": 3,
    "encoder_ffn_dim": 64,
    "encoder_attention_heads": 4,
    "decoder_layers": 3,
    "decoder_ffn_dim": 64,
    "decoder_attention_heads": 4,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_heads": 4,
    "num_layers": 3,
    "num_decoder_layers": 3,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}

_row = functools.partial(Architecture, make_batch=translations, arguments=NO_CACHE)

ROWS = (
    _row("t5", "transformers.T5ForConditionalGeneration", T5),
    _row("bart", "transformers.BartForConditionalGeneration", BART),
    _row(
        "bart-cache",
        "transformers.BartForConditionalGeneration",
        BART,
        arguments={"use_cache": True},
        remark=CACHE,
    ),
    _row("mbart", "transformers.MBartForConditionalGeneration", BART),
    _row("marian", "transformers.MarianMTModel", BART),
    _row("pegasus", "transformers.PegasusForConditionalGeneration", BART),
    _row(
        "switch-transformers",
        "transformers.SwitchTransformersForConditionalGeneration",
        {
            **T5,
            "num_experts": 4,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "expert_capacity": 16,
            "router_jitter_noise": 0.0,
        },
        arguments={**NO_CACHE, "output_router_logits": True},
        remark="with the loss of its routers",
    ),
)
