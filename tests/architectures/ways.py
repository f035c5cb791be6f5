# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of the other files, trained in other ways: checkpointed, with caches, in bfloat16."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from tests.architectures.batches import images, next_words, translations
from tests.architectures.decoders import GPT2, GROUPED, NO_CACHE
from tests.architectures.diffusion import UNET, noise_loss, noisy
from tests.architectures.encoder_decoders import BART, T5
from tests.architectures.registry import Architecture, Batch, Loss, own_loss
from tests.architectures.vision import RESNET

TITLE = "Ways to train"

_CACHE = {"use_cache": True}
_OURS = "blocks with `smp.set_activation_checkpointing`"
_THEIRS = "`gradient_checkpointing_enable()`"
_HALF = {r"transformer\.h\.(2|3)": 1}


def _checkpoint(model: Any) -> None:
    model.gradient_checkpointing_enable()


def _checkpoint_reentrant(model: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})


def _in_bfloat16(model: Any, batch: Batch, loss_of: Loss = own_loss) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_of(model, batch)


_decoder = functools.partial(Architecture, make_batch=next_words, arguments=_CACHE)
_pair = functools.partial(Architecture, make_batch=translations, arguments=_CACHE)
_bfloat16 = functools.partial(Architecture, loss=_in_bfloat16, remark="bfloat16 by autocast")

ROWS = (
    _decoder(
        "gpt2-cache-checkpointed",
        "transformers.GPT2LMHeadModel",
        GPT2,
        checkpointed=r"transformer\.h\.\d",
        places=_HALF,
        remark=f"a cache, and {_OURS}",
    ),
    _decoder(
        "llama-cache-checkpointed",
        "transformers.LlamaForCausalLM",
        GROUPED,
        checkpointed=r"model\.layers\.\d",
        remark=f"a cache, and {_OURS}",
    ),
    _pair(
        "bart-cache-checkpointed",
        "transformers.BartForConditionalGeneration",
        BART,
        checkpointed=r".*\.layers\.\d",
        remark=f"a cache, and {_OURS}",
    ),
    _pair(
        "t5-cache-checkpointed",
        "transformers.T5ForConditionalGeneration",
        T5,
        checkpointed=r".*\.block\.\d",
        remark=f"a cache, and {_OURS}",
    ),
    _decoder(
        "gpt2-checkpointed",
        "transformers.GPT2LMHeadModel",
        GPT2,
        arguments=NO_CACHE,
        checkpointed=r"transformer\.h\.\d",
        places=_HALF,
        remark=_OURS,
    ),
    _decoder(
        "llama-cache-gradient-checkpointing",
        "transformers.LlamaForCausalLM",
        GROUPED,
        prepare=_checkpoint_reentrant,
        remark=f"a cache, and {_THEIRS}, reentrant, which turns it off",
    ),
    _decoder(
        "gpt2-cache-gradient-checkpointing",
        "transformers.GPT2LMHeadModel",
        GPT2,
        prepare=_checkpoint,
        remark=f"a cache, and {_THEIRS}, which turns it off",
    ),
    _pair(
        "bart-cache-gradient-checkpointing",
        "transformers.BartForConditionalGeneration",
        BART,
        prepare=_checkpoint,
        remark=f"a cache, and {_THEIRS}, which turns it off",
    ),
    _pair(
        "t5-cache-gradient-checkpointing",
        "transformers.T5ForConditionalGeneration",
        T5,
        prepare=_checkpoint,
        remark=f"a cache, and {_THEIRS}, which turns it off",
    ),
    _bfloat16(
        "gpt2-bfloat16",
        "transformers.GPT2LMHeadModel",
        GPT2,
        next_words,
        arguments=NO_CACHE,
    ),
    _bfloat16(
        "gpt2-bfloat16-checkpointed",
        "transformers.GPT2LMHeadModel",
        GPT2,
        next_words,
        arguments=NO_CACHE,
        checkpointed=r"transformer\.h\.\d",
        places=_HALF,
        remark=f"bfloat16 by autocast, and {_OURS}",
    ),
    _bfloat16(
        "t5-bfloat16-gradient-checkpointing",
        "transformers.T5ForConditionalGeneration",
        T5,
        translations,
        arguments=_CACHE,
        prepare=_checkpoint,
        remark=f"bfloat16 by autocast, and {_THEIRS}",
    ),
    _bfloat16(
        "llama-bfloat16",
        "transformers.LlamaForCausalLM",
        GROUPED,
        next_words,
        arguments=NO_CACHE,
    ),
    _bfloat16(
        "t5-bfloat16",
        "transformers.T5ForConditionalGeneration",
        T5,
        translations,
        arguments=NO_CACHE,
    ),
    _bfloat16(
        "bart-bfloat16",
        "transformers.BartForConditionalGeneration",
        BART,
        translations,
        arguments=NO_CACHE,
    ),
    _bfloat16(
        "resnet-bfloat16",
        "transformers.ResNetForImageClassification",
        RESNET,
        images(64),
        rate=0.01,
    ),
    _bfloat16(
        "unet-2d-bfloat16",
        "diffusers.UNet2DModel",
        UNET,
        noisy(3, 16, 16),
        loss=functools.partial(_in_bfloat16, loss_of=noise_loss),
    ),
)
