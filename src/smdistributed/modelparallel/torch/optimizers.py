# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.optimizers`: a published path; the code is in `optimizer.fused`."""

from smdistributed.modelparallel.torch.optimizer.fused import (
    FusedAdam,
    FusedLAMB,
    FusedLamb,
    FusedNovoGrad,
)

__all__ = ["FusedAdam", "FusedLAMB", "FusedLamb", "FusedNovoGrad"]
