# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The calling side: calls of remote modules become programs, programs become messages.

What a module returns is learned at its first call with such arguments, which therefore waits; from
then on calls return placeholders at once (deferred.py).
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from smdistributed._common.log import get_logger
from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.modelparallel.decide.schedules.schedule import Phase
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.containers import flatten, is_container
from smdistributed.modelparallel.torch.pipeline.caller.programs import (
    CallingActivity,
    Program,
    with_history,
)
from smdistributed.modelparallel.torch.pipeline.changes.apply import (
    apply_changes,
    require_same_reach,
)
from smdistributed.modelparallel.torch.pipeline.changes.argument_walk import Changes
from smdistributed.modelparallel.torch.pipeline.changes.attributes import Missing
from smdistributed.modelparallel.torch.pipeline.changes.passed_arguments import Passed
from smdistributed.modelparallel.torch.pipeline.loop.activities import Activities
from smdistributed.modelparallel.torch.pipeline.loop.modes import RandomState, current_modes, mixed
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.remote_errors import unpickled_error
from smdistributed.modelparallel.torch.pipeline.messages.states import ProgramState
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred, may_defer
from smdistributed.modelparallel.torch.pipeline.values.lazy_functions import (
    FUNCTIONS,
    SMALL_BYTES,
    is_constant,
    is_loss,
)
from smdistributed.modelparallel.torch.pipeline.values.signatures import (
    ONE_TENSOR,
    CalledSignatures,
    Template,
    pickled_definitions,
)

__all__ = ["Caller"]

_log = get_logger()


