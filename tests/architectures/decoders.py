# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models that predict the next word."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from tests.architectures.batches import WORDS, next_words
from tests.architectures.registry import Architecture, Batch

TITLE = "Text: decoders"

_WORDS = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_WIDTHS = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
GPT2 = {**_WORDS, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 4}
ROTARY = {**_WORDS, **_WIDTHS, "intermediate_size": 64, "max_position_embeddings": 64}
GROUPED = {**ROTARY, "num_key_value_heads": 2}
MAMBA = {**_WORDS, "hidden_size": 32, "num_hidden_layers": 4}
NO_CACHE = {"use_cache": False}
CACHE = "fills its cache of keys and values, which training does not need"


def _loss_of_states(model: Any, batch: Batch) -> Tensor:
    output = model(**batch)
    loss: Tensor = output.loss + sum(state.square().mean() for state in output.hidden_states)
    return loss


_row = functools.partial(Architecture, make_batch=next_words, arguments=NO_CACHE)
_with_cache = functools.partial(
    Architecture, make_batch=next_words, arguments={"use_cache": True}, remark=CACHE
)

ROWS = (
    _row("gpt2", "transformers.GPT2LMHeadModel", GPT2),
    _with_cache("gpt2-cache", "transformers.GPT2LMHeadModel", GPT2),
    _row(
        "gpt2-states",
        "transformers.GPT2LMHeadModel",
        GPT2,
        arguments={**NO_CACHE, "output_hidden_states": True},
        loss=_loss_of_states,
        remark="with a loss of its hidden states",
    ),
    _row("gpt-neox", "transformers.GPTNeoXForCausalLM", ROTARY),
    _row("llama", "transformers.LlamaForCausalLM", GROUPED),
    _with_cache("llama-cache", "transformers.LlamaForCausalLM", GROUPED),
    _row(
        "llama-states",
        "transformers.LlamaForCausalLM",
        GROUPED,
        arguments={**NO_CACHE, "output_hidden_states": True},
        loss=_loss_of_states,
        refused=r"the forward\(\) of LlamaDecoderLayer .* was replaced in a step",
        remark="with a loss of its hidden states",
    ),
    _row("mistral", "transformers.MistralForCausalLM", {**GROUPED, "sliding_window": 6}),
    _row("qwen2", "transformers.Qwen2ForCausalLM", {**GROUPED, "tie_word_embeddings": True}),
    _row("qwen3", "transformers.Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    _row("phi", "transformers.PhiForCausalLM", ROTARY),
    _row("gemma", "transformers.GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    _row("gemma3", "transformers.Gemma3ForCausalLM", {**GROUPED, "head_dim": 8}),
    _row(
        "opt",
        "transformers.OPTForCausalLM",
        {**ROTARY, "ffn_dim": 64, "word_embed_proj_dim": 32},
    ),
    _row(
        "bloom",
        "transformers.BloomForCausalLM",
        {**_WORDS, "hidden_size": 32, "n_layer": 4, "n_head": 4},
    ),
    _row("falcon", "transformers.FalconForCausalLM", {**_WORDS, **_WIDTHS}),
    _row(
        "mamba",
        "transformers.MambaForCausalLM",
        {**MAMBA, "state_size": 4, "time_step_rank": 4},
    ),
    _row(
        "mamba2",
        "transformers.Mamba2ForCausalLM",
        {**MAMBA, "state_size": 8, "head_dim": 8, "num_heads": 8, "n_groups": 2, "chunk_size": 4},
    ),
)
