# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers.FusedNovoGrad`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused import kernels
from smdistributed.modelparallel.torch.optimizer.fused.base import FusedOptimizer
from smdistributed.modelparallel.torch.optimizer.fused.batches import (
    arithmetic_dtype,
    empty_like_work,
    in_batches,
)

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
        """As torch's, with a look at the options."""
        super().add_param_group(param_group)
        norm_type = self.param_groups[-1]["norm_type"]
        if norm_type not in _ORDERS:
            raise ValueError(
                f"FusedNovoGrad: norm_type is {norm_type}; expected 2, or 0 or infinity for the"
                " largest absolute value. Correct it."
            )

    def _initial_state(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
        # Until it is known, the norm is less than any can be.
        norm = 0.0 if group["init_zero"] else -1.0
        dtype = arithmetic_dtype(parameter.dtype)
        return {
            "exp_avg": empty_like_work(parameter).zero_(),
            "exp_avg_sq": torch.full((), norm, dtype=dtype, device=parameter.device),
        }

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        norms = self._states(parameters, "exp_avg_sq")
        columns = (
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            self._states(parameters, "exp_avg"),
        )
        for places, (p, g, m) in in_batches(columns):
            kernels.novograd(
                *(p, g, m),
                norms[places.start : places.stop],
                step=group["step"],
                bias_correction=group["bias_correction"],
                lr=float(group["lr"]),
                b1=group["betas"][0],
                b2=group["betas"][1],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                reg_inside_moment=self.moment_mode == 0,
                grad_averaging=group["grad_averaging"],
                order=_ORDERS[group["norm_type"]],
            )
