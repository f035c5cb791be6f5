# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The owning side: programs that others called here, from their forward to their backward pass."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor, nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.torch.pipeline.callee.frames import (
    Frame,
    Key,
    go_back,
    gradients_of,
    received,
)
from smdistributed.modelparallel.torch.pipeline.caller.caller import Caller
from smdistributed.modelparallel.torch.pipeline.changes.argument_walk import ADVICE, Changes
from smdistributed.modelparallel.torch.pipeline.changes.attributes import Attributes
from smdistributed.modelparallel.torch.pipeline.changes.changed_arguments import (
    Watch,
    is_any_changed,
    tensors_watched,
)
from smdistributed.modelparallel.torch.pipeline.loop.activities import Activities
from smdistributed.modelparallel.torch.pipeline.loop.modes import Modes, RandomState, applied, mixed
from smdistributed.modelparallel.torch.pipeline.loop.recorder import Recorder
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.remote_errors import pickled_error
from smdistributed.modelparallel.torch.pipeline.messages.states import FrameState
from smdistributed.modelparallel.torch.pipeline.progress.last_backward import LastBackward
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred, arrived
from smdistributed.modelparallel.torch.pipeline.values.lazy_functions import FUNCTIONS
from smdistributed.modelparallel.torch.pipeline.values.signatures import (
    NOTHING,
    ONE_TENSOR,
    KnownSignatures,
    Signature,
    Template,
    without_tensors,
)

__all__ = ["Callee"]

_log = get_logger()

# What a caller may still look at travels with the gradients if it is no larger.
_SMALL_BYTES = 4096


