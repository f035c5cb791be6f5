# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is compared: families of optimizers, each with ours and others', and the bytes of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import smdistributed.modelparallel.torch as smp

RATE, DECAY = 1e-4, 0.01
Parameters = list[nn.Parameter]


class Plain:
    """An optimizer as it is written down: a loop over parameters, an operation at a time."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.count = 0
        self.first = [torch.zeros_like(each) for each in parameters]
        self.second = [torch.zeros_like(each) for each in parameters]


class PlainLamb(Plain):
    @torch.no_grad()
    def step(self) -> None:
        """With Apex's defaults."""
        self.count += 1
        gradients = [each.grad for each in self.parameters]
        norm = math.sqrt(sum(float(each.norm()) ** 2 for each in gradients))
        clip = max(norm, 1.0)
        c1, c2 = 1 - 0.9**self.count, 1 - 0.999**self.count
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            g = g / clip
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            update = (m / c1) / ((v / c2).sqrt() + 1e-6) + DECAY * p
            p_norm, update_norm = float(p.norm()), float(update.norm())
            ratio = p_norm / update_norm if p_norm != 0 and update_norm != 0 else 1.0
            p.sub_(update, alpha=RATE * ratio)


class PlainNovoGrad(Plain):
    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters)
        self.second = []

    @torch.no_grad()
    def step(self) -> None:
        """With Apex's defaults and a decay."""
        self.count += 1
        gradients = [each.grad for each in self.parameters]
        norms = [each.norm() for each in gradients]
        self.second = self.second or norms
        c1, c2 = 1 - 0.9**self.count, math.sqrt(1 - 0.999**self.count)
        for number, (p, g, m) in enumerate(
            zip(self.parameters, gradients, self.first, strict=True)
        ):
            mean = (0.999 * self.second[number] ** 2 + 0.001 * norms[number] ** 2).sqrt()
            self.second[number] = mean
            m.mul_(0.9).add_(g, alpha=0.1)
            update = (m / c1) / (mean / c2 + 1e-8) + DECAY * p
            p.sub_(update, alpha=RATE)


@dataclass(frozen=True)
class Family:
    """Columns that compute the same.

    Attributes:
        makes: by name; the first is ours.
        bytes_per_element: that a step reads and writes at least: each tensor once, but the gradient
            twice where its norm comes first.
    """

    makes: dict[str, Callable[[Parameters], Any]]
    bytes_per_element: int


FAMILIES = {
    "AdamW": Family(
        {
            "FusedAdam": lambda p: smp.optimizers.FusedAdam(p, lr=RATE, weight_decay=DECAY),
            "torch, fused": lambda p: torch.optim.AdamW(p, RATE, weight_decay=DECAY, fused=True),
            "torch, foreach": lambda p: torch.optim.AdamW(
                p, RATE, weight_decay=DECAY, foreach=True
            ),
            "torch, plain": lambda p: torch.optim.AdamW(p, RATE, weight_decay=DECAY, foreach=False),
        },
        28,
    ),
    "Adam": Family(
        {
            "FusedAdam": lambda p: smp.optimizers.FusedAdam(
                p, lr=RATE, weight_decay=DECAY, adam_w_mode=False
            ),
            "torch, fused": lambda p: torch.optim.Adam(p, RATE, weight_decay=DECAY, fused=True),
        },
        28,
    ),
    "LAMB": Family(
        {
            "FusedLAMB": lambda p: smp.optimizers.FusedLAMB(p, lr=RATE, weight_decay=DECAY),
            "plain": PlainLamb,
        },
        32,
    ),
    "NovoGrad": Family(
        {
            "FusedNovoGrad": lambda p: smp.optimizers.FusedNovoGrad(p, lr=RATE, weight_decay=DECAY),
            "plain": PlainNovoGrad,
        },
        24,
    ),
}

# Rows and their length; a forward reads x and writes y, a backward reads both and writes dx.
NORM_SHAPES = ((4096, 768), (1024, 4096))
NORM_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
NORM_TRANSFERS = 5
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "FusedLayerNorm": smp.nn.FusedLayerNorm,
    "torch": nn.LayerNorm,
}
