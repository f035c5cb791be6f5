# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs steps on one rank of a pipeline, whose modules live on several ranks.

The leader runs the user's function once for each microbatch (`leader`); the others serve. A call of
a module that lives elsewhere is a request to its owner (`caller`), which runs it (`callee`), itself
calling others as need be. While a microbatch waits, its rank works on another one, the most urgent
first (`loop`). Backward passes go the same ways in reverse.

Here these parts are put together, and steps begin and end. No part knows `smp`.

Source: modelparallel specification, sections 3.2, 3.5, 3.6 and 3.12.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from smdistributed._common.error_text import error_text, shortened
from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.schedules.interleaved import Interleaved
from smdistributed.modelparallel.decide.schedules.schedule import Schedule
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.messages.channel import Channel
from smdistributed.modelparallel.torch.pipeline import interception
from smdistributed.modelparallel.torch.pipeline.callee.callee import Callee
from smdistributed.modelparallel.torch.pipeline.caller.caller import Caller
from smdistributed.modelparallel.torch.pipeline.changes.attributes import Attributes
from smdistributed.modelparallel.torch.pipeline.handlers import handlers
from smdistributed.modelparallel.torch.pipeline.leader import Leader
from smdistributed.modelparallel.torch.pipeline.loop.activities import Activities
from smdistributed.modelparallel.torch.pipeline.loop.modes import RandomState
from smdistributed.modelparallel.torch.pipeline.loop.recorder import Recorder, active_recorder
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.router import Router
from smdistributed.modelparallel.torch.pipeline.progress.habits import Habit
from smdistributed.modelparallel.torch.pipeline.progress.last_backward import LastBackward
from smdistributed.modelparallel.torch.pipeline.progress.outcome import Outcome
from smdistributed.modelparallel.torch.pipeline.progress.step_state import StepState
from smdistributed.modelparallel.torch.pipeline.values.signatures import Template, without_tensors
from smdistributed.modelparallel.torch.pipeline.world import World

__all__ = ["Runner"]

_log = get_logger()