class Callee:
    """Programs that other ranks call on this one.

    Args:
        rank: this one, in the pipeline.
        post: sends a message.
        activities: of this rank; a program is one.
        caller: what programs call themselves.
        modules: all of the model; a module's number is its place here.
        names: theirs, for messages to people.
        random: from which the modules here draw.
        attributes: of the modules here.
        last_backward: is told of backward passes that begin.
    """

    def __init__(
        self,
        rank: int,
        post: messages.Post,
        activities: Activities,
        caller: Caller,
        modules: Sequence[nn.Module],
        names: Sequence[str],
        random: RandomState,
        attributes: Attributes,
        last_backward: LastBackward,
    ) -> None:
        self._rank = rank
        self._post = post
        self._activities = activities
        self._caller = caller
        self._last_backward = last_backward
        self._modules = modules
        self._names = names
        self._random = random
        self._attributes = attributes
        self._signatures = KnownSignatures()
        self._returned: dict[Key, Template] = {}  # by caller and signature: what it was told
        self._frames: dict[Key, Frame] = {}
        # What came for a program whose call has not come yet: ranks do not wait for one another.
        self._early: dict[Key, list[tuple[int, Tensor]]] = {}
        self._has_warned: set[bool] = set()
        self._has_told_of_hook: set[int] = set()
        self.recorder: Recorder | None = None

    def count_awaiting_backward(self) -> int:
        """Programs that may be asked to go back, or are under way."""
        return sum(frame.is_awaiting_backward for frame in self._frames.values())

    @property
    def num_frames(self) -> int:
        """Programs of which something is kept."""
        return sum(frame.keeps_something for frame in self._frames.values())

    # --- messages --------------------------------------------------------------------------------

    def called(self, source: int, call: messages.Call) -> None:
        """A program begins as soon as all that it uses is here."""
        self.learn(source, call)
        self._last_backward.note_caller(source)
        frame = Frame(source, call)
        self._frames[frame.key] = frame
        for slot, origin in enumerate(call.slots):
            if origin is None or origin.owner != self._rank:
                continue
            maker = self._find((source, origin.program))
            if maker is not None:
                push = messages.Push(origin.program, origin.value, self._rank, call.program, slot)
                self._hand_over(maker, push)
        for slot, tensor in self._early.pop(frame.key, ()):
            self._take_in(frame, slot, tensor)
        if not frame.num_missing:
            self._start(frame)

    def learn(self, source: int, call: messages.Call) -> None:
        """What a Call defines; of one that is too late as well."""
        if call.definitions:
            self._signatures.learn(source, pickle.loads(call.definitions))

    def pushed(self, source: int, push: messages.Push) -> None:
        """A program on another rank needs a value."""
        frame = self._find((source, push.program))
        if frame is not None:
            self._try(frame, lambda: self._hand_over(frame, push))

    def _hand_over(self, frame: Frame, push: messages.Push) -> None:
        """Gives a value to a program that uses it, now or when there is one."""
        if frame.has_run:
            self._push(frame, push)
        else:
            frame.pushes.append(push)

    def value_came(self, source: int, message: messages.Value) -> None:
        """Of a program on another rank, for a program here."""
        key = message.caller, message.user
        assert message.value is not None
        frame = self._frames.get(key)
        if frame is None:
            self._early.setdefault(key, []).append((message.slot, message.value))
        elif not frame.is_gone:
            self._take_in(frame, message.slot, message.value)

    def _take_in(self, frame: Frame, slot: int, tensor: Tensor) -> None:
        frame.inputs[slot] = tensor
        frame.num_missing -= 1
        if frame.num_missing == 0:
            self._start(frame)

    def _start(self, frame: Frame) -> None:
        if frame.state is FrameState.WAITING:
            frame.move_to(FrameState.READY)
            self._activities.submit_activity(frame.activity, functools.partial(self._run, frame))

    def fetched(self, source: int, fetch: messages.Fetch) -> None:
        """The caller wants values now."""
        frame = self._find((source, fetch.program))
        if frame is None:
            return
        if frame.has_run:
            self._try(frame, lambda: self._return(frame, fetch.values))
        else:
            frame.fetches.append(fetch)

    def _try(self, frame: Frame, send: Callable[[], None]) -> None:
        try:
            send()
        except TypeError as error:  # it cannot travel
            self._raise(frame, error)

    def asked_back(self, source: int, asked: messages.Backward) -> None:
        """A backward pass begins as soon as every program that used a value has sent a gradient."""
        frame = self._find((source, asked.program))
        if frame is not None:
            frame.backward = asked
            self._maybe_go_back(frame)

    def gradient_came(self, source: int, message: messages.Gradient) -> None:
        """Of a value, from a program that used it."""
        self._add_gradient((message.caller, message.program), message.value, message.gradient)

    def _add_gradient(self, key: Key, value: int, gradient: Tensor | None) -> None:
        frame = self._find(key)
        if frame is not None:
            frame.gradients.append((value, gradient))
            self._maybe_go_back(frame)

    def _maybe_go_back(self, frame: Frame) -> None:
        asked = frame.backward
        if asked is None or frame.state not in _MAY_GO_BACK:
            return
        if len(frame.gradients) >= asked.num_returning:
            frame.move_to(FrameState.READY_BACK)
            frame.activity.task = asked.task
            run_back = functools.partial(self._run_back, frame)
            self._activities.submit_activity(frame.activity, run_back)

    def dropped(self, source: int, drop: messages.Drop) -> None:
        """Nobody will ask for anything of these programs any more."""
        for number in drop.programs:
            frame = self._frames.get((source, number))
            if frame is not None:
                is_on_stack = frame.state in _ON_STACK
                frame.move_to(FrameState.GONE)
                if not is_on_stack:  # else it would wait forever for what it has called
                    self._let_go(frame)

    def drop_all(self) -> None:
        """The step is over."""
        for frame in self._frames.values():  # so it is on the ranks that they have called
            frame.results.clear()
            frame.activity.end()
        self._frames.clear()
        self._early.clear()
        self._signatures.forget_single()

    def _find(self, key: Key) -> Frame | None:
        """A program's frame; None if the program is gone, and messages for it were on the way."""
        frame = self._frames[key]
        return None if frame.is_gone else frame

    def _was_dropped(self, frame: Frame) -> bool:
        """Whether that came while the frame was on the stack; then it lets go of what it holds."""
        if frame.is_gone:
            self._let_go(frame)
            return True
        return False

    def _let_go(self, frame: Frame) -> None:
        frame.results.clear()
        frame.inputs.clear()
        frame.gradients.clear()
        frame.pushes.clear()
        frame.backward = None
        self._caller.forget(frame.activity)

    # --- forward ---------------------------------------------------------------------------------

    def _run(self, frame: Frame) -> None:
        if frame.is_gone:
            return
        frame.move_to(FrameState.RUNNING)
        is_answered = bool(frame.call.wanted)
        if self.recorder is not None:
            self.recorder.called(frame.activity, frame.called)
        try:
            wanted, whole = self._forward(frame)
            self._caller.finish(frame.activity)
            if self._was_dropped(frame):
                return
            frame.move_to(FrameState.RUN)
            for push in frame.pushes:
                self._push(frame, push)
            if is_answered:
                self._return(frame, wanted, whole)
            for fetch in frame.fetches:
                self._return(frame, fetch.values)
        except Exception as error:
            self._raise(frame, error)
            return
        frame.fetches.clear()
        frame.pushes.clear()
        if not frame.call.is_grad:
            if is_answered and not frame.call.kept:
                del self._frames[frame.key]  # the caller knows: see Program.is_closed
                self._let_go(frame)
            else:
                self._caller.forget(frame.activity)
        self._maybe_go_back(frame)  # it may have been asked to already

    def _forward(self, frame: Frame) -> tuple[Sequence[int], bytes]:
        """Runs it.

        Returns: the values that the caller waits for, and what else the last call has returned.
        """
        inputs = received(frame)
        results: list[Tensor] = []
        template = changes = None
        calls = [
            (self._signatures.get(frame.key[0], call.signature), call) for call in frame.call.calls
        ]
        for modes, group in itertools.groupby(calls, key=_modes_of):
            with applied(modes):
                for signature, (number, is_expected, seed, sources) in group:
                    frame.called.append(signature.module)
                    arguments = [results[-1 - s] if s < 0 else inputs[s] for s in sources]
                    if seed:  # that is, for modules
                        self._random.seed(seed)
                    result, watch, changes = self._call(frame, signature, arguments, is_expected)
                    if type(result) is Tensor and watch is None:
                        template = ONE_TENSOR
                        results.append(result)
                    else:
                        template, tensors = _template_of(result, watch, changes)
                        results += [arrived(tensor) for tensor in tensors]
                    told = frame.key[0], number
                    if is_expected:
                        self._check_as_told(
                            signature.module, self._returned.get(told), template, changes
                        )
                    elif number >= 0:
                        self._returned[told] = template
        wanted: Sequence[int] = frame.call.wanted
        whole = b""
        if wanted == [messages.WHOLE_RESULT]:
            assert template is not None
            num_tensors = template.num_tensors
            if changes is not None:
                results += changes.tensors
                num_tensors += len(changes.tensors)
                changes = changes._replace(tensors=())
            whole = _pickled((template, changes))
            wanted = range(len(results) - num_tensors, len(results))
        fetched = (value for fetch in frame.fetches for value in fetch.values)
        pushed = (push.value for push in frame.pushes)
        needed = {*frame.call.kept, *wanted, *fetched, *pushed}
        frame.results = {number: results[number] for number in needed}
        return wanted, whole

    def _call(
        self, frame: Frame, signature: Signature, arguments: list[Tensor], is_expected: bool
    ) -> tuple[Any, Watch | None, Changes | None]:
        """What a module or a function returns, and what it has changed in its arguments.

        Without objects that can change in the arguments, and without a change, both are None.
        """
        args, kwargs = signature.arguments(arguments)
        number = signature.module
        if number < 0:
            return FUNCTIONS[-1 - number][1](*args, **kwargs), None, None
        module = self._modules[number]
        frame.activity.attributes.clear()
        watch = Watch(args, kwargs) if signature.is_mutable else None
        before = tensors_watched(arguments) if watch is None else []
        try:
            result = module(*args, **kwargs)
        except Exception as error:
            if watch is None and is_any_changed(arguments, before):
                watch = Watch(args, kwargs, _by_id(arguments, before))
            if watch is not None:
                watch.require_unchanged(self._names[number], module.forward, error)
            raise
        if any(each.requires_grad and each._backward_hooks for each in arguments):
            self._warn_of_hook(number)
        attributes = self._attributes.set_in_call(frame.activity, is_expected)
        if watch is None:
            if not attributes and not is_any_changed(arguments, before):
                return result, None, None
            watch = Watch(args, kwargs, _by_id(arguments, before))
        changes = watch.changes(self._names[number], module.forward, result, attributes)
        if changes.has_any:
            self._require_no_other_reader(frame, changes)
            self._warn_of_changes(number, changes)
        return result, watch, changes

    def _warn_of_hook(self, number: int) -> None:
        """Once for a module."""
        if number not in self._has_told_of_hook:
            self._has_told_of_hook.add(number)
            _log.warning(
                "%s registered a hook on a tensor that another rank has given it. The hook sees the"
                " gradient of this module alone, and not of other uses of that tensor. Register it"
                " where the tensor is made.",
                self._names[number],
            )

    def _warn_of_changes(self, number: int, changes: Changes) -> None:
        """Once, of arguments and of attributes: they are mended in different ways."""
        if changes.of_attributes in self._has_warned:
            return
        self._has_warned.add(changes.of_attributes)
        advice = (
            "Return such a value instead, and the caller does not wait."
            if changes.of_attributes
            else "Return what is new instead, if you can; a cache of keys and values is not needed"
            " in training: use_cache=False."
        )
        _log.warning(
            "%s changes %s, and runs on another rank than its caller. The caller waits for each"
            " such call, and the new values travel back. %s",
            self._names[number],
            changes.what,
            advice,
        )

    def _require_no_other_reader(self, frame: Frame, changes: Changes) -> None:
        """What a program makes for another one on the same rank is handed over without a copy."""
        changed = {
            tensor.untyped_storage().data_ptr()
            for tensor in changes.tensors[: len(changes.changed)]
        }
        for other in self._frames.values():
            if other is frame or other.has_run or other.is_gone:
                continue
            for tensor in other.inputs:
                if tensor is not None and tensor.untyped_storage().data_ptr() in changed:
                    raise RuntimeError(
                        f"{self.name_of(frame.called[-1])} changed"
                        f" {changes.what} in place, while another module that was given the"
                        f" same tensor had not run. {ADVICE}"
                    )

    def name_of(self, number: int) -> str:
        """A module's or a function's."""
        return self._names[number] if number >= 0 else FUNCTIONS[-1 - number][0]

    def _check_as_told(
        self, module: int, told: Template | None, template: Template, changes: Changes | None
    ) -> None:
        if changes is not None and changes.has_any:
            raise RuntimeError(
                f"{self.name_of(module)} changed {changes.what}, other than at"
                " earlier calls with such arguments. Its caller had been given placeholders"
                f" already, and does not wait for changes. {ADVICE}"
            )
        told = told or ONE_TENSOR  # so it is with functions
        if template is told or template == told:
            return
        raise RuntimeError(
            f"{self.name_of(module)} returned something else than at earlier calls with such"
            f" arguments: now {_shown(template)}, before {_shown(told)}. Its caller had been given"
            " placeholders already; expected the same structure every time. Return the same"
            " structure always, or put the module on the rank that calls it:"
            ' smp.set_partition(module, 0), with "auto_partition": False.'
        )

    def _push(self, frame: Frame, push: messages.Push) -> None:
        tensor = frame.results[push.value]
        caller = frame.key[0]
        if push.rank != self._rank:
            self._post(push.rank, messages.Value(caller, push.user, push.slot, tensor))
            return
        # A tensor of its own, on the same memory.
        same = tensor.detach()
        same.requires_grad_(frame.call.is_grad and tensor.requires_grad)
        user = self._find((caller, push.user))
        if user is not None:
            self._take_in(user, push.slot, same)

    def _return(self, frame: Frame, numbers: Sequence[int], whole: bytes = b"") -> None:
        values = [frame.results[number] for number in numbers]
        self._post(frame.key[0], messages.Return(frame.key[1], values, whole))

    def _raise(self, frame: Frame, error: Exception) -> None:
        is_going_back = frame.state is FrameState.GOING_BACK
        names = self._names_of(frame, is_going_back)
        where = f"rank {self._rank} of the pipeline, in {names}"
        where += f", microbatch {frame.activity.task.microbatch}"
        data = pickled_error(error, where)
        frame.move_to(FrameState.GONE)
        self._let_go(frame)
        self._post(frame.key[0], messages.Raise(frame.key[1], is_going_back, data))

    def _names_of(self, frame: Frame, is_going_back: bool) -> str:
        if not is_going_back:
            return self.name_of(frame.called[-1]) if frame.called else "a module"
        return "the backward pass of " + ", ".join(self.name_of(each) for each in frame.called[:3])

    # --- backward --------------------------------------------------------------------------------

    def _run_back(self, frame: Frame) -> None:
        asked = frame.backward
        if frame.is_gone or asked is None:
            return
        frame.move_to(FrameState.GOING_BACK)
        try:
            self._random.seed(mixed(frame.activity.seed, 1))
            self._last_backward.begins(self.count_awaiting_backward)
            gradients = gradients_of(frame, asked)
            values = _values_after(frame, asked, gradients)
            go_back(frame, gradients)
            self._caller.finish(frame.activity)
        except Exception as error:
            self._raise(frame, error)
            return
        if self._was_dropped(frame):
            return
        frame.move_to(FrameState.GONE_BACK)
        of_inputs = self._pass_on_gradients(frame)
        small = {number: t for number, t in values.items() if t.nbytes <= _SMALL_BYTES}
        is_closed = len(small) == len(values) and not any(t.requires_grad for t in values.values())
        self._post(
            frame.key[0],
            messages.Gradients(
                frame.key[1], is_closed, of_inputs, list(small), list(small.values())
            ),
        )
        # Kept until the step ends, or the caller says that it will not ask for more: from other
        # values it may go back once more.
        frame.results = {} if is_closed else values
        if not any(tensor.requires_grad for tensor in frame.results.values()):
            self._caller.forget(frame.activity)

    def _pass_on_gradients(self, frame: Frame) -> list[Tensor | None]:
        """Sends gradients to the owners of values that came in. Returns: those for the caller."""
        gradients = iter(frame.input_gradients or [None] * sum(frame.requires_grad))
        frame.input_gradients = ()
        of_inputs = []
        for origin, needs in zip(frame.call.slots, frame.requires_grad, strict=True):
            gradient = next(gradients) if needs else None
            if origin is None:
                if needs:
                    of_inputs.append(gradient)
                continue
            caller = frame.key[0]
            if origin.owner == self._rank:
                self._add_gradient((caller, origin.program), origin.value, gradient)
            else:
                self._post(
                    origin.owner,
                    messages.Gradient(caller, origin.program, origin.value, gradient),
                )
        return of_inputs


