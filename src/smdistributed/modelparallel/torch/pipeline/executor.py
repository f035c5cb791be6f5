# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs any module tree whose modules live on several ranks, microbatch by microbatch.

The leader runs the user's step function once for each microbatch; the others serve. A call of a
module that lives elsewhere is a request to its owner (caller.py), who runs it (frames.py), itself
calling others as need be. While a microbatch waits, its rank works on another one (fibers.py), the
most urgent first (the schedule). Backward passes go the same ways in reverse.

Source: modelparallel specification, sections 3.2, 3.5, 3.6 and 3.12.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.schedules.interleaved import Interleaved
from smdistributed.modelparallel.decide.schedules.schedule import Phase, Priority, Schedule, Task
from smdistributed.modelparallel.exceptions import SMPError, StepAborted
from smdistributed.modelparallel.torch.containers.structures import map_leaves
from smdistributed.modelparallel.torch.pipeline import interception
from smdistributed.modelparallel.torch.pipeline.callee.callee import Owner
from smdistributed.modelparallel.torch.pipeline.caller.caller import Caller
from smdistributed.modelparallel.torch.pipeline.changes.attributes import Attributes
from smdistributed.modelparallel.torch.pipeline.habits import Habit
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.pipeline.loop.autograd_engine import run_backward
from smdistributed.modelparallel.torch.pipeline.loop.fibers import Scheduler
from smdistributed.modelparallel.torch.pipeline.loop.modes import (
    Modes,
    RandomState,
    applied,
    current_modes,
    mixed,
)
from smdistributed.modelparallel.torch.pipeline.loop.recorder import Recorder, active_recorder
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.mailbox import Mailbox
from smdistributed.modelparallel.torch.pipeline.messages.states import ProgramState
from smdistributed.modelparallel.torch.pipeline.messages.wire import Channel
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred, arrived
from smdistributed.modelparallel.torch.pipeline.values.signatures import Template, without_tensors

__all__ = ["Executor"]

_log = get_logger()

# The gradient of a program's token, at which nobody looks.
_OF_TOKEN = torch.ones(())


# Of programs whose values have lost their graph, all or some of them.
_BACK = (ProgramState.GOING_BACK, ProgramState.GONE_BACK)


