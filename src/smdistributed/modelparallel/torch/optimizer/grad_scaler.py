# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.amp.GradScaler`: torch's, for gradients that lie on several ranks.

    scaler = smp.amp.GradScaler()

    @smp.step
    def train_step(model, scaler, x, y):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        model.backward(scaler.scale(loss))
        return loss

    train_step(model, scaler, x, y)
    scaler.step(optimizer)
    scaler.update()

Source: modelparallel specification, section 4.9.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import state
from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """As `torch.amp.GradScaler`, of the device that this rank's part of the model is on.

    Only leaders call `scale`, inside a step; the scale of the other ranks begins when they first
    need it. `unscale_`, `step` and `update` are called by all ranks, outside of steps. Where one
    rank of a model finds an infinite gradient or a NaN, all of them skip the step.

    It works on CPUs too. State dictionaries are the same on all ranks, and torch's.

    Args:
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(
            _device().type,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )

    def scale(self, outputs: Any) -> Any:
        """As in torch.

        Raises:
            RuntimeError: the configuration has `fp16` or `bf16`.
        """
        if self.is_enabled() and state.initialized and (state.cfg.fp16 or state.cfg.bf16):
            raise RuntimeError(
                "smp.amp.GradScaler was used with fp16 or bf16 in the configuration, where"
                " smp.DistributedOptimizer has the loss scale and model.backward() applies it;"
                " expected one of the two. Leave the scaler out, or pass enabled=False."
            )
        return super().scale(outputs)

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[Tensor, Tensor]:
        if self._scale is None:  # this rank has scaled nothing
            self._lazy_init_scale_growth_tracker(_device())
        return super()._check_scale_growth_tracker(funcname)

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        job = state.require("GradScaler.unscale_()")
        pipeline = current_pipeline("GradScaler.unscale_()")
        if not pipeline.is_outside:
            raise RuntimeError(
                "GradScaler.unscale_() or step() was called inside of a step; expected a call after"
                " it, on all ranks, when the gradients are there. Move the call out of the function"
                " that is decorated with @smp.step."
            )
        if state.model is not None:
            state.model.reduce_pending()
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        worst = torch.zeros((), dtype=torch.float32, device="cpu")
        for each in found.values():
            worst = torch.maximum(worst, each.cpu())
        if job.size_of(GroupKind.MP) > 1:
            dist.all_reduce(worst, dist.ReduceOp.MAX, group=job.cpu_group(GroupKind.MP))
        return {found_inf.device: worst.to(found_inf.device)}


def _device() -> torch.device:
    if state.initialized:
        return state.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