_MAY_GO_BACK = frozenset({FrameState.RUN, FrameState.GONE_BACK})
_ON_STACK = frozenset({FrameState.RUNNING, FrameState.GOING_BACK})


def _values_after(
    frame: Frame, asked: messages.Backward, roots: Collection[int]
) -> dict[int, Tensor]:
    """The values that the caller may still look at when the backward pass is over.

    Those that it begins with lose their graph by it; from the others another one may begin.
    """
    return {
        number: frame.results[number].detach() if number in roots else frame.results[number]
        for number in asked.awaited
    }


def _template_of(
    result: Any, watch: Watch | None, changes: Changes | None
) -> tuple[Template, list[Tensor]]:
    if changes is not None and changes.has_any:
        return NOTHING, []  # it is in the changes
    if type(result) is Deferred:
        result = result.arrive()
    return without_tensors(result, None if watch is None else watch.known)


def _pickled(told: Any) -> bytes:
    try:
        return pickle.dumps(told)
    except Exception as error:
        raise TypeError(
            f"what the module returned cannot go to another rank ({error}); expected tensors, plain"
            " values, containers of them, or objects that pickle takes. Return what the other ranks"
            " can have."
        ) from error


def _by_id(tensors: Sequence[Tensor], values: Sequence[Any]) -> dict[int, Any]:
    return dict(zip(map(id, tensors), values, strict=True))


def _modes_of(call: tuple[Signature, messages.ModuleCall]) -> Modes:
    return call[0].modes


def _shown(template: Template) -> str:
    return f"{template.num_tensors} tensors in {template.structure}"
