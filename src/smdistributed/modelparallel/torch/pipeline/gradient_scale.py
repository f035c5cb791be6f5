# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What gradients are multiplied with where a backward pass begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Scale", "scaled"]


class Scale(NamedTuple):
    """Of a step's backward passes.

    Attributes:
        factor: of all gradients, such as a loss scale.
        weights: by microbatch, its share in a mean over the batch; None: gradients are summed.
    """

    factor: float = 1.0
    weights: Sequence[float] | None = None

    def of(self, microbatch: int) -> float:
        """Of one microbatch."""
        return self.factor if self.weights is None else self.factor * self.weights[microbatch]


def scaled(root: Tensor, gradient: Tensor | None, factor: float) -> Tensor | None:
    """The gradient that a pass from `root` begins with; None stands for a one."""
    if factor == 1.0:
        return gradient
    if gradient is not None:
        return gradient * factor
    # Of more than one element torch refuses it.
    return torch.full_like(root, factor) if root.numel() == 1 else None
