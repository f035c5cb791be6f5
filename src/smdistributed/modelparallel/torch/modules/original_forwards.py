# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`super()._orig_forward(...)`, which scripts for the original write for `super().forward(...)`.

The original replaced `forward`, so its scripts call what was there before. Here nothing is
replaced, and both are the same.

Source: modelparallel specification, section 5.
"""

from __future__ import annotations

from torch import nn

__all__ = ["offer_original_forwards"]

_NAME = "_orig_forward"


def offer_original_forwards(model: nn.Module) -> None:
    """Gives every class of every module its own `forward` under the other name too."""
    for cls in {cls for module in model.modules() for cls in type(module).__mro__}:
        own = cls.__dict__
        if "forward" in own and _NAME not in own:
            setattr(cls, _NAME, own["forward"])
