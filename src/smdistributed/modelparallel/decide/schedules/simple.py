# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule `simple`."""

import dataclasses
from typing import ClassVar

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Priority, Task

__all__ = ["Simple"]


@dataclasses.dataclass(frozen=True)
class Simple:
    """All forward passes, and then all backward passes, each in the order of microbatches.

    For p equal partitions and m microbatches the bubble is (p - 1) / (m + p - 1) of the step, as
    with `interleaved`. Every rank keeps the activations of all microbatches until the backward
    passes begin, whatever `active_microbatches` says: no microbatch ends before the last has begun.
    """

    name: ClassVar[str] = "simple"
    turns_back_early: ClassVar[bool] = False

    microbatches: int
    active_microbatches: int

    @property
    def bound(self) -> int:
        """All of them."""
        return self.microbatches

    def priority(self, task: Task, is_leader: bool) -> Priority:
        """Forward first on the leader.

        The leader sends no backward pass before it has ended all forward passes. If one reaches
        another rank all the same before a forward pass there, which nobody has waited for, it comes
        first: it frees memory.
        """
        later = Phase.BACKWARD if is_leader else Phase.FORWARD
        return int(task.phase is later), task.microbatch

    def may_start(self, num_started: int, num_under_way: int) -> bool:
        """While there are some left."""
        return num_started < self.microbatches

    def may_turn_back(self, num_forwards_done: int) -> bool:
        """When all forward passes have ended."""
        return num_forwards_done == self.microbatches