class Executor:
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
        predecessor: Executor | None = None,
    ) -> None:
        self._rank = rank
        self._size = size
        self._modules = modules
        self._numbers = {module: number for number, module in enumerate(modules)}
        previous = predecessor._mailbox if predecessor else None
        self._mailbox: Mailbox = Mailbox(rank, size, channel, device, timeout_s, previous)
        self._post = self._mailbox.post
        self._random = RandomState(device)
        self._scheduler = Scheduler(self)
        self._caller = Caller(self._post, self, names)
        self._attributes = Attributes(self._numbers)
        self._owner = Owner(rank, self._post, self, modules, names, self._random, self._attributes)
        self._mailbox.handlers = {
            messages.Call: self._owner.called,
            messages.Return: self._caller.returned,
            messages.Value: self._owner.value_came,
            messages.Fetch: self._owner.fetched,
            messages.Push: self._owner.pushed,
            messages.Backward: self._owner.asked_back,
            messages.Gradient: self._owner.gradient_came,
            messages.Gradients: self._caller.went_back,
            messages.Raise: self._caller.raised,
            messages.Drop: self._owner.dropped,
            messages.ForwardsDone: self._forwards_are_done,
            messages.End: self._ended,
            messages.Abort: self._was_aborted,
        }
        self._mailbox.of_ended_step = self._owner.learn
        self._is_learning = True  # until the first step is over
        self._recorder: Recorder | None = None
        self._end: messages.End | messages.Abort | None = None
        self._abort_reason = ""
        self._schedule: Schedule = Interleaved(1, 1)  # until a step brings its own
        self._bodies: Sequence[Callable[[], Any]] = ()
        self._num_started = self._num_forwards_done = self._num_finished = 0
        self._results: list[Any] = []
        self._turned: list[Activity] = []
        self._failure: BaseException | None = None
        self._seed = 0
        self._modes: Modes = current_modes()
        self._default_dtype = torch.get_default_dtype()
        self._before_last_backward: Callable[[], None] | None = None
        self._are_forwards_done = False
        self._own_habit = self._habit = Habit()
        self.had_backward = False
        self.note: Any = None
        self.peak_microbatches = 0
        interception.install(self, owners, rank)

    def part(self) -> None:
        """Waits a moment for the others to end their last step, before the channel is closed."""
        self._mailbox.part()

    def close(self) -> None:
        """Gives module calls back to torch. Not inside a step."""
        interception.uninstall(self)
        self._scheduler.close()

    # --- a step ----------------------------------------------------------------------------------

    def lead(
        self,
        schedule: Schedule,
        bodies: Sequence[Callable[[], Any]],
        before_last_backward: Callable[[], None] | None = None,
        note: Any = None,
        habit: Habit | None = None,
    ) -> list[Any]:
        """Runs a step on the leader.

        Args:
            schedule: of the step.
            bodies: the user's function with its arguments, for each microbatch.
            before_last_backward: called when all gradients of this rank but those of one backward
                pass are there. Not in every step: who needs the moment must do without, too.
            note: what the others are to know when the step ends; then it is `note` everywhere.
            habit: of bodies like these; None: as of all others without one.

        Returns: what they return.

        Raises:
            Exception: what a body, or a module on any rank, raised first.
            StepAborted: this rank is not at fault.
        """
        self._begin(schedule, before_last_backward)
        self.note = note
        self._habit = habit or self._own_habit
        self._bodies = bodies
        self._results = [None] * len(bodies)
        self._seed = self._random.draw()
        outside = self._random.save()
        self._modes = current_modes()
        try:
            self._mailbox.take_early()
            self._scheduler.run(lambda: self._num_finished >= schedule.microbatches)
            if self._failure is not None:
                raise self._failure
            results = self._results
            self._tell_end(results)
            self._end_recording()
            self._is_learning = False
        except BaseException as error:
            self._tell_abort(error)
            raise
        finally:
            self._finish_step()
            self._random.restore(outside)
        return results

    def refuse(self, error: Exception) -> None:
        """Ends a step on the leader before it begins."""
        self._begin(self._schedule, None)
        self._tell_abort(error)
        self._finish_step()

    def serve(
        self, schedule: Schedule, before_last_backward: Callable[[], None] | None = None
    ) -> list[Any]:
        """Runs a step on any other rank, until the leader ends it.

        Args:
            schedule: of the step; here it decides what comes first.
            before_last_backward: as of `lead`.

        Returns: what the leader's bodies returned.

        Raises:
            StepAborted: the step failed; says where, and how.
        """
        self._begin(schedule, before_last_backward)
        self._random.draw()  # as the leader does: outside of steps all ranks draw the same
        outside = self._random.save()
        try:
            self._mailbox.take_early()
            self._scheduler.run(lambda: self._end is not None)
            if self._abort_reason:
                raise StepAborted(self._abort_reason)
            assert isinstance(self._end, messages.End)
            template: Template = pickle.loads(self._end.template)
            results: list[Any]
            results, self.note = template.fill(t for t in self._end.tensors if t is not None)
            self._end_recording()
            self._is_learning = False
            return results
        except StepAborted:
            raise
        except BaseException as error:  # not of a module: nobody waits for it, so nobody hears
            self._tell_leader(error)
            raise
        finally:
            self._finish_step()
            self._random.restore(outside)

    def _begin(self, schedule: Schedule, before_last_backward: Callable[[], None] | None) -> None:
        self._mailbox.begin_step()
        self._begin_recording(schedule)
        self._before_last_backward = before_last_backward
        self._are_forwards_done = False
        self.had_backward = False
        self._default_dtype = torch.get_default_dtype()
        self._schedule = schedule
        self._end = None
        self._abort_reason = ""
        self._failure = None
        self._num_started = self._num_forwards_done = self._num_finished = 0
        self._turned = []

    def _begin_recording(self, schedule: Schedule) -> None:
        recorder = active_recorder()
        if recorder is not None and self._is_learning:
            recorder.skip_step()  # it waits where later ones do not
            recorder = None
        self._recorder = self._scheduler.recorder = recorder
        self._mailbox.recorder = self._owner.recorder = recorder
        if recorder is not None:
            recorder.begin_step(schedule.microbatches if self._rank == 0 else 0)

    def _end_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.end_step(self._owner.name_of)

    def _finish_step(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        self._attributes.end_step()
        self._owner.drop_all()
        self._caller.forget_all()
        self._set_default_dtype(self._default_dtype)
        self._bodies = ()
        self._results = []
        self._failure = None
        self._turned = []

    def _tell_end(self, results: list[Any]) -> None:
        try:
            template, tensors = without_tensors((results, self.note))
            pickled = pickle.dumps(template)
        except Exception as error:
            raise TypeError(
                f"what the step function returned cannot go to the other ranks ({error}); expected"
                " tensors, plain values and containers of them. Return what every rank can have."
            ) from error
        tensors = [tensor.detach() for tensor in tensors]
        for rank in range(1, self._size):
            self._post(rank, messages.End(self.had_backward, tensors, pickled))

    def _tell_abort(self, error: BaseException) -> None:
        text = "".join(getattr(error, "__notes__", ()))
        reason = (
            f"the step ended because of {_told(error)}. It was raised on the"
            f" leader of this pipeline, or reached it from there:{text or ' no further trace'}"
        )
        for rank in range(1, self._size):
            self._tell_reason(rank, reason)

    def _tell_leader(self, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error)).rstrip()
        self._tell_reason(
            0,
            f"the step ended because of {_told(error)}.\n--- raised on rank"
            f" {self._rank} of the pipeline ---\n{trace}",
        )

    def _tell_reason(self, rank: int, reason: str) -> None:
        try:
            self._post(rank, messages.Abort(reason))
        except Exception as failed:
            _log.debug("rank %d could not be told of the step's end: %s", rank, failed)

    # --- the leader's microbatches ---------------------------------------------------------------

    def offer(self) -> Task | None:
        """The next microbatch, if it may start."""
        if not self._bodies or self._failure is not None:
            return None
        if not self._schedule.may_start(self._num_started, self._num_under_way):
            return None
        # The first microbatch learns what modules return, and waits at each of them: the others
        # would overtake it, and running statistics depend on the order.
        if self._is_learning and self._num_started == 1 and self._num_forwards_done == 0:
            return None
        return Task(Phase.FORWARD, self._num_started)

    @property
    def _num_under_way(self) -> int:
        """Microbatches that have started and not ended."""
        return self._num_started - self._num_finished

    def accept(self, offered: Task) -> Callable[[], None]:
        """Starts it."""
        self._num_started += 1
        self.peak_microbatches = max(self.peak_microbatches, self._num_under_way)
        return lambda: self._run_body(offered.microbatch)

    def _run_body(self, microbatch: int) -> None:
        seed = mixed(self._seed, microbatch)
        activity = Activity(Task(Phase.FORWARD, microbatch), seed)
        self._enter(activity)
        self._random.seed(seed)
        try:
            with applied(self._modes):
                self._results[microbatch] = map_leaves(arrived, self._bodies[microbatch]())
                self._caller.finish(activity)
        except Exception as error:
            self._failure = self._failure or error
            activity.end()
            self._num_finished = self._schedule.microbatches
            self._scheduler.abort()
            return
        except BaseException:
            activity.end()
            raise
        if activity.task.phase is Phase.FORWARD:
            self._note_forward_done()
        self._habit.note_backwards(activity.num_backwards)
        self._num_finished += 1
        self._attributes.end_microbatch(microbatch)
        self._caller.forget(activity)

    def _note_forward_done(self) -> None:
        self._num_forwards_done += 1
        if self._num_forwards_done == self._schedule.microbatches:
            self._are_forwards_done = True
            if self._before_last_backward is not None and self._is_all_called():
                for rank in range(1, self._size):
                    self._post(rank, messages.ForwardsDone())
        if self._schedule.may_turn_back(self._num_forwards_done):
            turned, self._turned = self._turned, []
            for activity in turned:
                self.wake(activity)

    def _is_all_called(self) -> bool:
        """Whether forward passes call all that ever goes back: so it was in the steps before."""
        late = self._caller.has_called_late or self._owner.callers
        return bool(self._habit.goes_back_once) and not late

    def backward(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """The microbatch turns back: runs its backward pass when that is the most urgent."""
        activity = self.activity()
        roots = [self._root(*pair) for pair in zip(tensors, gradients, strict=True)]
        if activity.task.phase is Phase.FORWARD:
            self._caller.send_open(activity)
            activity.turn_back()
            self._note_forward_done()
            if not self._schedule.may_turn_back(self._num_forwards_done):
                self._turned.append(activity)
                self.wait_until(
                    activity,
                    lambda: self._schedule.may_turn_back(self._num_forwards_done),
                    "the forward passes of the other microbatches",
                )
            if self._schedule.turns_back_early:
                self._caller.send_back_root(tensors)
            self._scheduler.yield_to_more_urgent(activity.task)
        self.had_backward = True
        activity.num_backwards += 1
        if activity.num_backwards > 1:
            self._habit.note_backwards(activity.num_backwards)
        is_last_body = self._num_finished == self._schedule.microbatches - 1
        if is_last_body and self._habit.goes_back_once:
            self.going_back(0)
        try:
            if all(given is _OF_TOKEN for _, given in roots):
                run_backward([root for root, _ in roots], [_OF_TOKEN] * len(roots))
            else:
                torch.autograd.backward([root for root, _ in roots], [given for _, given in roots])
            what = "the end of backward passes on other ranks"
            self.wait_until(activity, lambda: activity.num_going_back == 0, what)
            self._caller.check(activity)
        except Exception as error:
            if activity.num_backwards > 1 and "graph a second time" in str(error):
                error.add_note(
                    "\nCalls of modules on another rank with a part in common go back together,"
                    " with all that they were given. If several losses come from such calls, pass"
                    " them together: model.backward([first, second])."
                )
            # One error tells user code that this pass has failed; what else fails of it is no news.
            self._caller.mute(activity)
            raise

    def _root(self, tensor: Tensor, gradient: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if type(tensor) is not Deferred:
            return tensor, gradient
        if not tensor.is_pending:
            if tensor.program.state in _BACK and not tensor.arrive().requires_grad:
                raise RuntimeError(
                    "backward() of a tensor came a second time, or it requires no grad; expected"
                    " once from each. If several losses have something in common, pass them"
                    " together: model.backward([first, second])."
                )
            return tensor.arrive(), gradient
        given = torch.ones(()) if gradient is None else gradient
        return self._caller.root_of(tensor, given), _OF_TOKEN

    # --- what the two sides need -----------------------------------------------------------------

    def is_active(self) -> bool:
        """Whether anything runs."""
        return self._scheduler.current.activity is not None

    def activity(self) -> Activity:
        """What runs now.

        Raises:
            SMPError: nothing does.
        """
        activity: Activity | None = self._scheduler.current.activity
        if activity is None:
            raise SMPError(
                "a module on another rank was called outside of a step; expected calls inside a"
                " function decorated with @smp.step, on the leader alone."
            )
        return activity

    @property
    def microbatch(self) -> int:
        """The one whose body runs now."""
        return self.activity().task.microbatch

    def submit(self, activity: Activity, run: Callable[[], None]) -> None:
        """Has it done when it is the most urgent."""

        def entered() -> None:
            self._enter(activity)
            run()

        self._scheduler.submit(activity.task, entered)

    def finish(self, activity: Activity) -> None:
        """Waits until all that the running activity has asked for is done."""
        self._caller.finish(activity)

    def forget(self, activity: Activity) -> None:
        """An activity is over."""
        self._caller.forget(activity)

    def going_back(self, num_programs: int) -> None:
        """A backward pass begins here.

        Args:
            num_programs: whose backward pass is to come or under way here, this one included; 0
                for the leader's own.
        """
        notify = self._before_last_backward
        if notify is None or not self._are_forwards_done or not self._is_alone(num_programs):
            return
        self._before_last_backward = None
        notify()

    def _is_alone(self, num_programs: int) -> bool:
        # Programs of the leader are known here by now, if not run. What others will call is not: a
        # rank that they have ever called cannot tell which of its backward passes is the last.
        if self._rank == 0:
            return num_programs == 0 and not self._owner.callers
        return num_programs == 1 and not self._is_learning and self._owner.callers == {0}

    def wait_until(self, activity: Activity, is_there: Callable[[], bool], what: str) -> None:
        """Suspends the running activity until that holds."""
        activity.fiber = self._scheduler.current
        activity.waiting_for = what
        while not is_there():
            self._scheduler.suspend()
        activity.waiting_for = ""

    def wake(self, activity: Activity) -> None:
        """What it waits for may have happened."""
        if activity.fiber is not None:
            self._scheduler.resume(activity.fiber, activity.task)

    def wake_with(self, activity: Activity, error: BaseException) -> bool:
        """It never will happen. Returns: whether it was waiting at all, and so gets the error."""
        fiber = activity.fiber
        return fiber is not None and self._scheduler.throw(fiber, activity.task, error)

    def draw_seed(self) -> int:
        """From the random numbers of the running activity."""
        return self._random.draw()

    def call(self, module: nn.Module, owner: int, args: Any, kwargs: Any) -> Any:
        """A call of a module that lives on another rank."""
        number = self._numbers[module]
        return self._caller.call(number, owner, args, kwargs, is_training=module.training)

    def note_attribute(self, module: nn.Module, name: str, value: Any) -> None:
        """A module sets an attribute in a step."""
        self._attributes.note(self.activity(), module, name, value)

    def note_forward(self, module: nn.Module) -> None:
        """A module's `forward` is replaced in a step, or put back."""
        self._attributes.note_forward(module)

    def set_attribute(self, number: int, name: str, value: Any) -> None:
        """A call on another rank has set it there."""
        setattr(self._modules[number], name, value)

    def _enter(self, activity: Activity) -> None:
        fiber = self._scheduler.current
        fiber.activity = activity
        activity.fiber = fiber
        self._attributes.switch_to(activity.task.microbatch)
        self._set_default_dtype(self._default_dtype)  # not that of who is suspended
        # CUDA nodes too run on the thread that calls: a node that waits holds its own thread only.
        torch.autograd.set_multithreading_enabled(False)
        if self._recorder is not None:
            self._recorder.resume(activity)

    # --- messages --------------------------------------------------------------------------------

    def poll(self) -> None:
        """Deals with the messages that have come; after the step's end its leader may be gone."""
        while self._end is None and self._mailbox.take():
            pass

    def wait(self) -> None:
        """Waits for a message, and deals with it."""
        self._mailbox.wait(self._awaited)

    def _awaited(self) -> str:
        return "; ".join(
            f"{activity.waiting_for or 'its turn'} ({activity.task})"
            for activity in self._scheduler.waiting()
        )

    def interrupted(self) -> None:
        """Ctrl-C came, while another thread works or waits."""
        self._mailbox.abort("interrupted by its user")

    def leave(self) -> Any:
        """What belongs to a microbatch but lies in the process."""
        microbatch = self._scheduler.current.activity.task.microbatch
        return self._random.save(), torch.get_default_dtype(), microbatch

    def enter(self, left: Any) -> None:
        """Puts it back."""
        states, dtype, microbatch = left
        self._attributes.switch_to(microbatch)
        self._random.restore(states)
        self._set_default_dtype(dtype)

    @staticmethod
    def _set_default_dtype(dtype: torch.dtype) -> None:
        if torch.get_default_dtype() is not dtype:
            torch.set_default_dtype(dtype)

    def priority(self, task: Task) -> Priority:
        """What comes first: the smallest."""
        return self._schedule.priority(task, self._rank == 0)

    def _forwards_are_done(self, source: int, _: messages.ForwardsDone) -> None:
        self._are_forwards_done = True

    def _ended(self, source: int, end: messages.End) -> None:
        self._end = end
        self.had_backward = end.had_backward

    def _was_aborted(self, source: int, abort: messages.Abort) -> None:
        if self._rank == 0:
            raise StepAborted(abort.reason)
        self._end = abort
        self._abort_reason = abort.reason
        self._scheduler.abort()


def _told(error: BaseException) -> str:
    """For the middle of a text."""
    return f"{type(error).__name__}: {error}".rstrip(".")
