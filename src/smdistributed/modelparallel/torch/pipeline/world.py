# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the schedule of one rank needs of the world: messages, microbatches, and the process.

Microbatches take turns on one process, and each must find there what it left: random numbers, the
default dtype and device, the GPU and the stream of it, and what its modules have set in their
attributes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from smdistributed._common.error_text import error_text
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
        priority: what comes first, by the schedule of the step: the smallest.
        poll, wait: the router's.
    """

    def __init__(
        self, is_leader: bool, router: Router, random: RandomState, attributes: Attributes
    ) -> None:
        self._is_leader = is_leader
        self._router = router
        self.poll = router.poll
        self.wait = router.wait
        self._random = random
        self._attributes = attributes
        self._device = torch.device("cpu")
        self._stream: torch.cuda.Stream | None = None
        self.step: StepState
        self.priority: Callable[[Task], Priority]
        self.run_body: Callable[[int], None]

    # --- what is to do ---------------------------------------------------------------------------

    def begin_step(self, step: StepState) -> None:
        """From now on this step is under way."""
        self.step = step
        self._device = torch.get_default_device()
        self._stream = _current_stream()
        self.priority = functools.partial(step.schedule.priority, is_leader=self._is_leader)

    def offer(self) -> Task | None:
        """The leader's next microbatch, if it may start."""
        step = self.step
        if step.num_started == len(step.bodies) or not step.may_start():
            return None
        return Task(Phase.FORWARD, step.num_started)

    def accept(self, offered: Task) -> Callable[[], None]:
        """What runs it."""
        return functools.partial(self.run_body, self.step.start_next())

    def interrupted(self, error: BaseException) -> None:
        """A signal's handler has raised this, while another thread works or waits."""
        by_user = isinstance(error, KeyboardInterrupt)
        self._router.abort(
            "interrupted by its user"
            if by_user
            else f"interrupted by a signal, whose handler raised {error_text(error)}"
        )

    # --- turns -----------------------------------------------------------------------------------

    def begin(self, activity: Activity) -> None:
        """An activity begins on the running fiber."""
        self._attributes.switch_to(activity.task.microbatch)
        if torch.get_default_dtype() is not self.step.default_dtype:  # that of a suspended one
            torch.set_default_dtype(self.step.default_dtype)
        self._restore_device()
        if self._stream is not None:
            torch.cuda.set_stream(self._stream)
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
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)

    def end_step(self) -> None:
        """No activity runs any more."""
        self._attributes.end_step()
        torch.set_default_dtype(self.step.default_dtype)
        self._restore_device()

    def _restore_device(self) -> None:
        """The default device belongs to a thread; here it is that of the one that calls a step."""
        if torch.get_default_device() != self._device:
            is_cpu = self._device.type == "cpu"  # which is the default without any
            torch.set_default_device(None if is_cpu else self._device)


def _current_stream() -> torch.cuda.Stream | None:
    """Of this thread, on its current GPU; None where no GPU is in use.

    Both belong to a thread: on a new one they are GPU 0, and the stream that all begin with.
    """
    return torch.cuda.current_stream() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
