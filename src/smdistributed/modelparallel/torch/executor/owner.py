# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The owning side: programs that others called here, from their forward to their backward pass."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.schedules.schedule import Phase, Task
from smdistributed.modelparallel.torch.executor.activity import Activity
from smdistributed.modelparallel.torch.executor.argument_changes import (
    ADVICE,
    Changes,
    Watch,
    is_any_changed,
    tensors_watched,
)
from smdistributed.modelparallel.torch.executor.attributes import Attributes
from smdistributed.modelparallel.torch.executor.caller import WHOLE_RESULT, Post
from smdistributed.modelparallel.torch.executor.deferred import Deferred, arrived
from smdistributed.modelparallel.torch.executor.frames import (
    Frame,
    Key,
    Push,
    frame_of,
    go_back,
    gradients_of,
    received,
)
from smdistributed.modelparallel.torch.executor.lazy_functions import FUNCTIONS
from smdistributed.modelparallel.torch.executor.modes import Modes, RandomState, applied, mixed
from smdistributed.modelparallel.torch.executor.recorder import Recorder
from smdistributed.modelparallel.torch.executor.remote_errors import pickled_error
from smdistributed.modelparallel.torch.executor.signatures import (
    NOTHING,
    ONE_TENSOR,
    KnownSignatures,
    Signature,
    Template,
    without_tensors,
)
from smdistributed.modelparallel.torch.executor.wire import Kind, Letter

__all__ = ["Owner"]

_log = get_logger()

# What a caller may still look at travels with the gradients if it is no larger.
_SMALL_BYTES = 4096


class Surroundings(Protocol):
    """What the owning side needs of the executor around it."""

    def submit(self, activity: Activity, run: Callable[[], None]) -> None:
        """Has it done when it is the most urgent."""

    def finish(self, activity: Activity) -> None:
        """Waits until all that the running activity has asked for is done."""

    def forget(self, activity: Activity) -> None:
        """An activity is over."""

    def going_back(self, num_programs: int) -> None:
        """A backward pass begins; so many programs here have one to come or under way."""


