# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The words of schedules, and the protocol that each schedule follows.

A step cuts its batch into microbatches. The *leader* runs the step function for each of them; the
other ranks serve it. Each microbatch is two tasks, forward and backward, and a task visits one rank
after another. While a task is away on another rank, a rank works on the next one. The schedule says
which one that is.

These rules are asked in two ways. With a leader, a rank asks them when it runs a step, and the
simulation asks the same rules when it predicts one. Without a leader, `ordering` asks them for each
rank before the step, and each rank then runs the list that follows. Either way, what is predicted
is what is done.
"""

import dataclasses
import enum
from typing import ClassVar, Protocol

__all__ = ["Phase", "Priority", "Schedule", "Task"]

Priority = tuple[int, int]
"""What comes first: the smallest."""


class Phase(enum.Enum):
    """A part of a microbatch's work."""

    FORWARD = "F"
    BACKWARD = "B"


@dataclasses.dataclass(frozen=True)
class Task:
    """One phase of one microbatch; `F3` in tables."""

    phase: Phase
    microbatch: int

    def __str__(self) -> str:
        return f"{self.phase.value}{self.microbatch}"


class Schedule(Protocol):
    """The rules of one step. It keeps no state: it is told what it needs.

    Without a leader, `ordering` asks for each rank what is asked for the leader, and counts what
    has begun and ended on that rank. A step comes to its end if another microbatch may always start
    while none is under way, if a backward pass may begin when all forward passes have ended, and if
    a schedule that forbids backward passes until then forbids no start.

    Attributes:
        name: the value of the parameter `pipeline`.
        turns_back_early: the owner of a loss begins the backward pass as soon as the step function
            asks for it. Otherwise it waits until the leader's own turn has come, so that backward
            passes begin in the leader's order.
    """

    name: ClassVar[str]
    turns_back_early: ClassVar[bool]

    @property
    def microbatches(self) -> int:
        """Of the step."""

    @property
    def bound(self) -> int:
        """The most microbatches that are under way on a rank at a time: activations are kept."""

    def priority(self, task: Task, is_leader: bool) -> Priority:
        """What comes first where a rank has the choice: the smallest.

        Args:
            task: which is ready on the rank.
            is_leader: the rank leads the step; otherwise it serves.
        """

    def may_start(self, num_started: int, num_under_way: int) -> bool:
        """Whether the leader may begin another microbatch.

        Args:
            num_started: microbatches that have begun so far.
            num_under_way: of those, the ones that have not ended.
        """

    def may_turn_back(self, num_forwards_done: int) -> bool:
        """Whether the leader may begin a backward pass.

        Args:
            num_forwards_done: microbatches whose forward pass has ended.
        """
