# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers.FusedNovoGrad`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused.base import FusedOptimizer, Tensors
from smdistributed.modelparallel.torch.optimizer.fused.batches import arithmetic_dtype, in_pieces

__all__ = ["FusedNovoGrad"]

_ORDERS = {2: 2.0, 0: math.inf, math.inf: math.inf}


class FusedNovoGrad(FusedOptimizer):
    """NovoGrad, with the signature of `apex.optimizers.FusedNovoGrad`.

    The second moment is one number for each tensor: a running mean of its gradient's norm, under
    the key `exp_avg_sq` of the parameter's state (Apex keeps a list in the group).

    Parameters and gradients may be 16-bit: arithmetic and states are float32 then.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        bias_correction: False: moments are used as they are.
        betas: of the running means of the gradient and of its norm; in [0, 1).
        eps: added to the denominator.
        weight_decay: 0 is none.
        amsgrad: must be False.
        reg_inside_moment: gradients are divided by the norm, and decay is added, before their mean
            is taken instead of after.
        grad_averaging: False: the first moment is a sum, not a mean.
        norm_type: 2, or 0 or infinity for the largest absolute value.
        init_zero: the mean of norms begins with 0 instead of the first norm.
        set_grad_none: see `zero_grad`.

    Raises:
        RuntimeError: `amsgrad`.
        ValueError: options out of range.

    Source: modelparallel specification, section 4.10; Apex's documentation.
    """

    _attributes = (*FusedOptimizer._attributes, "moment_mode")
    _moments = ("exp_avg",)

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        reg_inside_moment: bool = False,
        grad_averaging: bool = True,
        norm_type: float = 2,
        init_zero: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "norm_type": norm_type,
            "init_zero": init_zero,
        }
        super().__init__(params, defaults, set_grad_none=set_grad_none, amsgrad=amsgrad)
        self.moment_mode = 0 if reg_inside_moment else 1

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; it also checks the options."""
        super().add_param_group(param_group)
        norm_type = self.param_groups[-1]["norm_type"]
        if norm_type not in _ORDERS:
            raise ValueError(
                f"FusedNovoGrad: norm_type is {norm_type}; expected 2, or 0 or infinity for the"
                " largest absolute value. Correct it."
            )

    def _initial_state(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
        # No norm is negative: -1 stands for one that is not known yet.
        norm = 0.0 if group["init_zero"] else -1.0
        dtype = arithmetic_dtype(parameter.dtype)
        return {
            **super()._initial_state(group, parameter),
            "exp_avg_sq": torch.full((), norm, dtype=dtype, device=parameter.device),
        }

    def _update(self, group: dict[str, Any], states: list[dict[str, Any]], *work: Tensors) -> None:
        """Updates `p -= lr * (m / c1 / d + decay * p)`.

        The denominator is `d = n / sqrt(c2) + eps`. The second moment n is a running mean of the
        norm of the whole gradient: n becomes sqrt(b2 * n^2 + (1 - b2) * |g|^2), or
        b2 * n + (1 - b2) * |g| if the norm is of order infinity, or |g| where n is negative.

        With `reg_inside_moment`, m is a mean of g / d + decay * p, and p -= lr * m / c1.
        """
        p, g, m = work
        lr, decay, (b1, b2) = float(group["lr"]), group["weight_decay"], group["betas"]
        step = group["step"]
        c1, c2 = (1.0 - b1**step, 1.0 - b2**step) if group["bias_correction"] else (1.0, 1.0)
        b3 = 1.0 - b1 if group["grad_averaging"] else 1.0
        order = _ORDERS[group["norm_type"]]
        norms = [state["exp_avg_sq"] for state in states]
        before = torch.stack(norms)
        now = torch.stack(torch._foreach_norm(g, order))
        if order == math.inf:
            mean = b2 * before + (1.0 - b2) * now
        else:
            mean = (b2 * before.square() + (1.0 - b2) * now.square()).sqrt()
        mean = torch.where(before < 0.0, now, mean)
        torch._foreach_copy_(norms, mean.unbind())
        inverses = (mean.double() / math.sqrt(c2) + group["eps"]).reciprocal().tolist()
        for places, (p_, g_, m_) in in_pieces((p, g, m)):
            scales = [inverses[place] for place in places]
            torch._foreach_mul_(m_, b1)
            if self.moment_mode == 0:
                torch._foreach_add_(m_, torch._foreach_mul(g_, [b3 * each for each in scales]))
                if decay != 0.0:
                    torch._foreach_add_(m_, p_, alpha=b3 * decay)
                torch._foreach_add_(p_, m_, alpha=-lr / c1)
            else:
                torch._foreach_add_(m_, g_, alpha=b3)
                if decay != 0.0:
                    torch._foreach_mul_(p_, 1.0 - lr * decay)
                rates = [-lr / c1 * each for each in scales]
                torch._foreach_add_(p_, torch._foreach_mul(m_, rates))
