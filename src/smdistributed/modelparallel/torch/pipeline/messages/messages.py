# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All messages between the ranks of a pipeline: a type each, and how it becomes integers and back.

A *program* is a row of calls of modules on one rank. Its caller numbers it. Between two ranks
messages arrive in the order in which they were sent; those of different ranks in any order. One
microbatch, whose second module is on rank 1, and whose third module and loss are on rank 2:

    rank 0 (leader)              rank 1                       rank 2
      |--- Call(1) ---------------->|                            |
      |--- Call(2) ---------------------------------------------->|   may come before the Value
      |                             |-- runs                     |
      |                             |--- Value(1 for 2) --------->|
      |                             |                            |-- runs, up to the loss
      |--- Backward(2) ------------------------------------------>|
      |--- Backward(1) ------------>|                            |-- goes back
      |                             |<-- Gradient(of 1) ----------|
      |<-- Gradients(2) -----------------------------------------|
      |                             |-- goes back                |
      |<-- Gradients(1) ------------|                            |
      |--- Drop(...) ----------------------- if something is kept there still
      |--- End ---------------------------------------------------> to all, after all microbatches

If the leader looks at a value before its backward pass, it asks for it in the Call or with a Fetch,
and gets a Return. If a value turns out to be used by a program on a third rank after its own Call
has been sent, a Push asks its owner to send the Value. A Raise takes the place of a Return or of
Gradients. An Abort takes the place of the End.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self, TypeAlias

from torch import Tensor

from smdistributed.modelparallel.decide.schedules.schedule import Phase, Task

__all__ = [
    "WHOLE_RESULT",
    "Abort",
    "Backward",
    "Call",
    "Drop",
    "End",
    "Fetch",
    "ForwardsDone",
    "Gradient",
    "Gradients",
    "Leave",
    "Message",
    "ModuleCall",
    "Origin",
    "Post",
    "Push",
    "Raise",
    "Return",
    "Value",
    "decode",
]

Tensors: TypeAlias = Sequence[Tensor | None]
Encoded: TypeAlias = tuple[Sequence[int], Tensors, bytes]
"""Integers, tensors and a pickle: what wire.py packs."""

# Instead of a value's number: all values of the last call, with their template.
WHOLE_RESULT = -1


class Message:
    """A message. Most of them name a program.

    Attributes:
        number: of the type, on the wire.
    """

    __slots__ = ()
    number: ClassVar[int]

    def encode(self) -> Encoded:
        """What travels."""
        return (), (), b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        """The inverse."""
        return cls()


Post: TypeAlias = Callable[[int, Message], None]
"""`post(dest, message)` sends it to a rank of the pipeline."""


class ModuleCall(NamedTuple):
    """One call of a program.

    Attributes:
        signature: its number; names the module and all that is no tensor (signatures.py).
        is_expected: its caller has placeholders for what it returns.
        seed: of its random numbers; 0: it draws none.
        sources: of its tensors: a slot of the program, or -1 - v for value v of the program.
    """

    signature: int
    is_expected: bool
    seed: int
    sources: Sequence[int]


class Origin(NamedTuple):
    """Where a program's input comes from, if it does not come with the Call."""

    owner: int
    program: int
    value: int


@dataclass(slots=True)
class Push(Message):
    """To the owner of a program: a program on `rank` needs one of its values, in a slot.

    A message of its own, or a part of a Call.
    """

    program: int
    value: int
    rank: int
    user: int
    slot: int

    def encode(self) -> Encoded:
        return (self.program, self.value, self.rank, self.user, self.slot), (), b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        return cls(*ints)


@dataclass(slots=True)
class Call(Message):
    """To an owner: run a program.

    Attributes:
        task: the microbatch, and the pass that calls: how urgent it is.
        slots: what comes in; None: the next of `inputs`.
        wanted: values to be returned at once; all of the last call if it is [WHOLE_RESULT].
        kept: further values that the caller may ask for.
        definitions: of signatures that are new to the owner, pickled.
    """

    program: int
    task: Task
    seed: int
    is_grad: bool
    slots: Sequence[Origin | None]
    inputs: Tensors
    calls: Sequence[ModuleCall]
    wanted: Sequence[int]
    kept: Sequence[int]
    pushes: Sequence[Push]
    definitions: bytes

    def encode(self) -> Encoded:
        microbatch, is_backward = self.task.microbatch, self.task.phase is Phase.BACKWARD
        ints = [self.program, microbatch, is_backward, self.seed, self.is_grad, len(self.slots)]
        for slot in self.slots:
            if slot is None:
                ints.append(_WITH_CALL)
            else:
                ints += slot
        ints.append(len(self.calls))
        for signature, is_expected, seed, sources in self.calls:
            ints += (signature, is_expected, seed, len(sources), *sources)
        ints += (len(self.wanted), *self.wanted, len(self.kept), *self.kept, len(self.pushes))
        for push in self.pushes:
            ints += (push.value, push.rank, push.user, push.slot)
        return ints, self.inputs, self.definitions

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        take = iter(ints).__next__
        program = take()
        task = _task(take(), take())
        seed, is_grad = take(), bool(take())
        slots: list[Origin | None] = []
        for _ in range(take()):
            owner = take()
            slots.append(None if owner == _WITH_CALL else Origin(owner, take(), take()))
        calls = [ModuleCall(take(), bool(take()), take(), _row(take)) for _ in range(take())]
        wanted, kept = _row(take), _row(take)
        pushes = [Push(program, take(), take(), take(), take()) for _ in range(take())]
        return cls(
            program, task, seed, is_grad, slots, tensors, calls, wanted, kept, pushes, pickled
        )


