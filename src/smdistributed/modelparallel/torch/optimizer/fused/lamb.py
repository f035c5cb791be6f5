# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers.FusedLAMB`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused.adam import adam
from smdistributed.modelparallel.torch.optimizer.fused.base import FusedOptimizer, Tensors
from smdistributed.modelparallel.torch.optimizer.fused.batches import Scratch, in_pieces
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

    def _update(self, group: dict[str, Any], states: list[dict[str, Any]], *work: Tensors) -> None:
        """Updates `p -= lr * r * u`.

        The update is `u = (m / c1) / (sqrt(v / c2) + eps) + decay * p`. The trust ratio
        `r = |p| / |u|` is that of the whole tensor, and 1 where |p| or |u| is 0.

        First u is computed for the whole batch, by torch's kernel of Adam, which subtracts from
        zeros at a rate of -1. Then p is updated.
        """
        p, g, m, v = work
        decay, is_decoupled = group["weight_decay"], bool(self.adam_w_mode)
        is_adaptive = self.use_nvlamb or decay != 0.0
        # Without averaging m is a sum, which the kernel does not know: the mean times 1 / (1 - b1).
        share = 1.0 if group["grad_averaging"] else 1.0 - group["betas"][0]
        pieces = list(in_pieces((p, g, m, v, self._scratch.like(p))))
        owners: list[int] = []
        norms: list[Tensor] = []
        update_norms: list[Tensor] = []
        for places, (p_, g_, m_, v_, u_) in pieces:
            gradients: Tensors = torch._foreach_div(g_, self._clip) if self._clip != 1.0 else g_
            if decay != 0.0 and not is_decoupled:
                gradients = torch._foreach_add(gradients, p_, alpha=decay)
            if share != 1.0:
                torch._foreach_mul_(m_, share)
            torch._foreach_zero_(u_)
            rate = -1.0 / share
            adam(u_, gradients, m_, v_, group=group, lr=rate, weight_decay=0.0, decoupled=True)
            if share != 1.0:
                torch._foreach_div_(m_, share)
            if decay != 0.0 and is_decoupled:
                torch._foreach_add_(u_, p_, alpha=decay)
            if is_adaptive:
                owners += places
                norms += torch._foreach_norm(p_)
                update_norms += torch._foreach_norm(u_)
        lr = float(group["lr"])
        rates = [-lr] * len(p)
        if is_adaptive:
            length, update_length = (_of_tensors(each, owners) for each in (norms, update_norms))
            # NaN is not 0, and spreads.
            is_known = (length != 0.0) & (update_length != 0.0)
            rates = (torch.where(is_known, length / update_length, 1.0) * -lr).tolist()
        for places, (p_, _, _, _, u_) in pieces:
            torch._foreach_mul_(u_, [rates[place] for place in places])
            torch._foreach_add_(p_, u_)


def _of_tensors(norms: Tensors, owners: Sequence[int]) -> Tensor:
    """Norms of tensors, from those of pieces and whose pieces they are, in ascending order."""
    squares = torch.stack(norms).double().square()
    total = torch.zeros(owners[-1] + 1, dtype=squares.dtype, device=squares.device)
    return total.index_add_(0, torch.tensor(owners, device=squares.device), squares).sqrt()
