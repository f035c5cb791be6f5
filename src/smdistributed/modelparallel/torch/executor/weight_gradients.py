# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights that wait until a rank has nothing more urgent to do.

Another rank waits for the gradient of what it has sent, and nobody for those of weights. Under the
schedule zero_bubble a backward pass leaves the latter here (`split_functions` is how), one piece of
work for each use of a weight.

Source: Qi et al., Zero Bubble Pipeline Parallelism, 2024.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.executor.autograd_engine import run_backward

__all__ = ["WeightGradients"]

Compute = Callable[[Tensor | None], Tensor]
"""The gradient; added to the tensor that is given, in place if need be."""


class _Piece(NamedTuple):
    microbatch: int
    parameter: Tensor
    compute: Compute


class WeightGradients:
    """What waits on one rank.

    Attributes:
        microbatch_of_pass: the one whose backward pass runs now.
        is_deferring: else backward passes compute all gradients themselves.
        comes_last: nothing else will reach these parameters in this step. From now on each of them
            gets all that waits for it at once, as whoever reduces it takes the first for all.
    """

    def __init__(self, microbatch_of_pass: Callable[[], int]) -> None:
        self._microbatch_of_pass = microbatch_of_pass
        self._waiting: deque[_Piece] = deque()
        self.is_deferring = False
        self.comes_last = False

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    @property
    def next_microbatch(self) -> int:
        """That of what comes next."""
        return self._waiting[0].microbatch

    @property
    def microbatches(self) -> set[int]:
        """Those of which anything waits."""
        return {piece.microbatch for piece in self._waiting}

    def begin_step(self, is_deferring: bool) -> None:
        """Of a step that defers, or of one that does not."""
        self._waiting.clear()
        self.is_deferring = is_deferring
        self.comes_last = False

    def clear(self) -> None:
        """The step has failed."""
        self._waiting.clear()

    def defer(self, parameter: Tensor, compute: Compute) -> None:
        """Leaves a gradient for later, in a backward pass; of an ended step there is none."""
        if not self.is_deferring:
            run_backward([parameter], [compute(None)])
            return
        self._waiting.append(_Piece(self._microbatch_of_pass(), parameter, compute))

    @torch.no_grad()
    def run_next(self) -> None:
        """Computes the gradient of one use of a weight, or all of one weight that comes last."""
        _, parameter, compute = self._waiting.popleft()
        if not self.comes_last and not _is_watched(parameter):
            grad = parameter.grad
            if grad is not None and (grad.layout is not torch.strided or grad.requires_grad):
                run_backward([parameter], [compute(None)])
            else:
                parameter.grad = compute(grad)
            return
        gradient = compute(None)
        if self.comes_last:
            waiting, self._waiting = self._waiting, deque()
            for piece in waiting:
                if piece.parameter is parameter:
                    gradient = piece.compute(gradient)
                else:
                    self._waiting.append(piece)
        run_backward([parameter], [gradient])


def _is_watched(parameter: Tensor) -> bool:
    """Whether somebody wants to know, or to change, what a backward pass brings."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
