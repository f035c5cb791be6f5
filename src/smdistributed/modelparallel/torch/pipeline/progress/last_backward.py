# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The moment before the last backward pass of a step on this rank: replicas reduce from then on.

It is foreseen, by the habit of the step function and by what this rank has been asked for in steps
before. If it cannot be foreseen it does not come, and what waits for it must do without.
"""

from __future__ import annotations

from collections.abc import Callable

from smdistributed.modelparallel.torch.pipeline.progress.habits import Habit
from smdistributed.modelparallel.torch.pipeline.progress.step_state import StepState

__all__ = ["LastBackward"]


class LastBackward:
    """Of one rank.

    Args:
        rank: in the pipeline; rank 0 leads.

    Attributes:
        step: the step under way.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._callers: set[int] = set()  # that have called programs here, in any step
        self.step: StepState

    def note_caller(self, rank: int) -> None:
        """Another rank has called a program here."""
        self._callers.add(rank)

    def may_tell(self, habit: Habit, has_called_late: bool) -> bool:
        """Whether the leader may tell the others that all forward passes are done.

        Args:
            has_called_late: the leader has called modules in backward passes, in any step.

        Returns: whether forward passes call all that ever goes back, as in the steps before.
        """
        if self.step.before_last_backward is None:
            return False
        return bool(habit.goes_back_once) and not has_called_late and not self._callers

    def begins(self, count_programs: Callable[[], int]) -> None:
        """A backward pass begins here; if it is the last one, the moment has come.

        Args:
            count_programs: whose backward pass is to come or under way here, this one included; 0
                for the leader's own.
        """
        step = self.step
        notify = step.before_last_backward
        if notify is None or not step.are_forwards_done or not self._is_alone(count_programs()):
            return
        step.before_last_backward = None
        notify()

    def _is_alone(self, num_programs: int) -> bool:
        # Programs of the leader are known here by now, if not run. What others will call is not: a
        # rank that they have ever called cannot tell which of its backward passes is the last.
        if self._rank == 0:
            return num_programs == 0 and not self._callers
        return num_programs == 1 and not self.step.is_learning and self._callers == {0}
