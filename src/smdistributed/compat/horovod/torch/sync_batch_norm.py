# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`SyncBatchNorm`, which is torch's. Source: Horovod's public API; see docs/horovod.md."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from smdistributed.compat.horovod.torch.job import is_initialized, require_group
from smdistributed.dataparallel.exceptions import SMDDPUnsupported

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """Batch normalisation over the batches of all ranks, for tensors on a GPU.

    Args:
        num_features, eps, momentum, affine, track_running_stats: as of torch's `BatchNorm2d`.

    Raises:
        SMDDPUnsupported: (a NotImplementedError) in the forward pass, if several ranks train it
            with a tensor that is not on a GPU.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: Tensor) -> Any:
        """The normalised input, of shape `[N, C, ...]`."""
        is_local = not self.training and self.track_running_stats
        group = require_group("SyncBatchNorm") if is_initialized() else None
        if group is None or group.size() == 1 or is_local:
            return _BatchNorm.forward(self, input)
        if not input.is_cuda:
            raise SMDDPUnsupported(
                f"hvd.SyncBatchNorm got a tensor on {input.device}; expected one on a GPU, as"
                " torch's own SyncBatchNorm does. Use torch.nn.BatchNorm2d on CPUs."
            )
        self.process_group = group
        try:
            return super().forward(input)
        finally:
            self.process_group = None  # modules are copied and pickled, groups cannot be