class Owner:
    """The owning side of one rank."""

    def __init__(
        self,
        rank: int,
        post: Post,
        surroundings: Surroundings,
        modules: Sequence[nn.Module],
        names: Sequence[str],
        random: RandomState,
        attributes: Attributes,
    ) -> None:
        self._rank = rank
        self._post = post
        self._surroundings = surroundings
        self._modules = modules
        self._names = names
        self._random = random
        self._attributes = attributes
        self._signatures = KnownSignatures()
        self._returned: dict[Key, Template] = {}  # by caller and signature: what it was told
        self._frames: dict[Key, Frame] = {}
        # What came for a program whose call has not come yet: ranks do not wait for one another.
        self._early: dict[Key, list[tuple[int, Tensor]]] = {}
        # Programs that are gone before their time, to which messages may still be on the way.
        self._gone: set[Key] = set()
        self._callers: set[int] = set()
        self._has_warned = False
        self.recorder: Recorder | None = None

    @property
    def callers(self) -> set[int]:
        """The ranks that have called programs here, in any step."""
        return self._callers

    @property
    def num_awaiting_backward(self) -> int:
        """Programs that may be asked to go back, or are under way."""
        return sum(
            frame.is_grad and (frame.is_going_back or not frame.has_gone_back)
            for frame in self._frames.values()
        )

    @property
    def num_frames(self) -> int:
        """Programs of which something is kept."""
        return sum(
            not frame.has_gone_back or bool(frame.results) for frame in self._frames.values()
        )

    # --- messages --------------------------------------------------------------------------------

    def called(self, letter: Letter) -> None:
        """CALL: a program begins as soon as all that it uses is here."""
        self.learn(letter)
        self._callers.add(letter.source)
        frame, missing = frame_of(letter)
        key = frame.key
        self._frames[key] = frame
        for slot, (owner, number, value) in missing.items():
            if owner == self._rank and (maker := self._find((letter.source, number))):
                self._hand_over(maker, (value, self._rank, key[1], slot))
        for slot, tensor in self._early.pop(key, ()):
            self._take_in(frame, slot, tensor)
        if not missing:
            self._surroundings.submit(frame.activity, lambda: self._run(frame))

    def learn(self, letter: Letter) -> None:
        """What a CALL defines."""
        if letter.pickled:
            self._signatures.learn(letter.source, pickle.loads(letter.pickled))

    def _hand_over(self, frame: Frame, push: Push) -> None:
        """Gives a value to a program that uses it, now or when there is one."""
        if frame.has_run:
            self._push(frame, push)
        else:
            frame.pushes.append(push)

    def value_came(self, letter: Letter) -> None:
        """VALUE: of a program on another rank, for a program here."""
        caller, number, slot = letter.ints
        tensor = letter.tensors[0]
        assert tensor is not None
        frame = self._frames.get((caller, number))
        if (caller, number) in self._gone:
            return
        if frame is None:
            self._early.setdefault((caller, number), []).append((slot, tensor))
        else:
            self._take_in(frame, slot, tensor)

    def _take_in(self, frame: Frame, slot: int, tensor: Tensor) -> None:
        frame.inputs[slot] = tensor
        frame.num_missing -= 1
        if frame.num_missing == 0:
            self._surroundings.submit(frame.activity, lambda: self._run(frame))

    def fetched(self, letter: Letter) -> None:
        """FETCH: values that the caller wants now, or that another program uses."""
        frame = self._find((letter.source, letter.ints[0]))
        if frame is None:
            return
        if not frame.has_run:
            frame.requests.append(letter)
            return
        try:
            self._answer(frame, letter)
        except TypeError as error:  # it cannot travel
            self._raise(frame, error)

    def _answer(self, frame: Frame, letter: Letter) -> None:
        _, num_wanted, num_pushes, *rest = letter.ints
        if num_pushes:
            value, rank, number, slot = rest[num_wanted:]
            self._push(frame, (value, rank, number, slot))
        else:
            self._return(frame, rest)

    def going_back(self, letter: Letter) -> None:
        """BACKWARD: begins as soon as every program that used a value has sent its gradient."""
        frame = self._find((letter.source, letter.ints[0]))
        if frame is not None:
            frame.backward = letter
            self._maybe_go_back(frame)

    def gradient_came(self, letter: Letter) -> None:
        """GRADIENT: of a value, from a program that used it."""
        caller, number, value = letter.ints
        self._add_gradient((caller, number), value, letter.tensors[0])

    def _add_gradient(self, key: Key, value: int, gradient: Tensor | None) -> None:
        frame = self._find(key)
        if frame is not None:
            frame.gradients.append((value, gradient))
            self._maybe_go_back(frame)

    def _maybe_go_back(self, frame: Frame) -> None:
        letter = frame.backward
        if letter is None or not frame.has_run or len(frame.gradients) < letter.ints[3]:
            return
        _, microbatch, is_backward, *_ = letter.ints
        phase = Phase.BACKWARD if is_backward else Phase.FORWARD
        frame.activity.task = Task(phase, microbatch)
        self._surroundings.submit(frame.activity, lambda: self._run_back(frame))

    def dropped(self, letter: Letter) -> None:
        """DROP: programs of which nobody will ask for anything any more."""
        for number in letter.ints:
            frame = self._frames.get((letter.source, number))
            if frame is not None:
                self._gone.add(frame.key)
                if not frame.is_running:  # else it would wait forever for what it has called
                    self._forget(frame.key, frame)

    def drop_all(self) -> None:
        """The step is over."""
        for frame in self._frames.values():  # so it is on the ranks that they have called
            frame.results.clear()
            frame.activity.end()
        self._frames.clear()
        self._early.clear()
        self._gone.clear()

    def _find(self, key: Key) -> Frame | None:
        """A program's frame; None if it is gone before its time."""
        return None if key in self._gone else self._frames[key]

    def _forget(self, key: Key, frame: Frame) -> None:
        self._frames.pop(key, None)
        frame.results.clear()
        self._surroundings.forget(frame.activity)

    # --- forward ---------------------------------------------------------------------------------

    def _run(self, frame: Frame) -> None:
        if frame.key in self._gone:
            return
        frame.is_running = True
        if self.recorder is not None:
            self.recorder.called(frame.activity, frame.called)
        try:
            whole = self._forward(frame)
            self._surroundings.finish(frame.activity)
            frame.has_run = True
            for push in frame.pushes:
                self._push(frame, push)
            if frame.is_answered_at_once:
                self._return(frame, frame.wanted, whole)
            for letter in frame.requests:
                self._answer(frame, letter)
        except Exception as error:
            self._raise(frame, error)
            return
        frame.is_running = False
        frame.requests.clear()
        if frame.key in self._gone:
            self._forget(frame.key, frame)
            return
        if not frame.is_grad:
            if frame.is_answered_at_once and not frame.kept:
                self._forget(frame.key, frame)  # the caller knows: see Program.is_closed
            else:
                self._surroundings.forget(frame.activity)
        self._maybe_go_back(frame)  # it may have been asked to already

    def _forward(self, frame: Frame) -> tuple[Template, Changes | None] | None:
        """Runs it. Returns: of the last call what its caller waits for, besides tensors."""
        inputs = received(frame)
        results: list[Tensor] = []
        template = changes = None
        calls = [(self._signatures.get(frame.key[0], call[0]), call) for call in frame.calls]
        for modes, group in itertools.groupby(calls, key=_modes_of):
            with applied(modes):
                for signature, (number, is_expected, seed, sources) in group:
                    frame.called.append(signature.module)
                    arguments = [results[-1 - s] if s < 0 else inputs[s] for s in sources]
                    if seed:  # that is, for modules
                        self._random.seed(seed)
                    result, watch, changes = self._call(frame, signature, arguments)
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
        if frame.wanted != [WHOLE_RESULT]:
            whole = None
        else:
            assert template is not None
            num_tensors = template.num_tensors
            if changes is not None:
                results += changes.tensors
                num_tensors += len(changes.tensors)
                changes = changes._replace(tensors=())
            whole = template, changes
            frame.wanted = list(range(len(results) - num_tensors, len(results)))
        needed = frame.kept.union(frame.wanted, (push[0] for push in frame.pushes))
        for letter in frame.requests:
            _, num_wanted, _, *rest = letter.ints
            needed.update(rest[: num_wanted or 1])
        frame.results = {number: results[number] for number in needed}
        return whole

    def _call(
        self, frame: Frame, signature: Signature, arguments: list[Tensor]
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
        attributes = self._attributes.set_in_call(frame.activity)
        if watch is None:
            if not attributes and not is_any_changed(arguments, before):
                return result, None, None
            watch = Watch(args, kwargs, _by_id(arguments, before))
        changes = watch.changes(self._names[number], module.forward, result, attributes)
        if changes.what:
            self._require_no_other_reader(frame, changes)
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s changes %s, and runs on another rank than its caller. The caller waits for"
                    " each such call, and the new values travel back. Return what is new instead,"
                    " if you can; a cache of keys and values is not needed in training:"
                    " use_cache=False.",
                    self._names[number],
                    changes.what,
                )
        return result, watch, changes

    def _require_no_other_reader(self, frame: Frame, changes: Changes) -> None:
        """What a program makes for another one on the same rank is handed over without a copy."""
        changed = {
            tensor.untyped_storage().data_ptr()
            for tensor in changes.tensors[: len(changes.changed)]
        }
        for other in self._frames.values():
            if other is frame or other.has_run:
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
        if changes is not None and changes.what:
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
            " smp.set_partition(module, 0)."
        )

    def _push(self, frame: Frame, push: Push) -> None:
        value, rank, number, slot = push
        tensor = frame.results[value]
        if rank != self._rank:
            self._post(rank, Kind.VALUE, [frame.key[0], number, slot], [tensor])
            return
        # A tensor of its own, on the same memory.
        same = tensor.detach()
        same.requires_grad_(frame.is_grad and tensor.requires_grad)
        user = self._find((frame.key[0], number))
        if user is not None:
            self._take_in(user, slot, same)

    def _return(
        self,
        frame: Frame,
        numbers: Sequence[int],
        whole: tuple[Template, Changes | None] | None = None,
    ) -> None:
        self._post(
            frame.key[0],
            Kind.RETURN,
            [frame.key[1]],
            [frame.results[number] for number in numbers],
            b"" if whole is None else pickle.dumps(whole),
        )

    def _raise(self, frame: Frame, error: Exception) -> None:
        names = self._names_of(frame)
        where = f"rank {self._rank} of the pipeline, in {names}"
        where += f", microbatch {frame.activity.task.microbatch}"
        data = pickled_error(error, where)
        self._gone.add(frame.key)
        self._forget(frame.key, frame)
        self._post(frame.key[0], Kind.RAISE, [frame.key[1], frame.is_going_back], (), data)

    def _names_of(self, frame: Frame) -> str:
        if not frame.is_going_back:
            return self.name_of(frame.called[-1]) if frame.called else "a module"
        return "the backward pass of " + ", ".join(self.name_of(each) for each in frame.called[:3])

    # --- backward --------------------------------------------------------------------------------

    def _run_back(self, frame: Frame) -> None:
        letter = frame.backward
        if frame.key in self._gone or letter is None:
            return
        frame.is_running = frame.is_going_back = True
        try:
            self._random.seed(mixed(frame.activity.seed, 1))
            self._surroundings.going_back(self.num_awaiting_backward)
            values = _values_after(frame, letter)
            go_back(frame, letter)
            self._surroundings.finish(frame.activity)
        except Exception as error:
            self._raise(frame, error)
            return
        frame.is_running = frame.is_going_back = False
        frame.has_gone_back = True
        if frame.key in self._gone:
            self._forget(frame.key, frame)
            return
        gradients = iter(frame.input_gradients or [None] * sum(frame.requires_grad))
        frame.input_gradients = ()
        returned = []
        for origin, needs in zip(frame.origins, frame.requires_grad, strict=True):
            gradient = next(gradients) if needs else None
            if origin is None:
                if needs:
                    returned.append(gradient)
                continue
            owner, number, value = origin
            caller = frame.key[0]
            if owner == self._rank:
                self._add_gradient((caller, number), value, gradient)
            else:
                self._post(owner, Kind.GRADIENT, [caller, number, value], [gradient])
        small = {number: t for number, t in values.items() if t.nbytes <= _SMALL_BYTES}
        is_closed = len(small) == len(values) and not any(t.requires_grad for t in values.values())
        self._post(
            frame.key[0],
            Kind.GRADIENTS,
            [frame.key[1], is_closed, len(returned), *small],
            [*returned, *small.values()],
        )
        # Kept until the step ends, or the caller says that it will not ask for more: from other
        # values it may go back once more.
        frame.results = {} if is_closed else values
        if not any(tensor.requires_grad for tensor in frame.results.values()):
            self._surroundings.forget(frame.activity)


def _values_after(frame: Frame, letter: Letter) -> dict[int, Tensor]:
    """The values that the caller may still look at when the backward pass is over.

    Those that it begins with lose their graph by it; from the others another one may begin.
    """
    awaited = letter.ints[5 + letter.ints[4] :]
    roots = gradients_of(frame, letter)
    return {
        number: frame.results[number].detach() if number in roots else frame.results[number]
        for number in awaited
    }


def _template_of(
    result: Any, watch: Watch | None, changes: Changes | None
) -> tuple[Template, list[Tensor]]:
    if changes is not None and changes.what:
        return NOTHING, []  # it is in the changes
    if type(result) is Deferred:
        result = result.arrive()
    return without_tensors(result, None if watch is None else watch.known)


def _by_id(tensors: Sequence[Tensor], values: Sequence[Any]) -> dict[int, Any]:
    return dict(zip(map(id, tensors), values, strict=True))


def _modes_of(call: tuple[Signature, Any]) -> Modes:
    return call[0].modes


def _shown(template: Template) -> str:
    return f"{template.num_tensors} tensors in {template.structure}"
