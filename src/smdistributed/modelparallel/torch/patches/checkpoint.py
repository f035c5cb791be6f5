# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`torch.utils.checkpoint` for modules that may be on another rank.

Source: modelparallel specification, sections 0 and 6.4.
"""

from smdistributed.modelparallel.torch.recompute.calls import (
    checkpoint,
    checkpoint_sequential,
)

__all__ = ["checkpoint", "checkpoint_sequential"]
