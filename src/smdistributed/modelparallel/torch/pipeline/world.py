# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the schedule of one rank needs of the world: messages, microbatches, and the process.

Microbatches take turns on one process, and each must find there what it left: random numbers, the
default dtype, and what its modules have set in their attributes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Priority, Task
from smdistributed.modelparallel.torch.pipeline.changes.attributes import Attributes
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.pipeline.loop.modes import RandomState
from smdistributed.modelparallel.torch.pipeline.messages.router import Router
from smdistributed.modelparallel.torch.pipeline.progress.step_state import StepState

__all__ = ["World"]


class World:
    """Of one rank of a pipeline; implements `loop.fibers.Outside`.

    Args:
        is_leader: the leader's next microbatch is more urgent there than elsewhere.
        router: where messages come from.
        random, attributes: what belongs to a microbatch but lies in the process.

    Attributes:
        step: the step under way.
        run_body: runs a microbatch of the leader.
    """

    def __init__(
        self, is_leader: bool, router: Router, random: RandomState, attributes: Attributes
    ) -> None:
        self._is_leader = is_leader
        self._router = router
        self._random = random
        self._attributes = attributes
        self.step: StepState
        self.run_body: Callable[[int], None]

    # --- what is to do ---------------------------------------------------------------------------

    def priority(self, task: Task) -> Priority:
        """What comes first: the smallest."""
        return self.step.schedule.priority(task, self._is_leader)

    def offer(self) -> Task | None:
        """The leader's next microbatch, if it may start."""
        return Task(Phase.FORWARD, self.step.num_started) if self.step.may_start() else None

    def accept(self, offered: Task) -> Callable[[], None]:
        """What runs it."""
        number = self.step.start_next()
        return lambda: self.run_body(number)

    # --- messages --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Deals with the messages that have come; after the step's end its leader may be gone."""
        while self.step.end is None and self._router.take():
            pass

    def wait(self, awaited: Callable[[], str]) -> None:
        """Waits for a message, and deals with it."""
        self._router.wait(awaited)

    def interrupted(self) -> None:
        """Ctrl-C came, while another thread works or waits."""
        self._router.abort("interrupted by its user")

    # --- turns -----------------------------------------------------------------------------------

    def begin(self, activity: Activity) -> None:
        """An activity begins on the running fiber."""
        self._attributes.switch_to(activity.task.microbatch)
        _set_default_dtype(self.step.default_dtype)  # not that of an activity that is suspended
        # CUDA nodes too run on the thread that calls: a node that waits holds its own thread only.
        torch.autograd.set_multithreading_enabled(False)

    def leave(self) -> tuple[list[Tensor], torch.dtype]:
        """The running activity is suspended. Returns: what it must find again."""
        return self._random.save(), torch.get_default_dtype()

    def enter(self, activity: Activity, left: tuple[list[Tensor], torch.dtype]) -> None:
        """It runs again."""
        states, dtype = left
        self._attributes.switch_to(activity.task.microbatch)
        self._random.restore(states)
        _set_default_dtype(dtype)

    def end_step(self) -> None:
        """No activity runs any more."""
        self._attributes.end_step()
        _set_default_dtype(self.step.default_dtype)


def _set_default_dtype(dtype: torch.dtype) -> None:
    if torch.get_default_dtype() is not dtype:
        torch.set_default_dtype(dtype)
