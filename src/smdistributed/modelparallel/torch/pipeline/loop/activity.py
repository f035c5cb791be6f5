# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a fiber works on: user code under way for a microbatch."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task

__all__ = ["Activity"]


class Activity:
    """A microbatch's body on the leader, or a program that another rank has called.

    Attributes:
        task: the microbatch and the pass; decides what is more urgent.
        seed: of its random numbers.
        caller: the rank whose program it is; None for a microbatch's body on the leader.
        fiber: the `Fiber` that it runs on, or is suspended on.
        waiting_for: in words, while it is suspended.
        attributes: that it has set, by the module's number and the name: the module, whether the
            value was another one before, whether that held tensors, and whether a tensor or a
            container stood there before the call (`changes.attributes`).
    """

    __slots__ = ("attributes", "caller", "fiber", "seed", "task", "waiting_for")

    def __init__(self, task: Task, seed: int, caller: int | None = None) -> None:
        self.task = task
        self.seed = seed
        self.caller = caller
        self.fiber: Any = None
        self.waiting_for = ""
        self.attributes: dict[tuple[int, str], tuple[nn.Module, bool, bool, bool]] = {}

    def turn_back(self) -> None:
        """From now on it is a backward pass."""
        self.task = Task(Phase.BACKWARD, self.task.microbatch)
