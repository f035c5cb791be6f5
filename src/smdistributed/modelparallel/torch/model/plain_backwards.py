# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`loss.backward()` in a step of several microbatches: a warning that their gradients are sums.

With one partition it works, and `.grad` gets what torch adds; `model.backward(loss)` averages.

Source: modelparallel specification, sections 3.9 and 8.
"""

from __future__ import annotations

from torch import nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.torch.job.state import Job

__all__ = ["PlainBackwards"]


class PlainBackwards:
    """Watches steps until one has shown which of the two its script calls.

    Args:
        model: the user's module.
        job: what this process knows of the others.
    """

    def __init__(self, model: nn.Module, job: Job) -> None:
        self._model = model
        self._microbatches = job.config.microbatches
        self._is_first = job.rank_in(GroupKind.DP) == 0
        self._watches = self._microbatches > 1
        self._before: list[tuple[int, int] | None] = []

    def begin_step(self) -> None:
        """Before the microbatches."""
        if self._watches:
            self._before = self._gradients()

    def end_step(self, was_backward_called: bool, is_averaging: bool) -> None:
        """After them.

        Args:
            was_backward_called: `model.backward`.
            is_averaging: that would have averaged.
        """
        if not self._watches:
            return
        is_plain = not was_backward_called and self._gradients() != self._before
        self._before = []
        self._watches = not was_backward_called and not is_plain
        if is_plain and is_averaging and self._is_first:
            get_logger().warning(
                "a step of %d microbatches has called loss.backward(), so gradients are their sum,"
                " not the mean over the batch. Call model.backward(loss) instead, which averages,"
                " or divide the loss by the number of microbatches.",
                self._microbatches,
            )

    def _gradients(self) -> list[tuple[int, int] | None]:
        return [
            None if parameter.grad is None else (id(parameter.grad), parameter.grad._version)
            for parameter in self._model.parameters()
        ]
