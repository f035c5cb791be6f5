# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of Mixtral's routers for any partition: layers return their router's logits.

transformers collects these logits by replacing `forward` of the blocks for the time of a call,
which ranks that run other blocks do not see. What a module returns comes back from any rank: here
each layer takes and returns (hidden states, logits of the layers before it, its own).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import (
    MixtralForCausalLM,
    load_balancing_loss_func,
)


class ReturningLayer(nn.Module):
    """A decoder layer that adds its router's logits to what it passes on."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.input_norm = layer.input_layernorm
        self.attention = layer.self_attn
        self.experts_norm = layer.post_attention_layernorm
        self.experts = layer.block_sparse_moe

    def forward(self, passed: Tensor | tuple[Tensor, ...], **options: Any) -> tuple[Tensor, ...]:
        hidden, *logits = passed if isinstance(passed, tuple) else (passed,)
        attended, _ = self.attention(hidden_states=self.input_norm(hidden), **options)
        hidden = hidden + attended
        changed, own = self.experts(self.experts_norm(hidden))
        return (hidden + changed, *logits, own)


class ReturningNorm(nn.Module):
    """The norm after the last layer; the logits pass by."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, passed: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *logits = passed
        return (self.norm(hidden), *logits)


class MixtralWithRouterLoss(nn.Module):
    """What MixtralForCausalLM computes with `output_router_logits`: the same loss and weights."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        model = MixtralForCausalLM(MixtralConfig(**sizes, use_cache=False))
        self.config = model.config
        self.backbone = model.model
        self.backbone.layers = nn.ModuleList(map(ReturningLayer, model.model.layers))
        self.backbone.norm = ReturningNorm(model.model.norm)
        self.head = model.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        hidden, *logits = self.backbone(input_ids).last_hidden_state
        scores = self.head(hidden)[:, :-1]
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())
        of_routers = load_balancing_loss_func(
            tuple(logits), self.config.num_local_experts, self.config.num_experts_per_tok
        )
        result: Tensor = loss + self.config.router_aux_loss_coef * of_routers
        return result
