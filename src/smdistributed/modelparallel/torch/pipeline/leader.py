# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The leader's microbatches: the user's function runs once for each, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task
from smdistributed.modelparallel.torch.containers import map_leaves
from smdistributed.modelparallel.torch.pipeline.caller.caller import Caller
from smdistributed.modelparallel.torch.pipeline.caller.programs import CallingActivity
from smdistributed.modelparallel.torch.pipeline.changes.attributes import Attributes
from smdistributed.modelparallel.torch.pipeline.gradient_scale import Scale, scaled
from smdistributed.modelparallel.torch.pipeline.loop.activities import Activities
from smdistributed.modelparallel.torch.pipeline.loop.autograd_engine import run_backward
from smdistributed.modelparallel.torch.pipeline.loop.modes import (
    Modes,
    RandomState,
    applied,
    current_modes,
    mixed,
)
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.router import Router
from smdistributed.modelparallel.torch.pipeline.messages.states import ProgramState
from smdistributed.modelparallel.torch.pipeline.progress.last_backward import LastBackward
from smdistributed.modelparallel.torch.pipeline.progress.step_state import StepState
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred, arrived
from smdistributed.modelparallel.torch.replicas.ready_twice import explain_ready_twice

__all__ = ["Leader"]

# The gradient of a program's token, which has no meaning.
_OF_TOKEN = torch.ones((), device="cpu")

# Of programs some or all of whose values have lost their graph.
_BACK = (ProgramState.GOING_BACK, ProgramState.GONE_BACK)


class Leader:
    """The microbatches of one step after the other.

    Args:
        router: of messages to the other ranks.
        activities: of this rank.
        caller: of modules on other ranks.
        attributes, random: what belongs to a microbatch but lies in the process.
        last_backward: is told of backward passes that begin.

    Attributes:
        step: the step under way.
    """

    def __init__(
        self,
        router: Router,
        activities: Activities,
        caller: Caller,
        attributes: Attributes,
        random: RandomState,
        last_backward: LastBackward,
    ) -> None:
        self._router = router
        self._activities = activities
        self._caller = caller
        self._attributes = attributes
        self._random = random
        self._last_backward = last_backward
        self._seed = 0
        self._modes: Modes = current_modes()
        self.step: StepState

    def begin_step(self) -> None:
        """Microbatches of this step find the modes of the thread that calls."""
        self._seed = self._random.draw()
        self._modes = current_modes()

    # --- forward ---------------------------------------------------------------------------------

    def run_body(self, microbatch: int) -> None:
        """Runs the user's function for a microbatch, from its first line to its last."""
        step = self.step
        seed = mixed(self._seed, microbatch)
        activity = CallingActivity(Task(Phase.FORWARD, microbatch), seed)
        self._activities.take_up(activity)
        self._random.seed(seed)
        try:
            with applied(self._modes):
                step.results[microbatch] = map_leaves(arrived, step.bodies[microbatch]())
                self._caller.finish(activity)
        except Exception as error:
            step.fail(error)
            activity.end()
            self._activities.abort()
            return
        except BaseException:
            activity.end()
            raise
        if activity.task.phase is Phase.FORWARD:
            step.habit.runs_alone |= self._attributes.are_shared
            self._note_forward_done()
        step.habit.note_backwards(activity.num_backwards)
        step.num_finished += 1
        self._attributes.end_microbatch(microbatch)
        self._caller.forget(activity)

    def _note_forward_done(self) -> None:
        step = self.step
        step.num_forwards_done += 1
        step.habit.has_run = True
        if step.num_forwards_done == step.schedule.microbatches:
            step.are_forwards_done = True
            if self._last_backward.may_tell(step.habit, self._caller.has_called_late):
                self._router.post_to_all(messages.ForwardsDone())
        if step.turned and step.may_turn_back:
            turned, step.turned = step.turned, []
            for activity in turned:
                self._activities.wake(activity)

    # --- backward --------------------------------------------------------------------------------

    def backward(
        self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None], scale: Scale
    ) -> None:
        """`model.backward()` of the running microbatch; goes on when that is the most urgent.

        Args:
            tensors: where the pass begins.
            gradients: of these; None for a tensor of one element.
            scale: of the gradients.

        Raises:
            Exception: of a module on any rank, in its backward pass.
        """
        step = self.step
        activity = self._caller.running()
        factor = scale.of(activity.task.microbatch)
        roots = [
            self._root(activity, tensor, gradient, factor)
            for tensor, gradient in zip(tensors, gradients, strict=True)
        ]
        step.had_backward = True
        activity.num_backwards += 1
        if activity.num_backwards > 1:
            step.habit.note_backwards(activity.num_backwards)
        try:
            if activity.task.phase is Phase.FORWARD:
                self._turn_back(activity, tensors)
            is_last_body = step.num_finished == step.schedule.microbatches - 1
            if is_last_body and step.habit.goes_back_once:
                self._last_backward.begins(lambda: 0)
            _run(roots)
            if activity.num_going_back:
                self._caller.wait_for_backwards(activity)
            self._caller.check(activity)
        except Exception as error:
            if activity.num_backwards > 1 and "graph a second time" in str(error):
                error.add_note(
                    "\nCalls of modules on another rank with a part in common go back together,"
                    " with all that they were given. If several losses come from such calls, pass"
                    " them together: model.backward([first, second])."
                )
            explain_ready_twice(error)
            # One error tells user code that this pass has failed; what else fails of it is no news.
            self._caller.mute(activity)
            raise

    def _turn_back(self, activity: CallingActivity, tensors: Sequence[Tensor]) -> None:
        """The forward pass of a microbatch ends; waits until the backward pass may begin."""
        self._caller.send_open(activity)
        activity.turn_back()
        self._note_forward_done()
        step = self.step
        if not step.may_turn_back:
            step.turned.append(activity)
            self._activities.wait_until(
                activity,
                lambda: step.may_turn_back,
                "the forward passes of the other microbatches",
            )
        asked = (
            self._caller.send_back_root(activity, tensors)
            if step.schedule.turns_back_early
            else None
        )
        if asked is not None and asked.num_inputs:
            # The engine's first node would wait for this. Others work meanwhile either way, but a
            # pass that has not begun is suspended and resumed once and not twice.
            self._caller.wait_for_gradients(asked)
        else:
            self._activities.yield_to_more_urgent(activity.task)

    def _root(
        self, activity: CallingActivity, tensor: Tensor, gradient: Tensor | None, factor: float
    ) -> tuple[Tensor, Tensor | None]:
        if type(tensor) is not Deferred:
            return tensor, scaled(tensor, gradient, factor)
        if not tensor.is_pending:
            if tensor.program.state in _BACK and not tensor.arrive().requires_grad:
                raise RuntimeError(
                    "backward() of a tensor came a second time, or it requires no grad; expected"
                    " once from each. If several losses have something in common, pass them"
                    " together: model.backward([first, second])."
                )
            return tensor.arrive(), scaled(tensor.arrive(), gradient, factor)
        # Of a tensor of one element, or its owner refuses it; it rounds to that tensor's dtype.
        given = (
            torch.full((), factor, dtype=torch.float64, device="cpu")
            if gradient is None
            else scaled(tensor, gradient, factor)
        )
        assert given is not None
        return self._caller.root_of(activity, tensor, given), _OF_TOKEN


def _run(roots: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    if all(given is _OF_TOKEN for _, given in roots):
        run_backward([root for root, _ in roots], [_OF_TOKEN] * len(roots))
    else:
        torch.autograd.backward([root for root, _ in roots], [given for _, given in roots])