class Runner:
    """Of one rank of a pipeline.

    Args:
        rank, size: in the pipeline; rank 0 leads.
        channel: between its ranks.
        modules: all of the model, in the same order on all ranks.
        names: theirs, for messages to people.
        owners: by module; those that are not in it are run by whoever calls them.
        device: where tensors that arrive go.
        timeout_s: how long a step may wait for one message.
        predecessor: what used the channel before, and is closed.

    Attributes:
        backward: `model.backward()` of the running microbatch (`Leader.backward`).
    """

    def __init__(
        self,
        rank: int,
        size: int,
        channel: Channel,
        modules: Sequence[nn.Module],
        names: Sequence[str],
        owners: Mapping[nn.Module, int],
        device: torch.device,
        timeout_s: float = 1800.0,
        predecessor: Runner | None = None,
    ) -> None:
        self._rank = rank
        previous = predecessor._router if predecessor else None
        self._router: Router = Router(rank, size, channel, device, timeout_s, previous)
        self._random = RandomState(device)
        self._attributes = Attributes({module: number for number, module in enumerate(modules)})
        self._world = World(rank == 0, self._router, self._random, self._attributes)
        self._activities = Activities(self._world)
        self._activities.begin = self._world.begin
        post = self._router.post
        self._caller = Caller(post, self._activities, modules, names, self._random)
        self._last_backward = LastBackward(rank)
        self._callee = Callee(
            rank,
            post,
            self._activities,
            self._caller,
            modules,
            names,
            self._random,
            self._attributes,
            self._last_backward,
        )
        self._leader = Leader(
            self._router,
            self._activities,
            self._caller,
            self._attributes,
            self._random,
            self._last_backward,
        )
        self._world.run_body = self._leader.run_body
        self.backward = self._leader.backward
        self._router.handlers = {
            **handlers(self._callee, self._caller),
            messages.ForwardsDone: self._forwards_are_done,
            messages.End: self._ended,
            messages.Abort: self._was_aborted,
        }
        self._router.of_ended_step = self._callee.learn
        self._recorder: Recorder | None = None
        self._is_learning = True  # until the first step is over
        self._own_habit = Habit()
        self._step = StepState(Interleaved(1, 1))  # until a step brings its own
        interception.install(self._activities, self._caller, self._attributes, owners, rank)

    def part(self) -> None:
        """Waits a moment for the others to end their last step, before the channel is closed."""
        self._router.part()

    def close(self) -> None:
        """Gives module calls back to torch. Not inside a step."""
        interception.uninstall(self._activities)
        self._activities.close()

    # --- a step ----------------------------------------------------------------------------------

    def lead(
        self,
        schedule: Schedule,
        bodies: Sequence[Callable[[], Any]],
        before_last_backward: Callable[[], None] | None = None,
        weights: Sequence[float] | None = None,
        habit: Habit | None = None,
    ) -> Outcome:
        """Runs a step on the leader.

        Args:
            schedule: of the step.
            bodies: the user's function with its arguments, for each microbatch.
            before_last_backward: called when all gradients of this rank but those of one backward
                pass are there. Not in every step: what needs that moment must do without, too.
            weights: of the microbatches in a mean over the batch; the others are told of them.
            habit: of bodies like these; None: as of all others without one.

        Raises:
            Exception: what a body, or a module on any rank, raised first.
            StepAborted: this rank is not at fault.
        """
        step = self._begin(
            StepState(
                schedule, self._is_learning, before_last_backward, bodies, habit or self._own_habit
            )
        )
        self._leader.begin_step()
        with self._under_way(step):
            try:
                self._router.take_early()
                self._activities.run(lambda: step.is_finished)
                if step.failure is not None:
                    raise step.failure
                results = step.results
                self._tell_end(results, weights)
            except BaseException as error:
                self._tell_abort(error)
                raise
        return Outcome(results, weights, step.had_backward)

    def serve(
        self, schedule: Schedule, before_last_backward: Callable[[], None] | None = None
    ) -> Outcome:
        """Runs a step on any other rank, until the leader ends it.

        Args:
            schedule: of the step; here it decides what comes first.
            before_last_backward: as of `lead`.

        Raises:
            StepAborted: the step failed; says where, and how.
        """
        step = self._begin(StepState(schedule, self._is_learning, before_last_backward))
        self._random.draw()  # as the leader does: outside of steps all ranks draw the same
        with self._under_way(step):
            try:
                self._router.take_early()
                self._activities.run(lambda: step.end is not None)
                end = step.end
                if isinstance(end, messages.Abort):
                    raise StepAborted(end.reason)
                assert end is not None
                template: Template = pickle.loads(end.template)
                results, weights = template.fill(t for t in end.tensors if t is not None)
            except StepAborted:
                raise
            except BaseException as error:  # no module's: no rank waits for it, so none hears of it
                self._tell_leader(error)
                raise
        return Outcome(results, weights, end.had_backward)

    def refuse(self, error: Exception) -> None:
        """Ends a step on the leader before it begins."""
        step = self._begin(StepState(self._step.schedule))
        self._random.draw()  # as the other ranks do
        self._tell_abort(error)
        self._finish(step)

    @property
    def most_under_way(self) -> int:
        """Microbatches that were under way at the same time, in the last step."""
        return self._step.most_under_way

    def _begin(self, step: StepState) -> StepState:
        self._step = self._leader.step = self._last_backward.step = step
        self._world.begin_step(step)
        self._router.begin_step()
        recorder = active_recorder()
        if recorder is not None and self._is_learning:
            recorder.skip_step()  # it waits where later ones do not
            recorder = None
        self._recorder = self._activities.recorder = recorder
        self._router.recorder = self._callee.recorder = recorder
        if recorder is not None:
            recorder.begin_step(step.schedule.microbatches if self._rank == 0 else 0)
        return step

    @contextmanager
    def _under_way(self, step: StepState) -> Iterator[None]:
        """A step, at whose end nothing of it is left here; and nothing is learned if it fails."""
        outside = self._random.save()
        is_multithreaded = torch._C._is_multithreading_enabled()  # of autograd; off in a step
        try:
            yield
            if self._recorder is not None:
                self._recorder.end_step(self._callee.name_of)
            self._is_learning = False
        finally:
            self._finish(step)
            self._random.restore(outside)
            torch.autograd.set_multithreading_enabled(is_multithreaded)

    def _finish(self, step: StepState) -> None:
        if self._recorder is not None:
            self._recorder.close()
        self._world.end_step()
        self._callee.drop_all()
        self._caller.forget_all()
        step.let_go()

    # --- the end of a step -----------------------------------------------------------------------

    def _tell_end(self, results: list[Any], weights: Sequence[float] | None) -> None:
        try:
            template, tensors = without_tensors((results, weights))
            pickled = pickle.dumps(template)
        except Exception as error:
            raise TypeError(
                f"what the step function returned cannot go to the other ranks ({error}); expected"
                " tensors, plain values and containers of them. Return what every rank can have."
            ) from error
        tensors = [tensor.detach() for tensor in tensors]
        self._router.post_to_all(messages.End(self._step.had_backward, tensors, pickled))

    def _tell_abort(self, error: BaseException) -> None:
        if isinstance(error, StepAborted):  # another rank has said why
            reason = str(error)
        else:
            trace = shortened("".join(traceback.format_exception(error)).rstrip())
            reason = (
                f"the step ended because of {error_text(error)}.\n--- raised on the leader of this"
                f" pipeline, or reached it ---\n{trace}"
            )
        for rank in self._router.others:
            self._tell_reason(rank, reason)

    def _tell_leader(self, error: BaseException) -> None:
        trace = shortened("".join(traceback.format_exception(error)).rstrip())
        self._tell_reason(
            0,
            f"the step ended because of {error_text(error)}.\n--- raised on rank"
            f" {self._rank} of the pipeline ---\n{trace}",
        )

    def _tell_reason(self, rank: int, reason: str) -> None:
        try:
            self._router.post(rank, messages.Abort(reason))
        except Exception as failed:
            _log.debug("rank %d could not be told of the step's end: %s", rank, failed)

    def _forwards_are_done(self, source: int, _: messages.ForwardsDone) -> None:
        self._step.are_forwards_done = True

    def _ended(self, source: int, end: messages.End) -> None:
        self._step.end = end
        self._router.is_step_over = True
        # The leader has waited for all that counts. What is suspended here was called by a program
        # that has failed since, and nobody answers it any more.
        self._activities.abort()

    def _was_aborted(self, source: int, abort: messages.Abort) -> None:
        if self._rank == 0:
            raise StepAborted(abort.reason)
        self._step.end = abort
        self._router.is_step_over = True
        self._activities.abort()
