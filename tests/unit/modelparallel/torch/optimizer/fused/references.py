# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""LAMB, NovoGrad and Adam as they are written down: one parameter after the other, in float64.

A reference keeps parameters and states of its own; a gradient that is None skips its parameter,
and counts as a step of the group, as in Apex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Gradients = Sequence[Sequence[Array | None]]


def array(tensor: Tensor) -> Array:
    return tensor.detach().double().cpu().numpy().copy()


class Reference:
    """Groups of parameters, each with its options."""

    def __init__(self, groups: Sequence[dict[str, Any]], **defaults: Any) -> None:
        self.groups = [{**defaults, **group} for group in groups]
        for group in self.groups:
            group["p"] = [array(each) for each in group["params"]]
            group["m"] = [np.zeros_like(each) for each in group["p"]]
            group["v"] = [np.zeros_like(each) for each in group["p"]]
            group["n"] = [None] * len(group["p"])
        self.count = 0

    def step(self, gradients: Gradients) -> None:
        self.count += 1
        for group, ours in zip(self.groups, gradients, strict=True):
            b1, b2 = group["betas"]
            corrected = group.get("bias_correction", True)
            c1 = 1 - b1**self.count if corrected else 1.0
            c2 = 1 - b2**self.count if corrected else 1.0
            for number, gradient in enumerate(ours):
                if gradient is not None:
                    self.update(group, number, gradient, c1, c2)

    def update(self, group: Any, number: int, g: Array, c1: float, c2: float) -> None:
        raise NotImplementedError


class PlainAdam(Reference):
    def update(self, group: Any, number: int, g: Array, c1: float, c2: float) -> None:
        (b1, b2), decay = group["betas"], group["weight_decay"]
        p, m, v = (group[name][number] for name in "pmv")
        if not group["adam_w_mode"]:
            g = g + decay * p
        m[...] = b1 * m + (1 - b1) * g
        v[...] = b2 * v + (1 - b2) * g * g
        update = (m / c1) / (np.sqrt(v / c2) + group["eps"])
        if group["adam_w_mode"]:
            update = update + decay * p
        p[...] = p - group["lr"] * update


class PlainLamb(Reference):
    def step(self, gradients: Gradients) -> None:
        found = [each for ours in gradients for each in ours if each is not None]
        norm = math.sqrt(sum(float((each * each).sum()) for each in found))
        longest = self.groups[0]["max_grad_norm"]
        clip = norm / longest if longest and norm > longest else 1.0
        super().step(
            [[None if each is None else each / clip for each in ours] for ours in gradients]
        )

    def update(self, group: Any, number: int, g: Array, c1: float, c2: float) -> None:
        (b1, b2), decay = group["betas"], group["weight_decay"]
        b3 = 1 - b1 if group["grad_averaging"] else 1.0
        p, m, v = (group[name][number] for name in "pmv")
        if not group["adam_w_mode"]:
            g = g + decay * p
        m[...] = b1 * m + b3 * g
        v[...] = b2 * v + (1 - b2) * g * g
        update = (m / c1) / (np.sqrt(v / c2) + group["eps"])
        if group["adam_w_mode"]:
            update = update + decay * p
        ratio = 1.0
        if group["use_nvlamb"] or decay != 0:
            p_norm, u_norm = np.sqrt((p * p).sum()), np.sqrt((update * update).sum())
            if p_norm != 0 and u_norm != 0:
                ratio = p_norm / u_norm
        p[...] = p - group["lr"] * ratio * update


class PlainNovoGrad(Reference):
    def update(self, group: Any, number: int, g: Array, c1: float, c2: float) -> None:
        (b1, b2), decay = group["betas"], group["weight_decay"]
        b3 = 1 - b1 if group["grad_averaging"] else 1.0
        p, m = group["p"][number], group["m"][number]
        if not p.size:
            return
        is_inf = group["norm_type"] in (0, math.inf)
        norm = np.abs(g).max() if is_inf else np.sqrt((g * g).sum())
        before = group["n"][number]
        if before is None:
            before = 0.0 if group["init_zero"] else norm
        if is_inf:
            mean = b2 * before + (1 - b2) * norm
        else:
            mean = math.sqrt(b2 * before**2 + (1 - b2) * norm**2)
        group["n"][number] = mean
        denominator = mean / math.sqrt(c2) + group["eps"]
        if group["reg_inside_moment"]:
            m[...] = b1 * m + b3 * (g / denominator + decay * p)
            update = m / c1
        else:
            m[...] = b1 * m + b3 * g
            update = m / c1 / denominator + decay * p
        p[...] = p - group["lr"] * update
