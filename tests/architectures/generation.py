# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Text that trained models write: `generate()`, in a step, with its caches."""

from __future__ import annotations

import functools

from tests.architectures.audio import WHISPER, spoken_spectra
from tests.architectures.batches import next_words, translations
from tests.architectures.decoders import GPT2, GROUPED, NO_CACHE
from tests.architectures.encoder_decoders import BART, T5
from tests.architectures.registry import Architecture

TITLE = "Generation"

_GREEDY = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "use_cache": True}
_BEAMS = {**_GREEDY, "num_beams": 3}
_STATIC = {**_GREEDY, "cache_implementation": "static", "disable_compile": True}

_row = functools.partial(
    Architecture,
    make_batch=translations,
    arguments=NO_CACHE,
    generate=_GREEDY,
    remark="eight tokens for each sample, with a cache",
)

ROWS = (
    _row("gpt2-writes", "transformers.GPT2LMHeadModel", GPT2, make_batch=next_words),
    _row("llama-writes", "transformers.LlamaForCausalLM", GROUPED, make_batch=next_words),
    _row(
        "llama-writes-static-cache",
        "transformers.LlamaForCausalLM",
        GROUPED,
        make_batch=next_words,
        generate=_STATIC,
        refused="another microbatch changed its argument 'past_key_values' too",
        remark="with a cache of a fixed size, which the model keeps for all microbatches",
    ),
    _row(
        "llama-writes-static-cache-in-turn",
        "transformers.LlamaForCausalLM",
        GROUPED,
        make_batch=next_words,
        generate=_STATIC,
        settings={"active_microbatches": 1},
        remark="the same with `active_microbatches: 1`",
    ),
    _row("t5-writes", "transformers.T5ForConditionalGeneration", T5),
    _row("bart-writes", "transformers.BartForConditionalGeneration", BART),
    _row(
        "t5-writes-without-cache",
        "transformers.T5ForConditionalGeneration",
        T5,
        generate={**_GREEDY, "use_cache": False},
        remark="eight tokens for each sample, without a cache",
    ),
    _row(
        "t5-writes-with-beams",
        "transformers.T5ForConditionalGeneration",
        T5,
        generate=_BEAMS,
        remark="the best of three beams for each sample, with a cache",
    ),
    _row(
        "whisper-writes",
        "transformers.WhisperForConditionalGeneration",
        WHISPER,
        make_batch=spoken_spectra,
    ),
)
