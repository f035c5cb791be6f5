# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers.FusedAdam`, and the call of torch's fused kernel, which `FusedLAMB` makes too."""

from __future__ import annotations

import math
from typing import Any

import torch

from smdistributed.modelparallel.torch.optimizer.fused.base import FusedOptimizer, Tensors

__all__ = ["FusedAdam", "adam"]


class FusedAdam(FusedOptimizer):
    """Adam or AdamW, with the signature of `apex.optimizers.FusedAdam`.

    Runs torch's fused kernels, on CPU and CUDA. Parameters and gradients may be 16-bit: arithmetic
    and states are float32 then. `torch.optim.Adam(fused=True)` would keep 16-bit states, has no
    `bias_correction=False`, and counts steps by parameter, not by group.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        bias_correction: False: moments are used as they are.
        betas: of the running means of the gradient and of its square; in [0, 1).
        eps: added to the denominator.
        adam_w_mode: True: decay as in AdamW; False: added to the gradient, as in Adam.
        weight_decay: 0 is none.
        amsgrad: must be False.
        set_grad_none: see `zero_grad`.

    Raises:
        RuntimeError: `amsgrad`.
        ValueError: options out of range.

    Source: modelparallel specification, section 4.10; Apex's documentation.
    """

    _attributes = (*FusedOptimizer._attributes, "adam_w_mode")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults, set_grad_none=set_grad_none, amsgrad=amsgrad)
        self.adam_w_mode = 1 if adam_w_mode else 0

    def _update(self, group: dict[str, Any], states: list[dict[str, Any]], *work: Tensors) -> None:
        adam(
            *work,
            group=group,
            lr=float(group["lr"]),
            weight_decay=group["weight_decay"],
            decoupled=bool(self.adam_w_mode),
        )


def adam(
    p: Tensors,
    g: Tensors,
    m: Tensors,
    v: Tensors,
    *,
    group: dict[str, Any],
    lr: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Updates `p -= lr * (m / c1) / (sqrt(v / c2) + eps)`.

    Args:
        group: gives the step, the betas and eps.
        decoupled: True: `p` decays, as in AdamW; False: the decay is added to `g`.
    """
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    b1, b2 = group["betas"]
    # The kernel always corrects; after infinitely many steps that is a division by 1.
    count = group["step"] if group["bias_correction"] else math.inf
    step = torch.full((), count, dtype=torch.float32, device=p[0].device)
    kernel(
        *(p, g, m, v, [], [step] * len(p)),
        lr=lr,
        beta1=b1,
        beta2=b2,
        weight_decay=weight_decay,
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )
