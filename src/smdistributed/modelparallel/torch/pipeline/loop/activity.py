# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a fiber works on: a microbatch's body on the leader, or a program of another rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task

if TYPE_CHECKING:
    from smdistributed.modelparallel.torch.pipeline.caller.programs import Program
    from smdistributed.modelparallel.torch.pipeline.loop.fibers import Fiber

__all__ = ["Activity"]


class Activity:
    """User code under way for a microbatch, and the programs it has called.

    Attributes:
        task: the microbatch and the pass; decides what is more urgent.
        fiber: where it runs now, or is suspended.
        seed: of its random numbers.
        open: the program that the next call may still join.
        programs: all it has called; their tokens are let go when it ends.
        num_going_back: backward passes it has asked for without waiting.
        num_backwards: calls of `model.backward`, on the leader.
        waiting_for: in words, while it is suspended.
        caller: the rank whose program it is; None for a microbatch's body on the leader.
        attributes: that it has set, by the module's number and the name: the module, and whether
            the value was another one before (attributes.py).
    """

    __slots__ = (
        "attributes",
        "caller",
        "fiber",
        "num_backwards",
        "num_going_back",
        "open",
        "programs",
        "seed",
        "task",
        "waiting_for",
    )

    def __init__(self, task: Task, seed: int, caller: int | None = None) -> None:
        self.task = task
        self.caller = caller
        self.attributes: dict[tuple[int, str], tuple[nn.Module, bool]] = {}
        self.seed = seed
        self.fiber: Fiber | None = None
        self.open: Program | None = None
        self.programs: list[Program] = []
        self.num_going_back = 0
        self.num_backwards = 0
        self.waiting_for = ""

    def turn_back(self) -> None:
        """From now on it is a backward pass."""
        self.task = Task(Phase.BACKWARD, self.task.microbatch)

    def end(self) -> None:
        """Lets go of the graph: a token and its node hold each other.

        So do an error, the tensors in the frames of its traceback, and the program that it is of.
        """
        for program in self.programs:
            program.token = program.error = program.answer = None
            program.slots.clear()
            program.held.clear()
            program.gradients.clear()
        self.programs.clear()
        self.open = None
