# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small helpers that scripts import from here.

Source: modelparallel specification, section 0.
"""

from __future__ import annotations

from smdistributed.modelparallel.torch.job.state import state

__all__ = ["rmsg"]


def rmsg(msg: object) -> str:
    """A message with the rank in front: `"rank 3: ..."`; before `smp.init()` as it is."""
    return f"rank {state.rank}: {msg}" if state.initialized else str(msg)
