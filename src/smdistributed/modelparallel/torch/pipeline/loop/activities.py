# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The activities of one rank: begun, suspended until something is there, and woken."""

from __future__ import annotations

from collections.abc import Callable

from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.pipeline.loop.fibers import Scheduler

__all__ = ["Activities"]


class Activities(Scheduler):
    """A scheduler whose fibers work on activities.

    Attributes:
        begin: called when a fiber takes up an activity: what a microbatch finds in the process.
    """

    begin: Callable[[Activity], None]

    def submit_activity(self, activity: Activity, run: Callable[[], None]) -> None:
        """Has `run` done for an activity when that is the most urgent."""

        def begun() -> None:
            self.take_up(activity)
            run()

        self.submit(activity.task, begun)

    def take_up(self, activity: Activity) -> None:
        """The running fiber works on this from now on."""
        fiber = self.current
        fiber.activity = activity
        activity.fiber = fiber
        self.begin(activity)
        if self.recorder is not None:
            self.recorder.resume(activity)

    def wait_until(self, activity: Activity, is_there: Callable[[], bool], what: str) -> None:
        """Suspends the running activity until that holds.

        Args:
            what: it waits for, in words.
        """
        activity.fiber = self.current
        activity.waiting_for = what
        while not is_there():
            self.suspend()
        activity.waiting_for = ""

    def wake(self, activity: Activity) -> None:
        """What it waits for may be there."""
        if activity.fiber is not None:
            self.resume(activity.fiber, activity.task)

    def wake_with(self, activity: Activity, error: BaseException) -> bool:
        """It never will be. Returns: whether the activity waited at all, and so gets the error."""
        fiber = activity.fiber
        return fiber is not None and self.throw(fiber, activity.task, error)

    def awaited(self) -> str:
        """What all that is suspended waits for, in words; empty if nothing is."""
        return "; ".join(
            f"{activity.waiting_for or 'its turn'} ({activity.task})" for activity in self.waiting()
        )
