# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs steps where a pipeline is one rank: microbatch after microbatch, as plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.pipeline.gradient_scale import Scale, scaled
from smdistributed.modelparallel.torch.pipeline.progress.habits import Habit
from smdistributed.modelparallel.torch.pipeline.progress.outcome import Outcome
from smdistributed.modelparallel.torch.replicas.ready_twice import explain_ready_twice

__all__ = ["Alone"]


class Alone:
    """Of one rank.

    Attributes:
        microbatch: the one whose body runs now, or ran last.
    """

    def __init__(self) -> None:
        self.microbatch = 0
        self._num_bodies = 0
        self._num_backwards = 0
        self._had_backward = False
        self._before_last_backward: Callable[[], None] | None = None
        self._habit = Habit()

    def lead(
        self,
        bodies: Sequence[Callable[[], Any]],
        before_last_backward: Callable[[], None] | None,
        weights: Sequence[float] | None,
        habit: Habit,
    ) -> Outcome:
        """Runs a step; the arguments are those of `Runner.lead`."""
        self._num_bodies = len(bodies)
        self._before_last_backward = before_last_backward
        self._habit = habit
        self._had_backward = False
        results = []
        try:
            for number, body in enumerate(bodies):
                self.microbatch = number
                self._num_backwards = 0
                results.append(body())
                habit.note_backwards(self._num_backwards)
        finally:
            self._before_last_backward = None
        return Outcome(results, weights, self._had_backward)

    def backward(
        self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None], scale: Scale
    ) -> None:
        """A backward pass, in a step or outside; the arguments are those of `Leader.backward`."""
        factor = scale.of(self.microbatch)
        pairs = zip(tensors, gradients, strict=True)
        given = [scaled(tensor, gradient, factor) for tensor, gradient in pairs]
        self._had_backward = True
        is_last = self.microbatch == self._num_bodies - 1
        if self._before_last_backward is not None and is_last and self._habit.goes_back_once:
            self._before_last_backward()
        self._num_backwards += 1
        try:
            torch.autograd.backward(list(tensors), given)
        except Exception as error:
            explain_ready_twice(error)
            raise