class Caller:
    """The calling side of one rank.

    Args:
        post: sends a message.
        activities: of this rank.
        modules: all of the model; a module's number is its place here.
        names: theirs, for messages to people.
        random: from which each call of a module gets a seed.
    """

    def __init__(
        self,
        post: messages.Post,
        activities: Activities,
        modules: Sequence[nn.Module],
        names: Sequence[str],
        random: RandomState,
    ) -> None:
        self._post = post
        self._activities = activities
        self._modules = modules
        self._number_of = {module: number for number, module in enumerate(modules)}
        self._names = names
        self._random = random
        self._signatures = CalledSignatures()
        # What a call with a signature returns, if that can be told before.
        self._learned: dict[int, Template] = {}
        # Signatures of calls that have changed their arguments: they are waited for.
        self._changing: set[int] = set()
        self._attributes_set: set[tuple[int, str]] = set()
        self._numbers = itertools.count()
        self._programs: dict[int, Program] = {}
        self._dummy = torch.empty(0, requires_grad=True, device="cpu")
        # In a backward pass, where a checkpoint recomputes, or after one.
        self.has_called_late = False
        self._has_warned = False

    def running(self) -> CallingActivity:
        """The activity that runs now.

        Raises:
            SMPError: none does, or it runs on another thread than this one.
        """
        fiber = self._activities.current
        activity: CallingActivity | None = fiber.activity
        if activity is None:
            raise SMPError(
                "a module on another rank was called outside of a step; expected calls inside a"
                " function decorated with @smp.step, on the leader alone."
            )
        if fiber.thread != threading.get_ident():
            raise SMPError(
                f"thread {threading.current_thread().name!r} called a module on another rank, or"
                " looked at its result; expected that of the step function, since several"
                " microbatches take turns on it. Call such modules outside of threads."
            )
        return activity

    # --- forward ---------------------------------------------------------------------------------

    def can_go(self, function: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a torch function may be called where an argument is made.

        What it brings along must be small, unless it is a loss. Outside of a step nothing goes.
        """
        if self._activities.current.activity is None or not may_defer():
            return False
        # Who watches what is saved for the backward pass must see it here. A checkpoint counts it,
        # and what was waited for in the forward pass may be known in the recomputation.
        if _is_saving_watched():
            return False
        if is_loss(function):
            return True
        num_bytes = 0
        is_flat = not kwargs and not any(is_container(type(value)) for value in args)
        for leaf in args if is_flat else flatten((args, kwargs))[0]:
            if isinstance(leaf, Tensor) and type(leaf) is not Deferred:
                if leaf.layout is not torch.strided:
                    return False
                num_bytes += leaf.nbytes
        return num_bytes <= SMALL_BYTES

    def call_function(
        self, function: int, owner: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A placeholder of what a torch function (lazy_functions.py) returns on rank `owner`."""
        return self._call(-1 - function, owner, args, kwargs, is_training=False)

    @keep_from_compiler
    def call_module(
        self, module: nn.Module, owner: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a module returns on rank `owner`, or placeholders of it.

        Raises:
            TypeError: an argument cannot go there.
            Exception: what the module raised, with the traceback of its rank as a note.
        """
        return self._call(self._number_of[module], owner, args, kwargs, module.training)

    def _call(
        self,
        module: int,
        owner: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_training: bool,
    ) -> Any:
        activity = self.running()
        modes = current_modes()
        signature, number, tensors, is_lasting = self._signatures.find(
            module, is_training, args, kwargs, modes
        )
        learned = self._learned.get(number) if module >= 0 else ONE_TENSOR
        if not may_defer():
            learned = None
        program = activity.open
        if (
            program is None
            or program.owner != owner
            or program.is_grad != modes.is_grad
            or not program.may_take(tensors)
        ):
            name = self._names[module] if module >= 0 else FUNCTIONS[-1 - module][0]
            program = self._open(activity, owner, modes.is_grad, name)
        sources = [self._source(activity, program, tensor) for tensor in tensors]
        if modes.is_grad and (module >= 0 or not is_constant(-1 - module)):
            for tensor in tensors:
                if type(tensor) is Deferred and tensor.tensor is None:
                    tensor.is_used = True
        # Drawn, not counted: where a checkpoint recomputes, it is what it was.
        seed = self._random.draw() if module >= 0 else 0
        call = messages.ModuleCall(number, learned is not None, seed, sources)
        if activity.open is not program:
            # What was open is sent now that it is known which of its values go to this owner.
            self.send_open(activity)
            activity.open = program
        if self._signatures.is_untold(owner, number):
            program.definitions[number] = signature
        program.calls.append(call)
        if learned is not None:
            if learned is ONE_TENSOR:
                result = program.defer(1)[0]
                if module < 0 and program.is_grad:
                    program.note_constant(tensors, is_constant(-1 - module))
                return result
            return learned.fill(program.defer(learned.num_tensors))
        passed = Passed(args, kwargs)
        returned = self._fetch(activity, program, [messages.WHOLE_RESULT])
        template: Template
        changes: Changes | None
        template, changes = pickle.loads(returned.whole)
        if template == ONE_TENSOR:
            template = ONE_TENSOR
        if is_lasting and changes is not None and changes.has_any:
            self._changing.add(number)
        elif is_lasting and template.is_plain and number not in self._changing:
            self._learned[number] = template
        if not program.is_grad and any(t.requires_grad for t in _present(returned.values)):
            # Its history is on its rank alone: who uses it there must learn that here.
            self._changing.add(number)
            self._learned.pop(number, None)
        first = program.add_values(len(returned.values))
        numbers = list(range(first, program.num_values))
        tensors = with_history(program, numbers, _present(returned.values))
        if changes is None or not (changes.has_any or template.objects):
            return template.fill(tensors)
        if changes.has_any:
            forward = self._modules[module].forward  # of functions nothing is changed
            return apply_changes(
                changes, tensors, passed, program.where, forward, self._set_attribute
            )
        require_same_reach(changes, passed.reach, program.where)
        return template.fill(tensors, passed.reach.known)

    def path_of(self, module: nn.Module) -> str:
        """Of a module of the model, for messages to people."""
        return self._names[self._number_of[module]] if module in self._number_of else "?"

    def _set_attribute(self, number: int, name: str, value: Any) -> None:
        """Of a module here; a call of it on another rank has set or deleted it there."""
        module = self._modules[number]
        if (number, name) not in self._attributes_set:
            # A call that has set nothing so far may have something to take back from now on.
            self._attributes_set.add((number, name))
            self._learned.clear()
        if value is not Missing.ATTRIBUTE:
            setattr(module, name, value)
        elif name in module.__dict__:
            delattr(module, name)

    def _open(self, activity: CallingActivity, owner: int, is_grad: bool, name: str) -> Program:
        number, ordinal = next(self._numbers), len(activity.programs)
        self.has_called_late |= is_grad and activity.task.phase is Phase.BACKWARD
        program = Program(self, activity, owner, number, ordinal, is_grad, name)
        if is_grad and not self._has_warned and _is_saving_watched():
            self._has_warned = True
            _log.warning(
                "%s was called within torch.utils.checkpoint, or other hooks on saved tensors."
                " Results are right, but what is saved on that rank stays there. Use"
                " smp.set_activation_checkpointing(), or checkpoint() of"
                " smdistributed.modelparallel.torch.patches.checkpoint, for modules on one"
                " partition.",
                program.where,
            )
        activity.programs.append(program)
        return program

    def _source(self, activity: CallingActivity, program: Program, tensor: Tensor) -> int:
        if type(tensor) is not Deferred:
            return program.slot_for(tensor)
        if not tensor.is_pending:
            return program.slot_for(tensor.arrive())
        made_by: Program = tensor.program
        if made_by.activity is not activity:
            self._refuse(made_by)
        if made_by.error is not None:
            made_by.has_raised = True
            raise made_by.error
        if made_by is program:
            return -1 - tensor.number
        slot, is_new = program.slot_for_value(made_by, tensor.number)
        if is_new and made_by.owner != program.owner:
            push = messages.Push(made_by.number, tensor.number, program.owner, program.number, slot)
            if made_by.is_sent:
                self._post(made_by.owner, push)
            else:
                made_by.pushes.append(push)
        return slot

    @staticmethod
    def _refuse(program: Program) -> NoReturn:
        raise SMPError(
            f"a result of {program.where} was kept beyond its microbatch and looked at there for"
            " the first time; expected that no microbatch uses what another one has computed. Keep"
            " result.clone()."
        )

    def force(self, program: Program, placeholder: Deferred) -> None:
        """Waits for the tensor of a placeholder, and gives it to the placeholder."""
        # Who touches one result of a call touches the others soon.
        numbers = program.siblings(placeholder.number)
        placeholders = [program.deferred[number]() for number in numbers]
        if program.activity is not self._activities.current.activity:
            self._refuse(program)
        self.running()  # on this thread
        returned = self._fetch(program.activity, program, numbers)
        tensors = with_history(program, numbers, _present(returned.values))
        for each, tensor in zip(placeholders, tensors, strict=True):
            if each is not None and each.tensor is None:
                each.tensor = tensor

    def root_of(self, activity: CallingActivity, placeholder: Deferred, gradient: Tensor) -> Tensor:
        """The token that a backward pass of the running activity from a placeholder begins with.

        Raises:
            RuntimeError: there are no gradients for it.
        """
        program: Program = placeholder.program
        if program.state is ProgramState.OPEN:
            self.send_open(activity)
        if program.token is None:
            raise RuntimeError(
                "backward() of a tensor that was computed without gradients; expected one that"
                " depends on parameters, outside of torch.no_grad()."
            )
        program.add_gradient(placeholder.number, gradient)
        return program.token

    def send_open(self, activity: CallingActivity) -> None:
        """Nothing can join the program that is open any more: its owner may begin."""
        program, activity.open = activity.open, None
        if program is not None:
            self._send(activity, program, [])

    def _fetch(
        self, activity: CallingActivity, program: Program, wanted: list[int]
    ) -> messages.Return:
        program.answer = None
        if program.is_sent:
            self.send_open(activity)
            self._post(program.owner, messages.Fetch(program.number, wanted))
        else:
            if activity.open is program:
                activity.open = None
            else:
                self.send_open(activity)
            self._send(activity, program, wanted)
        what = f"what rank {program.owner} computes for it, beginning with {program.name}"
        self._activities.wait_until(
            activity, lambda: program.answer is not None or program.error is not None, what
        )
        if program.error is not None:
            self._show(program)
        return program.take_answer()

    def _send(self, activity: CallingActivity, program: Program, wanted: list[int]) -> None:
        try:
            self._post_call(activity, program, wanted)
        except Exception as error:
            if isinstance(error, TypeError):  # a tensor cannot travel
                error.add_note(f"\nIt was passed to {program.where}.")
            program.fail(error)
            program.has_raised = program.is_closed = True
            raise
        self._signatures.note_told(program.owner, program.definitions)
        program.let_go_of_inputs()

    def _post_call(self, activity: CallingActivity, program: Program, wanted: list[int]) -> None:
        program.check_inputs()
        pickled = pickled_definitions(program.definitions)
        kept = [number for number in program.awaited() if number not in wanted]
        inputs = [slot for slot in program.slots if isinstance(slot, Tensor)]
        call = messages.Call(
            program.number,
            activity.task,
            mixed(activity.seed, program.ordinal),
            program.is_grad,
            [
                messages.Origin(slot[0].owner, slot[0].number, slot[1])
                if isinstance(slot, tuple)
                else None
                for slot in program.slots
            ],
            inputs,
            program.calls,
            wanted,
            kept,
            program.pushes,
            pickled,
        )
        if program.is_grad:
            with torch.enable_grad():
                program.enter_graph(self._dummy)
        program.move_to(ProgramState.SENT)
        program.is_closed = not program.is_grad and bool(wanted) and not kept
        self._programs[program.number] = program
        self._post(program.owner, call)

    # --- backward --------------------------------------------------------------------------------

    def go_back(self, program: Program) -> list[Tensor | None]:
        """Runs a program's backward pass; waits only if gradients come back to this rank.

        Returns: the gradients of its inputs that require one.
        """
        # What is heard of since: a program that waits for a gradient of it would wait in vain.
        activity = self.running()
        self.check(activity)
        if program.is_asked_early:
            program.is_asked_early = False
        else:
            self._send_back(activity, program)
        if program.num_inputs == 0:
            return []
        self.wait_for_gradients(program)
        returned, program.input_gradients = program.input_gradients, None
        assert returned is not None
        return list(returned)

    def wait_for_gradients(self, program: Program) -> None:
        """Waits until a program that has been asked to go back has sent those of its inputs.

        Raises:
            Exception: of its backward pass, or of a program that it belongs together with.
        """
        if program.input_gradients is not None:
            return
        self._activities.wait_until(
            program.activity,
            lambda: program.input_gradients is not None or program.error is not None,
            f"the gradients of rank {program.owner}, of what begins with {program.name}",
        )
        if program.error is not None:
            self._show(program)

    def send_back_root(self, activity: CallingActivity, roots: Sequence[Tensor]) -> Program | None:
        """Asks for the backward pass of the program that a backward pass begins with, if it is one.

        Nothing else adds to its gradients. So its owner, which most often is the last rank, can go
        on at once, and not when this rank comes to it.

        Returns: that program.
        """
        pending = [root for root in roots if type(root) is Deferred and root.is_pending]
        programs: set[Program] = {root.program for root in pending}
        if len(pending) != len(roots) or len(programs) != 1:
            return None
        program = programs.pop()
        self._send_back(activity, program)
        program.is_asked_early = True
        return program

    def _send_back(self, activity: CallingActivity, program: Program) -> None:
        if program.error is not None:  # heard of since it was called: nobody would answer
            self._show(program)
        numbers = sorted(program.gradients)
        gradients = [program.gradients[number] for number in numbers]
        program.gradients = {}
        for used, _ in program.used:
            used.num_returning += 1
        activity.num_going_back += 1
        self._post(
            program.owner,
            messages.Backward(
                program.number,
                activity.task,
                program.num_returning,
                numbers,
                gradients,
                program.awaited(),
            ),
        )
        program.num_returning = 0  # these are of this pass
        program.move_to(ProgramState.GOING_BACK)
        program.activity = activity

    def finish(self, activity: CallingActivity) -> None:
        """Waits until all that an activity has asked for is done.

        Raises:
            Exception: of a module whose result nobody looked at, or of a backward pass.
        """
        if activity.open is not None:
            self.send_open(activity)
        if activity.num_going_back:
            self.wait_for_backwards(activity)
        self.check(activity)
        for program in activity.programs:
            if program.state is ProgramState.SENT:
                self._fetch(activity, program, [])

    def wait_for_backwards(self, activity: CallingActivity) -> None:
        """Waits until no backward pass that an activity has asked for is under way."""
        what = "the end of backward passes on other ranks"
        self._activities.wait_until(activity, lambda: activity.num_going_back == 0, what)

    def check(self, activity: CallingActivity) -> None:
        """Raises what has been raised elsewhere and user code has not seen."""
        for program in activity.programs:
            if program.error is not None and not program.has_raised:
                self._show(program)

    @staticmethod
    def mute(activity: CallingActivity) -> None:
        """User code has seen that the backward passes under way have failed."""
        for program in activity.programs:
            program.has_raised |= program.is_going_back or program.error is not None

    @staticmethod
    def _show(program: Program) -> NoReturn:
        """Raises a program's error, once for all that have failed by it."""
        assert program.error is not None
        for other in program.activity.programs:
            other.has_raised |= other.error is program.error
        raise program.error

    # --- answers ---------------------------------------------------------------------------------

    def returned(self, source: int, message: messages.Return) -> None:
        """Values that were wanted."""
        program = self._programs.get(message.program)
        if program is not None:  # else user code has ended without it, by an exception
            program.answer = message
            program.note_answered()
            self._activities.wake(program.activity)

    def went_back(self, source: int, message: messages.Gradients) -> None:
        """A backward pass is done; with small values that were awaited."""
        program = self._programs.get(message.program)
        if program is None:
            return
        program.input_gradients = message.of_inputs
        if message.values:
            # With a history: another backward pass may begin at those that require grad.
            tensors = with_history(program, list(message.values), _present(message.tensors))
            for value, tensor in zip(message.values, tensors, strict=True):
                placeholder = program.deferred[value]()
                if placeholder is not None:
                    placeholder.tensor = tensor
        program.is_closed = message.is_closed
        if program.is_going_back:  # else a program that it belongs together with has failed
            program.move_to(ProgramState.GONE_BACK)
            program.activity.num_going_back -= 1
        program.note_used_answered()
        self._activities.wake(program.activity)

    def raised(self, source: int, message: messages.Raise) -> None:
        """A program has raised, in a forward or a backward pass."""
        program = self._programs.get(message.program)
        if program is None:
            return
        error = unpickled_error(message.error)
        program.is_closed = True
        failed = [program]
        if not message.is_going_back:  # who waits for a value of it was called later
            for other in program.activity.programs:
                if any(used in failed for used, _ in other.used):
                    failed.append(other)
        for each in failed:  # and who waits for a gradient waits in vain
            if each.is_going_back:
                for used, _ in each.used:  # no gradient of these will be sent
                    used.num_returning -= not used.is_going_back
                each.activity.num_going_back -= 1
            each.fail(error)
            failed += (used for used, _ in each.used if used.is_going_back)
        if all(each.has_raised for each in failed):  # user code has seen that they would
            self._activities.wake(program.activity)
        elif self._activities.wake_with(program.activity, error):
            for each in failed:
                each.has_raised = True

    def forget(self, activity: CallingActivity) -> None:
        """An activity is over: nobody will ask for anything of what it has called."""
        left: dict[int, list[int]] = {}
        for program in activity.programs:
            if self._programs.pop(program.number, None) and not program.is_closed:
                left.setdefault(program.owner, []).append(program.number)
        for owner, numbers in left.items():
            self._post(owner, messages.Drop(numbers))
        activity.end()

    def forget_all(self) -> None:
        """The step is over."""
        self._programs.clear()


def _is_saving_watched() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _present(tensors: messages.Tensors) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]
