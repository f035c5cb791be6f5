# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The schedule `interleaved`."""

import dataclasses
from typing import ClassVar

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Priority, Task

__all__ = ["Interleaved"]


@dataclasses.dataclass(frozen=True)
class Interleaved:
    """Backward passes before forward passes, and then the lowest microbatch.

    A microbatch turns back as soon as its forward pass has ended, and at most `active_microbatches`
    are under way. For p equal partitions and m microbatches the bubble is (p - 1) / (m + p - 1) of
    the step. A rank keeps the activations of `active_microbatches` at most; the further it is from
    the leader, the fewer it keeps.
    """

    name: ClassVar[str] = "interleaved"
    turns_back_early: ClassVar[bool] = True

    microbatches: int
    active_microbatches: int

    @property
    def bound(self) -> int:
        """As many as the user allows."""
        return min(self.active_microbatches, self.microbatches)

    def priority(self, task: Task, is_leader: bool) -> Priority:
        """Backward first, on every rank: it frees memory."""
        return int(task.phase is Phase.FORWARD), task.microbatch

    def may_start(self, num_started: int, num_under_way: int) -> bool:
        """While there are some left, and fewer are under way than the user allows."""
        return num_started < self.microbatches and num_under_way < self.active_microbatches

    def may_turn_back(self, num_forwards_done: int) -> bool:
        """At once."""
        return True
