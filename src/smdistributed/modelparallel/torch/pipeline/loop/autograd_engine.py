# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ways into torch's autograd that leave out what nodes and gradients of ours do not need.

torch.autograd.backward() looks at the gradients first, for which it imports sympy (a second, once),
and takes longer than the engine for a short graph. The engine compares shapes too. And `apply` of a
Function is replaced while there is a pipeline, to look for placeholders (interception.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Function

__all__ = ["apply", "run_backward"]

# Torch's own, for classes of nodes to which no placeholders come.
apply = Function.__dict__["apply"]

_engine = getattr(torch.autograd.Variable, "_execution_engine", None)


def run_backward(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Accumulates into leaves what `torch.autograd.backward(roots, gradients)` would.

    Args:
        roots: that require grad.
        gradients: of the same shapes, dtypes and devices.
    """
    if _engine is None:  # it is no documented name
        torch.autograd.backward(roots, gradients)
    else:
        keep_graph = create_graph = False
        _engine.run_backward(
            tuple(roots),
            tuple(gradients),
            keep_graph,
            create_graph,
            (),  # all leaves
            allow_unreachable=True,
            accumulate_grad=True,
        )
