# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of modules on another rank, as the caller sees them.

A *program* is a row of calls to one owner, in which later calls use what earlier ones return. It is
sent when somebody looks at a value of it, or calls another rank. Two programs of one caller are
joined where one uses what the other returns: that value goes from owner to owner.

In the caller's autograd graph a program is one node, whose output, the *token*, is one number:

    inputs that require grad, tokens of programs it uses ──▶ ProgramNode ──▶ token
    token ──▶ ValuesNode ──▶ values that came to the caller

The engine runs a node when every consumer that the backward pass reaches has run. So when it comes
to a program, all gradients of its values that this rank will ever have are there, and all programs
that use it have been told to go back. So nobody counts consumers, and unused results need no care.
"""

# torch's functions of autograd have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from smdistributed.modelparallel.decide.schedules.schedule import Task
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.pipeline.loop import autograd_engine
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.states import (
    LEGAL,
    ProgramState,
    not_legal,
)
from smdistributed.modelparallel.torch.pipeline.values.deferred import Deferred
from smdistributed.modelparallel.torch.pipeline.values.signatures import Signature

__all__ = ["CallingActivity", "Program", "partial_pass", "with_history"]

# As many are copied in a few microseconds.
_COPIED_BYTES = 64 << 10


class CallingActivity(Activity):
    """An activity, and the programs it has called.

    Attributes:
        open: the program that the next call may still join.
        programs: all it has called; their tokens are let go when it ends.
        num_going_back: backward passes it has asked for without waiting.
        num_backwards: calls of `model.backward`, on the leader.
    """

    __slots__ = ("num_backwards", "num_going_back", "open", "programs")

    def __init__(self, task: Task, seed: int, caller: int | None = None) -> None:
        super().__init__(task, seed, caller)
        self.open: Program | None = None
        self.programs: list[Program] = []
        self.num_going_back = 0
        self.num_backwards = 0

    def end(self) -> None:
        """Lets go of the graph: a token and its node hold each other.

        So do an error, the tensors in the frames of its traceback, and the program that it is of.
        """
        for program in self.programs:
            program.token = program.error = program.answer = None
            program.slots.clear()
            program.used.clear()
            program.held.clear()
            program.gradients.clear()
        self.programs.clear()
        self.open = None


class Asked(Protocol):
    """The caller that a program asks (`caller.Caller`)."""

    def can_go(self, function: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a torch function may be called where an argument is made."""

    def call_function(
        self, function: int, owner: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A placeholder of what it returns there."""

    def force(self, program: Program, placeholder: Deferred) -> None:
        """Waits for the tensor of a placeholder, and gives it to the placeholder."""

    def go_back(self, program: Program) -> list[Tensor | None]:
        """Runs a program's backward pass."""


class Program:
    """A row of calls to one owner.

    Attributes:
        number: of this caller's programs; with the caller's rank it names the program.
        ordinal: among those of its activity.
        slots: what comes in: tensors of this rank (None once it is sent), or values of other
            programs.
        used: those values.
        held: what the keys of slots name, so that nothing else gets the same names.
        has_edges: gradients flow out of it.
        constants: values, by number, that are detached, or made of such ones alone.
        is_connected: each of its calls uses what another one does.
        num_values_of: how many values each call returns.
        deferred: by number of the value, those that user code may still hold.
        token: of the autograd graph; None in calls without gradients.
        num_inputs: of this rank, to which gradients flow out of it.
        gradients: of values that came here, by number.
        num_returning: values that other programs have used, whose owners will send a gradient for
            each: those programs have been told to go back.
        error: of the program, or of one that it uses.
        has_raised: user code has seen the error.
        is_asked_early: its backward pass was asked for before autograd came to its node.
        is_closed: its owner keeps nothing of it after it is through.
    """

    __slots__ = (
        "__weakref__",
        "_slot_of",
        "activity",
        "answer",
        "caller",
        "calls",
        "constants",
        "deferred",
        "definitions",
        "error",
        "gradients",
        "has_edges",
        "has_raised",
        "held",
        "input_gradients",
        "is_asked_early",
        "is_closed",
        "is_connected",
        "is_grad",
        "name",
        "num_inputs",
        "num_returning",
        "num_values",
        "num_values_of",
        "number",
        "ordinal",
        "owner",
        "pushes",
        "slots",
        "state",
        "token",
        "used",
    )

    def __init__(
        self,
        caller: Asked,
        activity: CallingActivity,
        owner: int,
        number: int,
        ordinal: int,
        is_grad: bool,
        name: str,
    ) -> None:
        self.caller = caller
        self.activity = activity
        self.owner = owner
        self.number = number
        self.ordinal = ordinal
        self.is_grad = is_grad
        self.name = name
        self.state = ProgramState.OPEN
        self.calls: list[messages.ModuleCall] = []
        self.slots: list[Tensor | tuple[Program, int] | None] = []
        self.used: list[tuple[Program, int]] = []
        self._slot_of: dict[tuple[int, int], int] = {}
        self.held: list[tuple[Tensor, int] | Program] = []
        self.has_edges = False
        self.is_connected = True
        self.constants: set[int] = set()
        self.num_values = 0
        self.num_values_of: list[int] = []
        self.deferred: dict[int, weakref.ref[Deferred]] = {}
        self.definitions: dict[int, Signature] = {}
        self.pushes: list[messages.Push] = []
        self.is_closed = self.is_asked_early = False
        self.answer: messages.Return | None = None
        self.error: BaseException | None = None
        self.has_raised = False
        self.token: Tensor | None = None
        self.num_inputs = 0
        self.gradients: dict[int, Tensor] = {}
        self.num_returning = 0
        self.input_gradients: messages.Tensors | None = None

    def move_to(self, state: ProgramState) -> None:
        """The next state.

        Raises:
            RuntimeError: it cannot come now.
        """
        if state not in LEGAL[self.state]:
            raise not_legal(self.state, state, f"program {self.number}, with {self.name},")
        self.state = state

    @property
    def where(self) -> str:
        """Its first call and its owner, for messages to people."""
        return f"{self.name} on rank {self.owner} of the pipeline"

    @property
    def is_sent(self) -> bool:
        """Whether nothing can join it any more."""
        return self.state is not ProgramState.OPEN

    @property
    def is_going_back(self) -> bool:
        """Whether its backward pass has been asked for, and has not ended."""
        return self.state is ProgramState.GOING_BACK

    def slot_for(self, tensor: Tensor) -> int:
        """Where a tensor of this rank comes in, as it is now; the same one comes in once.

        It is sent later, and users may change it meanwhile. So small ones are copied. Large ones
        are not, and `check_inputs` tells.
        """
        version = -1 if tensor.is_inference() else tensor._version
        key = id(tensor), -1 - version
        slot = self._slot_of.get(key)
        if slot is None:
            is_dense = tensor.layout is torch.strided and not tensor.is_nested
            is_small = is_dense and tensor.nbytes <= _COPIED_BYTES
            slot = self._new_slot(key, tensor.clone() if is_small else tensor)
            self.held.append((tensor, version if not is_small else -1))
        return slot

    def may_take(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a call with these tensors may join; notes that it does.

        A backward pass that comes to a program comes to all that its inputs were made from. So
        where gradients flow out of it, all its calls must have something in common: others may go
        back before or after them.
        """
        if not self.is_grad or not self.calls:
            return True
        is_related = has_edges = False
        for tensor in tensors:
            if type(tensor) is Deferred and tensor.is_pending:
                if not tensor.program.has_gradient(tensor.number):
                    continue
                if tensor.program is self:
                    is_related = True
                else:
                    has_edges = True
                    is_related |= (id(tensor.program), tensor.number) in self._slot_of
            else:
                present = tensor.arrive() if type(tensor) is Deferred else tensor
                if present.requires_grad:
                    has_edges = True
                    is_related |= (id(present), -1 - present._version) in self._slot_of
        if is_related:
            return self.is_connected or not has_edges
        if has_edges or self.has_edges:
            return False
        self.is_connected = False
        return True

    def has_gradient(self, number: int) -> bool:
        """Whether a backward pass may come to value `number`."""
        return self.is_grad and number not in self.constants

    def note_constant(self, tensors: Sequence[Tensor], is_never: bool) -> None:
        """Of the call made last, of a function: whether no gradient flows through it.

        Args:
            tensors: that it was given.
            is_never: none ever does.
        """
        if is_never or not any(map(_has_gradient, tensors)):
            self.constants.add(self.num_values - 1)

    def check_inputs(self) -> None:
        """What is sent now must be what was passed.

        Raises:
            RuntimeError: it is not.
        """
        for each in self.held:
            if isinstance(each, tuple) and each[1] >= 0 and each[0]._version != each[1]:
                raise RuntimeError(
                    f"a tensor of shape {tuple(each[0].shape)} was changed in place after it was"
                    f" passed to {self.where}, before it was sent; expected it to stay as it is"
                    " until a result has been used. Pass tensor.clone()."
                )

    def slot_for_value(self, program: Program, number: int) -> tuple[int, bool]:
        """Where a value of another program comes in, and whether that is new."""
        key = id(program), number
        slot = self._slot_of.get(key)
        if slot is not None:
            return slot, False
        self.held.append(program)
        self.used.append((program, number))
        return self._new_slot(key, (program, number)), True

    def _new_slot(self, key: tuple[int, int], source: Tensor | tuple[Program, int]) -> int:
        slot = self._slot_of[key] = len(self.slots)
        self.slots.append(source)
        if isinstance(source, Tensor):
            self.has_edges |= source.requires_grad
        else:
            self.has_edges |= source[0].has_gradient(source[1])
        return slot

    def add_values(self, count: int) -> int:
        """The call made last returns so many. Returns: the number of the first one."""
        first = self.num_values
        self.num_values += count
        self.num_values_of.append(count)
        return first

    def defer(self, count: int) -> list[Deferred]:
        """Placeholders for what the call made last will return."""
        first = self.add_values(count)
        made = [Deferred.of(self, number) for number in range(first, first + count)]
        for placeholder in made:
            self.deferred[placeholder.number] = weakref.ref(placeholder)
        return made

    def awaited(self) -> list[int]:
        """Numbers of the values that user code still holds, and has not seen."""
        numbers = []
        for number, reference in self.deferred.items():
            placeholder = reference()
            if placeholder is not None and placeholder.tensor is None:
                numbers.append(number)
        return numbers

    def siblings(self, number: int) -> list[int]:
        """The awaited values of the call that returns value `number`."""
        first = 0
        for count in self.num_values_of:
            if first <= number < first + count:
                return [n for n in self.awaited() if first <= n < first + count]
            first += count
        return [number]

    def add_gradient(self, number: int, gradient: Tensor) -> None:
        """Of a value, from this rank."""
        known = self.gradients.get(number)
        self.gradients[number] = gradient if known is None else known + gradient

    def force(self, placeholder: Deferred) -> None:
        """Waits for the tensor of a placeholder, and gives it to the placeholder."""
        self.caller.force(self, placeholder)

    def take_answer(self) -> messages.Return:
        """What has come for who waits."""
        answer, self.answer = self.answer, None
        assert answer is not None
        return answer

    def note_answered(self) -> None:
        """It is through, and with it what it uses."""
        if self.state is ProgramState.SENT:
            self.move_to(ProgramState.ANSWERED)
            self.note_used_answered()

    def note_used_answered(self) -> None:
        """What it uses is through."""
        for program, _ in self.used:
            program.note_answered()

    def fail(self, error: BaseException) -> None:
        """It has raised, or will never have what it needs."""
        self.error = error
        self.move_to(ProgramState.FAILED)

    def let_go_of_inputs(self) -> None:
        """They have been sent; what autograd needs of them, its graph holds."""
        self.slots = [slot if isinstance(slot, tuple) else None for slot in self.slots]
        self._slot_of.clear()
        self.held.clear()

    def enter_graph(self, dummy: Tensor) -> None:
        """Makes the program's node."""
        edges = [slot for slot in self.slots if isinstance(slot, Tensor) and slot.requires_grad]
        tokens = {
            program.number: program.token
            for program, number in self.used
            if program.token is not None and program.has_gradient(number)
        }
        self.num_inputs = len(edges)
        self.token = ProgramNode.apply(self, dummy, *edges, *tokens.values())


def _has_gradient(tensor: Tensor) -> bool:
    if type(tensor) is Deferred and tensor.is_pending:
        program: Program = tensor.program
        return program.has_gradient(tensor.number)
    return (tensor.arrive() if type(tensor) is Deferred else tensor).requires_grad


class _Pass(threading.local):
    is_partial = False


_pass = _Pass()


@contextlib.contextmanager
def partial_pass() -> Iterator[None]:
    """In this block a backward pass does not give all leaves their gradients, or makes a graph."""
    before, _pass.is_partial = _pass.is_partial, True
    try:
        yield
    finally:
        _pass.is_partial = before


class ProgramNode(Function):
    """A program in its caller's graph. Its backward pass waits inside the engine's."""

    apply = autograd_engine.apply

    @staticmethod
    def forward(ctx: Any, program: Program, dummy: Tensor, *edges: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.program = program
        ctx.num_tokens = len(edges) - program.num_inputs
        return torch.empty((), device="cpu")  # whatever the default is in a step

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor | None) -> tuple[Tensor | None, ...]:
        _refuse_partial(ctx.program)
        gradients = ctx.program.caller.go_back(ctx.program)
        return (None, None, *gradients, *[None] * ctx.num_tokens)


def _refuse_partial(program: Program) -> None:
    if _pass.is_partial:
        raise SMPError(
            f"torch.autograd.grad(), backward(inputs=...) or create_graph=True came to"
            f" {program.where}; expected a pass that gives all parameters their gradients, as"
            " another rank can do no other. Call model.backward(loss), or put what this gradient"
            ' is for on one rank: smp.set_partition(module, 0), with "auto_partition": False.'
        )


class ValuesNode(Function):
    """Values of a program that came to its caller: new tensors, that users may change in place."""

    apply = autograd_engine.apply

    @staticmethod
    def forward(
        ctx: Any, program: Program, token: Tensor, numbers: list[int], box: list[list[Tensor]]
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.program = program
        ctx.numbers = numbers
        return _as_results(ctx, box.pop())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        _refuse_partial(ctx.program)  # or a later pass would count these gradients again
        for number, gradient in zip(ctx.numbers, gradients, strict=True):
            if gradient is not None:
                ctx.program.add_gradient(number, gradient)
        return (None, None, None, None)


class ElsewhereNode(Function):
    """Values that have a history on their rank, and came of a call without gradients.

    So it is if a module turns gradients on by itself, or returns a parameter of its own.
    """

    apply = autograd_engine.apply

    @staticmethod
    def forward(ctx: Any, where: str, dummy: Tensor, box: list[list[Tensor]]) -> tuple[Tensor, ...]:
        ctx.where = where
        return _as_results(ctx, box.pop())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        raise SMPError(
            f"a backward pass came to a result of {ctx.where}, which was called without gradients"
            " (torch.no_grad()) and has made a history by itself, on its rank; expected calls with"
            " gradients on. Call it outside of no_grad(), or detach what it returns."
        )


def _as_results(ctx: Any, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """What a node's forward returns: of its results, those that require grad here do so there."""
    fixed = [tensor for tensor in tensors if not tensor.requires_grad]
    for tensor in tensors:
        tensor.requires_grad_(False)
    ctx.mark_non_differentiable(*fixed)
    return tuple(tensors)


def with_history(program: Program, numbers: list[int], tensors: list[Tensor]) -> list[Tensor]:
    """Values that came, as results of the program in the caller's graph."""
    has_any = any(tensor.requires_grad for tensor in tensors)
    if not has_any or (program.token is None and torch.is_inference_mode_enabled()):
        for tensor in tensors:
            tensor.requires_grad_(False)
        return tensors
    with torch.enable_grad():
        if program.token is None:
            return list(
                ElsewhereNode.apply(
                    program.where, torch.empty(0, requires_grad=True, device="cpu"), [tensors]
                )
            )
        return list(ValuesNode.apply(program, program.token, numbers, [tensors]))
