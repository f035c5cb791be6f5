# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of weights that wait until a rank has nothing more urgent to do.

Another rank waits for the gradient of what it has sent, and nobody for those of weights. Under the
schedule zero_bubble a backward pass leaves the latter here (`split_functions` is how). A piece of
work is one parameter's gradient of one pass, as torch would add it at once.

Source: Qi et al., Zero Bubble Pipeline Parallelism, 2024.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.executor.autograd_engine import run_backward

__all__ = ["Compute", "WeightGradients"]

Compute = Callable[[Tensor | None], Tensor]
"""The gradient; added to the tensor that is given, in place if need be."""


class _Use(NamedTuple):
    """Of a parameter in a pass: what it was multiplied with, when the pass went by, and how."""

    input: Tensor
    version: int
    compute: Compute


@dataclasses.dataclass
class _Piece:
    microbatch: int
    parameter: Tensor
    uses: list[_Use]


class WeightGradients:
    """What waits on one rank.

    Args:
        microbatch_of_pass: tells the one whose backward pass runs now.

    Attributes:
        is_deferring: in a step whose backward passes leave gradients here.
    """

    def __init__(self, microbatch_of_pass: Callable[[], int]) -> None:
        self._microbatch_of_pass = microbatch_of_pass
        self._pieces: dict[tuple[int, int], _Piece] = {}  # by microbatch and parameter, in order
        self._counts: Counter[int] = Counter()  # pieces by microbatch
        self._comes_last = False
        self.is_deferring = False

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._pieces)

    @property
    def next_microbatch(self) -> int:
        """That of what comes next."""
        return next(iter(self._pieces.values())).microbatch

    @property
    def microbatches(self) -> set[int]:
        """Those of which anything waits."""
        return set(self._counts)

    def begin_step(self, is_deferring: bool) -> None:
        """Of a step that defers, or of one that does not; what waits is forgotten."""
        self._pieces.clear()
        self._counts.clear()
        self._comes_last = False
        self.is_deferring = is_deferring

    def end_passes(self) -> None:
        """Nothing else will reach these parameters in this step.

        From now on each gets all that waits for it at once: whoever reduces gradients takes the
        first that comes for all of it.
        """
        self._comes_last = True
        pieces, self._pieces = self._pieces, {}
        self._counts.clear()
        for piece in pieces.values():
            self._add(-1, piece.microbatch, piece.parameter, piece.uses)

    def defer(self, parameter: Tensor, input: Tensor, compute: Compute) -> None:
        """Leaves a gradient for later, in a backward pass; of an ended step there is none."""
        if not self.is_deferring:
            run_backward([parameter], [compute(None)])
            return
        microbatch = self._microbatch_of_pass()
        use = _Use(input, input._version, compute)
        self._add(-1 if self._comes_last else microbatch, microbatch, parameter, [use])

    def _add(self, group: int, microbatch: int, parameter: Tensor, uses: list[_Use]) -> None:
        piece = self._pieces.get((group, id(parameter)))
        if piece is None:
            self._pieces[group, id(parameter)] = _Piece(microbatch, parameter, uses)
            self._counts[microbatch] += 1
        else:
            piece.uses += uses

    def run_next(self) -> int:
        """Computes a piece, and adds it to the parameter's gradient.

        Returns: the elements of the parameter.

        Raises:
            RuntimeError: an input was changed in place since the backward pass.
        """
        piece = self._pieces.pop(next(iter(self._pieces)))
        self._counts[piece.microbatch] -= 1
        if not self._counts[piece.microbatch]:
            del self._counts[piece.microbatch]
        with torch.no_grad(), torch._C._DisableAutocast():
            _run(piece)
        return piece.parameter.numel()


def _run(piece: _Piece) -> None:
    parameter, grad = piece.parameter, piece.parameter.grad
    is_plain = not parameter._post_accumulate_grad_hooks and (  # nobody wants to know of it
        grad is None or (grad.layout is torch.strided and not grad.requires_grad)
    )
    gradient = grad if is_plain else None
    for use in piece.uses:
        if use.input._version != use.version:
            raise RuntimeError(
                "the input of a layer, of shape"
                f" {tuple(use.input.shape)}, was changed in place after its backward pass and"
                " before the gradient of the layer's weight; expected it as it was. Do not change"
                ' it in place, or set "pipeline": "interleaved".'
            )
        gradient = use.compute(gradient)
    assert gradient is not None
    if is_plain:
        parameter.grad = gradient
    else:
        run_backward([parameter], [gradient])
