# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers.FusedAdam`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused import kernels
from smdistributed.modelparallel.torch.optimizer.fused.base import FusedOptimizer
from smdistributed.modelparallel.torch.optimizer.fused.batches import in_batches

__all__ = ["FusedAdam"]


class FusedAdam(FusedOptimizer):
    """Adam or AdamW, with the signature of `apex.optimizers.FusedAdam`.

    Runs torch's fused kernels, on CPU and CUDA. Parameters and gradients may be 16-bit: arithmetic
    and states are float32 then.

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

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        columns = (
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            self._states(parameters, "exp_avg"),
            self._states(parameters, "exp_avg_sq"),
        )
        step = kernels.step_tensor(group["step"], group["bias_correction"], parameters[0].device)
        for _, (p, g, m, v) in in_batches(columns):
            kernels.adam(
                *(p, g, m, v),
                step=step,
                lr=float(group["lr"]),
                b1=group["betas"][0],
                b2=group["betas"][1],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                decoupled=bool(self.adam_w_mode),
            )
