# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What bodies of a step function were seen to do: the last backward pass is foreseen by it."""

from __future__ import annotations

__all__ = ["Habit", "Habits"]


class Habit:
    """Of one step function, in training or in an evaluation: others may do otherwise.

    Attributes:
        goes_back_once: each microbatch that went back did so once; None: none has been seen.
        has_run: a microbatch has ended its forward pass.
        runs_alone: one microbatch at a time, where none goes back and modules keep tensors in
            attributes: in an evaluation nothing tells whose a tensor is.
    """

    def __init__(self) -> None:
        self.goes_back_once: bool | None = None
        self.has_run = False
        self.runs_alone = False

    def note_backwards(self, count: int) -> None:
        """A microbatch has called backward so often, up to now or in all."""
        if count and self.goes_back_once is not False:
            self.goes_back_once = count == 1


class Habits:
    """Of one step function, which may serve both for training and for evaluations."""

    def __init__(self) -> None:
        self._by_use: dict[tuple[bool, bool], Habit] = {}

    def of(self, is_grad: bool, is_training: bool) -> Habit:
        """The habit of steps with gradients or without, of a model that trains or does not."""
        return self._by_use.setdefault((is_grad, is_training), Habit())
