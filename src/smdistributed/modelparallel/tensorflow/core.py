# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.core.initialized`, which debuggers read: whether `smp.init()` has run in this process.

Source: TensorFlow modelparallel specification, section 1.
"""

from __future__ import annotations

from smdistributed.modelparallel.tensorflow.job.state import state as _state

initialized: bool
"""Looked up at each access."""


def __getattr__(name: str) -> bool:
    if name == "initialized":
        return _state.initialized
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
