# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A closer look at one step: the time of each module, and the memory at the peak.

Both make a step slower, so its stretches are not those that a report shows, if there are others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from smdistributed.modelparallel.decide.schedules.schedule import Task
from smdistributed.modelparallel.report.records import Memory, Stretch
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.reporting.peak_memory import PeakMemory

__all__ = ["OUTSIDE", "CloseLook"]

OUTSIDE = ""
"""Stands for what runs in no module: the step function, losses that run where their input is."""


class CloseLook:
    """At one step of this rank; an `Observer` of the recorder.

    Args:
        names: of modules.
        peak: measures memory.
        standing: bytes of parameters, gradients, optimizer states and buffers that are here.

    Attributes:
        seconds: by module, in forward passes of all microbatches, without modules it calls.
        order: modules, as they were called first, and when: nanoseconds of CLOCK_MONOTONIC.
        memory: None before the step's end.
    """

    def __init__(
        self,
        names: Mapping[nn.Module, str],
        peak: PeakMemory,
        standing: Callable[[], tuple[int, int, int, int]],
    ) -> None:
        self._names = names
        self._peak = peak
        self._standing = standing
        self._before = (0, 0, 0, 0)
        self.seconds: dict[str, float] = {}
        self.order: dict[str, int] = {}
        self.memory: Memory | None = None
        self._stacks: dict[Activity, list[str]] = {}
        self._stack: list[str] | None = None  # of what runs; None: nothing does, or goes back
        self._since_ns = 0
        self._task: Task | None = None  # of the stretch, which may end in another phase
        self._resumed_ns = 0
        self._stretches: list[Stretch] = []
        self._handles: list[Any] = []

    def begin_step(self) -> None:
        """Before it."""
        self._handles = [
            register_module_forward_pre_hook(self._begin_module),
            register_module_forward_hook(self._end_module, always_call=True),
        ]
        self._before = self._standing()
        self._peak.begin()

    def resume(self, activity: Activity) -> None:
        """A stretch begins."""
        self._task, self._resumed_ns = activity.task, time.monotonic_ns()
        if activity.task.phase.value == "F":
            self._stack = self._stacks.setdefault(activity, [])
            self._since_ns = time.monotonic_ns()

    def pause(self) -> None:
        """A stretch ends."""
        self._charge()
        self._stack = None
        task, self._task = self._task, None
        if task is not None:
            self._stretches.append(
                Stretch(task.phase.value, task.microbatch, self._resumed_ns, time.monotonic_ns())
            )

    def end_step(self) -> None:
        """After it."""
        grown = self._peak.end()
        self.close()
        self.memory = Memory(*self._before, grown, self._peak.is_process, tuple(self._stretches))

    def close(self) -> None:
        """Looks no longer; after a step that has failed, too."""
        self._peak.end()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stacks = {}
        self._stack = None
        self._task = None

    def _charge(self) -> None:
        now_ns = time.monotonic_ns()
        if self._stack is not None:
            name = self._stack[-1] if self._stack else OUTSIDE
            self.seconds[name] = self.seconds.get(name, 0.0) + (now_ns - self._since_ns) * 1e-9
        self._since_ns = now_ns

    def _begin_module(self, module: nn.Module, _: Any) -> None:
        name = self._names.get(module)
        if self._stack is not None and name is not None:
            self._charge()
            self._stack.append(name)
            self.order.setdefault(name, self._since_ns)

    def _end_module(self, module: nn.Module, *_: Any) -> None:
        if self._stack and self._stack[-1] == self._names.get(module):
            self._charge()
            self._stack.pop()
