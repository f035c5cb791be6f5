# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts, with the loss of their routers and without."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from tests.architectures.batches import next_words
from tests.architectures.decoders import GROUPED, NO_CACHE
from tests.architectures.registry import Architecture, Batch

TITLE = "Text: mixtures of experts"

_GROUPED = {**GROUPED, "router_aux_loss_coef": 0.1, "num_experts_per_tok": 2}
MIXTRAL = {**_GROUPED, "num_local_experts": 4}
_QWEN3 = {**_GROUPED, "num_experts": 4, "moe_intermediate_size": 48, "head_dim": 8}
_QWEN2 = {
    **_GROUPED,
    "num_experts": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
_ATTENTION = {r"model\.layers\.\d\.self_attn": 1}
# Routers stay on partition 0, where their logits are collected; every second expert does not.
_EXPERTS = {r".*\.(0|2)\.self_attn": 1, r".*\.experts\.(1|3)": 1}


def _returned(model: Any, batch: Batch) -> Tensor:
    loss: Tensor = model(**batch)
    return loss


_row = functools.partial(Architecture, make_batch=next_words, arguments=NO_CACHE)
_with_loss = functools.partial(
    Architecture,
    make_batch=next_words,
    arguments={**NO_CACHE, "output_router_logits": True},
    remark="with the loss of its routers",
)
_placed = functools.partial(_with_loss, remark="with the loss of its routers, placed by hand")

ROWS = (
    _row("mixtral", "transformers.MixtralForCausalLM", MIXTRAL),
    _with_loss(
        "mixtral-routers",
        "transformers.MixtralForCausalLM",
        MIXTRAL,
        refused=r"the forward\(\) of MixtralSparseMoeBlock .* was replaced in a step",
    ),
    _placed(
        "mixtral-attention-placed", "transformers.MixtralForCausalLM", MIXTRAL, places=_ATTENTION
    ),
    _placed("mixtral-experts-placed", "transformers.MixtralForCausalLM", MIXTRAL, places=_EXPERTS),
    Architecture(
        "mixtral-returned",
        "tests.architectures.router_loss.MixtralWithRouterLoss",
        MIXTRAL,
        next_words,
        _returned,
        remark="with the loss of its routers, whose logits the layers return",
    ),
    _with_loss("qwen2-moe", "transformers.Qwen2MoeForCausalLM", _QWEN2),
    _row("qwen3-moe", "transformers.Qwen3MoeForCausalLM", _QWEN3),
    _with_loss(
        "qwen3-moe-routers",
        "transformers.Qwen3MoeForCausalLM",
        _QWEN3,
        refused=r"the forward\(\) of Qwen3MoeSparseMoeBlock .* was replaced in a step",
    ),
    _placed(
        "qwen3-moe-experts-placed", "transformers.Qwen3MoeForCausalLM", _QWEN3, places=_EXPERTS
    ),
)
