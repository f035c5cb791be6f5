# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.amp`: a published path; the code is in `optimizer.grad_scaler`."""

from smdistributed.modelparallel.torch.optimizer.grad_scaler import GradScaler

__all__ = ["GradScaler"]
