# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers.FusedLAMB`."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused import kernels
from smdistributed.modelparallel.torch.optimizer.fused.base import FusedOptimizer
from smdistributed.modelparallel.torch.optimizer.fused.batches import Scratch, in_batches
from smdistributed.modelparallel.torch.optimizer.gradient_norms import total_norm
from smdistributed.modelparallel.torch.optimizer.sharding import parameters_of

__all__ = ["FusedLAMB"]


class FusedLAMB(FusedOptimizer):
    """LAMB, with the signature of `apex.optimizers.FusedLAMB`.

    Gradients of all groups are scaled together so that their norm is at most `max_grad_norm`; they
    themselves stay as they are (Apex's change). Of a model on several ranks it is the norm over all
    of them, so `step` is a collective of the MP group then, blocking.

    Parameters and gradients may be 16-bit: arithmetic and states are float32 then.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        bias_correction: False: moments are used as they are.
        betas: of the running means of the gradient and of its square; in [0, 1).
        eps: added to the denominator.
        weight_decay: 0 is none, and no trust ratio either unless `use_nvlamb`.
        amsgrad: must be False.
        adam_w_mode: True: decay as in AdamW; False: added to the scaled gradient.
        grad_averaging: False: the first moment is a sum, not a mean.
        set_grad_none: see `zero_grad`.
        max_grad_norm: of all groups; 0, infinity or None: gradients are not scaled (ours).
        use_nvlamb: trust ratios also for parameters without decay.

    Raises:
        RuntimeError: `amsgrad`.
        ValueError: options out of range.

    Source: modelparallel specification, section 4.10; Apex's documentation.
    """

    _attributes = (*FusedOptimizer._attributes, "adam_w_mode", "use_nvlamb", "_scratch")

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        adam_w_mode: bool = True,
        grad_averaging: bool = True,
        set_grad_none: bool = True,
        max_grad_norm: float | None = 1.0,
        use_nvlamb: bool = False,
    ) -> None:
        if max_grad_norm is not None and not max_grad_norm >= 0.0:
            raise ValueError(
                f"FusedLAMB: max_grad_norm is {max_grad_norm}; expected 0 or more. Correct it; 0"
                " leaves gradients as long as they are."
            )
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "max_grad_norm": max_grad_norm,
        }
        super().__init__(params, defaults, set_grad_none=set_grad_none, amsgrad=amsgrad)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.use_nvlamb = use_nvlamb
        self._scratch = Scratch()

    def _begin_step(self) -> None:
        longest = self.defaults["max_grad_norm"]
        self._clip = 1.0
        if longest and longest != math.inf:
            norm = total_norm(parameters_of(self))
            self._clip = norm / longest if norm > longest else 1.0

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        columns = (
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            self._states(parameters, "exp_avg"),
            self._states(parameters, "exp_avg_sq"),
        )
        step = kernels.step_tensor(group["step"], group["bias_correction"], parameters[0].device)
        for _, (p, g, m, v) in in_batches(columns):
            kernels.lamb(
                *(p, g, m, v),
                step=step,
                lr=float(group["lr"]),
                b1=group["betas"][0],
                b2=group["betas"][1],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                decoupled=bool(self.adam_w_mode),
                grad_averaging=group["grad_averaging"],
                clip=self._clip,
                is_adaptive=self.use_nvlamb or group["weight_decay"] != 0.0,
                scratch=self._scratch,
            )
