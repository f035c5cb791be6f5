# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers with Apex's names, signatures and arithmetic, without Apex: `smp.optimizers`.

`base` holds what the optimizers share; the arithmetic of each is in its `_update`. `batches`
prepares tensors for torch's operations on lists of tensors.

Source: modelparallel specification, section 4.10; Apex's documentation.
"""

from smdistributed.modelparallel.torch.optimizer.fused.adam import FusedAdam
from smdistributed.modelparallel.torch.optimizer.fused.lamb import FusedLAMB
from smdistributed.modelparallel.torch.optimizer.fused.novograd import FusedNovoGrad

FusedLamb = FusedLAMB

__all__ = ["FusedAdam", "FusedLAMB", "FusedLamb", "FusedNovoGrad"]