@dataclass(slots=True)
class Return(Message):
    """To the caller: values of a program that were wanted.

    Attributes:
        whole: of [WHOLE_RESULT], what else the last call has returned and changed, pickled.
    """

    program: int
    values: Tensors
    whole: bytes = b""

    def encode(self) -> Encoded:
        return (self.program,), self.values, self.whole

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        return cls(ints[0], tensors, pickled)


@dataclass(slots=True)
class Value(Message):
    """To the owner of another program of the same caller: a value that it needs, in a slot."""

    caller: int
    user: int
    slot: int
    value: Tensor | None

    def encode(self) -> Encoded:
        return (self.caller, self.user, self.slot), (self.value,), b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        caller, user, slot = ints
        return cls(caller, user, slot, tensors[0])


@dataclass(slots=True)
class Fetch(Message):
    """To an owner: return these values of a program that has been called; or say that it is run."""

    program: int
    values: Sequence[int]

    def encode(self) -> Encoded:
        return (self.program, *self.values), (), b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        return cls(ints[0], ints[1:])


@dataclass(slots=True)
class Backward(Message):
    """To an owner: run a program's backward pass.

    Attributes:
        num_returning: values of it that went to other programs, each of which sends a Gradient
            before this pass may begin.
        values, gradients: that the pass begins with, beside those.
        awaited: values that the caller may still look at afterwards.
    """

    program: int
    task: Task
    num_returning: int
    values: Sequence[int]
    gradients: Tensors
    awaited: Sequence[int]

    def encode(self) -> Encoded:
        microbatch, is_backward = self.task.microbatch, self.task.phase is Phase.BACKWARD
        ints = (self.program, microbatch, is_backward, self.num_returning)
        return (*ints, len(self.values), *self.values, *self.awaited), self.gradients, b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        program, microbatch, is_backward, num_returning, num_values, *rest = ints
        task = _task(microbatch, is_backward)
        values, awaited = rest[:num_values], rest[num_values:]
        return cls(program, task, num_returning, values, tensors, awaited)


@dataclass(slots=True)
class Gradient(Message):
    """To the owner of a value that came as a Value: its gradient; None: there is none."""

    caller: int
    program: int
    value: int
    gradient: Tensor | None

    def encode(self) -> Encoded:
        return (self.caller, self.program, self.value), (self.gradient,), b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        caller, program, value = ints
        return cls(caller, program, value, tensors[0])


@dataclass(slots=True)
class Gradients(Message):
    """To the caller: a backward pass is done.

    Attributes:
        is_closed: the owner keeps nothing of the program.
        of_inputs: of the inputs that came with the Call and require a gradient.
        values, tensors: small ones that the caller awaited.
    """

    program: int
    is_closed: bool
    of_inputs: Tensors
    values: Sequence[int]
    tensors: Tensors

    def encode(self) -> Encoded:
        ints = (self.program, self.is_closed, len(self.of_inputs), *self.values)
        return ints, (*self.of_inputs, *self.tensors), b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        program, is_closed, num_inputs, *values = ints
        return cls(program, bool(is_closed), tensors[:num_inputs], values, tensors[num_inputs:])


@dataclass(slots=True)
class Raise(Message):
    """To the caller: a program has raised, in its forward or in its backward pass."""

    program: int
    is_going_back: bool
    error: bytes

    def encode(self) -> Encoded:
        return (self.program, self.is_going_back), (), self.error

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        return cls(ints[0], bool(ints[1]), pickled)


@dataclass(slots=True)
class Drop(Message):
    """To an owner: nobody will ask for anything of these programs any more."""

    programs: Sequence[int]

    def encode(self) -> Encoded:
        return self.programs, (), b""

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        return cls(ints)


@dataclass(slots=True)
class ForwardsDone(Message):
    """Leader to all: the forward passes of all microbatches have ended, and called all there is."""


@dataclass(slots=True)
class End(Message):
    """Leader to all: the step has ended; with what its bodies have returned.

    Attributes:
        had_backward: a body has called `model.backward`.
        tensors: of the results.
        template: of the results, pickled.
    """

    had_backward: bool
    tensors: Tensors
    template: bytes

    def encode(self) -> Encoded:
        return (self.had_backward,), self.tensors, self.template

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        return cls(bool(ints[0]), tensors, pickled)


@dataclass(slots=True)
class Abort(Message):
    """Leader to all, or any rank to the leader: the step has failed."""

    reason: str

    def encode(self) -> Encoded:
        return (), (), self.reason.encode("utf-8", "backslashreplace")

    @classmethod
    def decode(cls, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Self:
        return cls(pickled.decode())


@dataclass(slots=True)
class Leave(Message):
    """To all: the sender has ended its last step."""


_WITH_CALL = -1

# Its place is a message's number on the wire.
_TYPES: tuple[type[Message], ...] = (
    Call,
    Return,
    Value,
    Fetch,
    Push,
    Backward,
    Gradient,
    Gradients,
    Raise,
    Drop,
    ForwardsDone,
    End,
    Abort,
    Leave,
)
for _number, _type in enumerate(_TYPES):
    _type.number = _number


def decode(number: int, ints: Sequence[int], tensors: Tensors, pickled: bytes) -> Message:
    """The message that `encode` has taken apart."""
    return _TYPES[number].decode(ints, tensors, pickled)


def _task(microbatch: int, is_backward: int) -> Task:
    return Task(Phase.BACKWARD if is_backward else Phase.FORWARD, microbatch)


def _row(take: Callable[[], int]) -> list[int]:
    return [take() for _ in range(take())]
