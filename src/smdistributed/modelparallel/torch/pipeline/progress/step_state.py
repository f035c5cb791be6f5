# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a step on one rank: how far its microbatches are, and how it has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smdistributed.modelparallel.decide.schedules.schedule import Schedule
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.pipeline.messages.messages import Abort, End
from smdistributed.modelparallel.torch.pipeline.progress.habits import Habit

__all__ = ["StepState"]


class StepState:
    """A new one for each step.

    Args:
        schedule: of the step.
        is_learning: it is the first one of this placement: what modules return is not known yet.
        before_last_backward: see `Runner.lead`.
        bodies: by microbatch, the user's function with its arguments; on the leader.
        habit: of these bodies.

    Attributes:
        default_dtype: that a microbatch begins with.
        results: by microbatch, what its body has returned.
        num_started, num_forwards_done, num_finished: microbatches; on the leader.
        most_under_way: microbatches at the same time.
        turned: activities that the schedule does not let go back yet.
        failure: the first exception of a body.
        are_forwards_done: all microbatches have called all that they call in their forward passes.
        had_backward: of any microbatch.
        end: on a rank that serves, the message that ended the step.
    """

    def __init__(
        self,
        schedule: Schedule,
        is_learning: bool = False,
        before_last_backward: Callable[[], None] | None = None,
        bodies: Sequence[Callable[[], Any]] = (),
        habit: Habit | None = None,
    ) -> None:
        self.schedule = schedule
        self.is_learning = is_learning
        self.before_last_backward = before_last_backward
        self.default_dtype = torch.get_default_dtype()
        self.bodies = bodies
        self.habit = habit or Habit()
        self.results: list[Any] = [None] * len(bodies)
        self.num_started = self.num_forwards_done = self.num_finished = 0
        self.most_under_way = 0
        self.turned: list[Activity] = []
        self.failure: BaseException | None = None
        self.are_forwards_done = False
        self.had_backward = False
        self.end: End | Abort | None = None

    def may_start(self) -> bool:
        """Whether the next microbatch may start; on the leader."""
        if self.failure is not None:
            return False
        # The first microbatch learns what modules return, and waits at each of them: the others
        # would overtake it, and running statistics depend on the order. Of a new step function it
        # shows the habit.
        is_first = self.is_learning or not self.habit.has_run
        if is_first and self.num_started == 1 and self.num_forwards_done == 0:
            return False
        num_under_way = self.num_started - self.num_finished
        if self.habit.runs_alone and num_under_way and not self.turned:
            return False
        return self.schedule.may_start(self.num_started, num_under_way)

    def start_next(self) -> int:
        """Returns: the number of the microbatch that starts."""
        number = self.num_started
        self.num_started += 1
        self.most_under_way = max(self.most_under_way, self.num_started - self.num_finished)
        return number

    def fail(self, error: BaseException) -> None:
        """A body has raised; the first error counts, and no other microbatch starts."""
        self.failure = self.failure or error
        self.num_finished = self.schedule.microbatches

    @property
    def may_turn_back(self) -> bool:
        """Whether microbatches may begin their backward passes."""
        return self.schedule.may_turn_back(self.num_forwards_done)

    @property
    def is_finished(self) -> bool:
        """Whether all microbatches are through, or one has failed."""
        return self.num_finished >= self.schedule.microbatches

    def let_go(self) -> None:
        """Of what users' tensors hang on; the step is over."""
        self.bodies = ()
        self.results = []
        self.failure = self.end = self.before_last_backward = None
        self.turned = []
