# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Records who computes for whom when: the stretches of work of one rank, step by step.

A stretch begins when a fiber takes up an activity, and ends when it leaves it; what lies between
two of them is waiting, or dealing with messages. That costs a clock reading and an append to a
list. While nobody records, the places that report pay one look at `recorder`, which is None.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from smdistributed.modelparallel.report.records import Sent, StepRecord, Stretch
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity

__all__ = ["Observer", "Recorder", "active_recorder", "set_recorder"]


class Observer(Protocol):
    """Looks at a step more closely than at its stretches."""

    def begin_step(self) -> None:
        """Before it."""

    def resume(self, activity: Activity) -> None:
        """A stretch begins."""

    def pause(self) -> None:
        """A stretch ends."""

    def end_step(self) -> None:
        """After it, if it has not failed."""

    def close(self) -> None:
        """It looks no longer, however the step has ended."""


class Recorder:
    """Of one rank.

    Args:
        most_steps: that are kept; of more, the last ones.
        observe: of the number of steps kept so far, who looks at the next one more closely.
        clock: nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        steps: in order of time.
    """

    def __init__(
        self,
        most_steps: int,
        observe: Callable[[int], Observer | None] = lambda _: None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._most_steps = most_steps
        self._observe = observe
        self._clock = clock
        self.steps: list[StepRecord] = []
        self._observer: Observer | None = None
        self._number = 0
        self._num_kept = 0
        self._microbatches = 0
        self._begin_ns = self._told_ns = self._since_ns = 0
        self._activity: Activity | None = None
        self._letter = ""
        self._microbatch = 0
        self._stretches: list[tuple[str, int, int, int, Activity]] = []
        self._called: dict[Activity, list[int]] = {}
        self._sent: dict[tuple[int, str], list[int]] = {}

    # --- steps -----------------------------------------------------------------------------------

    def skip_step(self) -> None:
        """A step that is not recorded; its number is taken."""
        self._number += 1

    def begin_step(self, microbatches: int) -> None:
        """From now on all is of the next step; what was recorded of one that failed is dropped."""
        self._number += 1
        self._microbatches = microbatches
        self.close()
        self._observer = self._observe(self._num_kept)
        if self._observer is not None:
            self._observer.begin_step()
        self._begin_ns = self._told_ns = self._clock()

    def end_step(self, name_of: Callable[[int], str]) -> None:
        """Keeps the step, which has not failed.

        Args:
            name_of: of the modules and functions that `called` was told of.
        """
        end_ns = self._clock()
        if self._observer is not None:
            self._observer.end_step()
            self._observer = None
        self.steps.append(
            StepRecord(
                number=self._number,
                microbatches=self._microbatches,
                begin_ns=self._begin_ns,
                end_ns=end_ns,
                told_ns=self._told_ns,
                stretches=tuple(
                    Stretch(*stretch[:4], _listed(self._called.get(stretch[4], ()), name_of))
                    for stretch in self._stretches
                ),
                sent=tuple(Sent(*key, *figures) for key, figures in sorted(self._sent.items())),
            )
        )
        del self.steps[: -self._most_steps]
        self._num_kept += 1
        self._forget_step()

    def forget(self) -> None:
        """Forgets all steps."""
        self.steps = []
        self._num_kept = 0

    def close(self) -> None:
        """Forgets a step that has not ended."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None
        self._activity = None
        self._forget_step()

    def _forget_step(self) -> None:
        self._stretches = []
        self._called = {}
        self._sent = {}

    # --- in a step -------------------------------------------------------------------------------

    def resume(self, activity: Activity) -> None:
        """What runs now works on this."""
        task = activity.task
        self._activity = activity
        self._letter, self._microbatch = task.phase.value, task.microbatch
        if self._observer is not None:
            self._observer.resume(activity)
        self._since_ns = self._clock()

    def pause(self) -> None:
        """Nothing is worked on, until `resume`."""
        activity, self._activity = self._activity, None
        if activity is None:
            return
        now_ns = self._clock()
        stretch = self._letter, self._microbatch, self._since_ns, now_ns, activity
        self._stretches.append(stretch)
        if self._observer is not None:
            self._observer.pause()

    def called(self, activity: Activity, numbers: list[int]) -> None:
        """The modules that a program runs; the list may grow until the step ends."""
        self._called[activity] = numbers

    def sent(self, dest: int, kind: str, num_bytes: int) -> None:
        """A message leaves: it has not come anywhere before now."""
        self._told_ns = self._clock()
        figures = self._sent.setdefault((dest, kind), [0, 0])
        figures[0] += 1
        figures[1] += num_bytes


def _listed(numbers: Sequence[int], name_of: Callable[[int], str]) -> str:
    names = [name_of(number) for number in dict.fromkeys(numbers)]
    return names[0] + (f" ... {names[-1]}" if len(names) > 1 else "") if names else ""


_recorder: Recorder | None = None


def active_recorder() -> Recorder | None:
    """What steps of this process are recorded by, if they are."""
    return _recorder


def set_recorder(recorder: Recorder | None) -> None:
    """From the next step on."""
    global _recorder
    _recorder = recorder
