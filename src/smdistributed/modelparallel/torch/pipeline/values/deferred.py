# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Results that are not here yet.

A call of a module on another rank returns at once, with a `Deferred` for each tensor it will
return. Passed on to further calls it only names a value, and so it does in functions that can go to
where it is made (lazy_functions.py); anything else that looks at it waits for the tensor. So a loop
over blocks that live elsewhere is one message, what one rank computes for another goes there
directly, and the leader need not hear of a microbatch before its gradients come back.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from smdistributed.dataparallel.torch.compilation import keep_from_compiler
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.pipeline.values.lazy_functions import may_alias, number_of

__all__ = [
    "Deferred",
    "arrived",
    "force_arguments",
    "may_defer",
    "nothing_deferred",
    "require_unused",
]


class Deferred(Tensor):
    """A tensor that another rank makes. Every torch function waits for it and takes its place.

    It has neither storage nor sizes of its own: what avoids torch's functions raises.

    Attributes:
        program, number: which value of which `caller.programs.Program`.
        tensor: once it is here.
        made_from: for what may share memory with another placeholder: how it is made from that.
            So that a change of one is seen in the other, it never comes by itself.
        is_used: it was passed on before it came: what gradient flows back from there is not seen
            on this rank.
    """

    program: Any
    number: int
    tensor: Tensor | None
    made_from: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None
    is_used: bool

    @property
    def is_pending(self) -> bool:
        """Whether its tensor is not here."""
        if self.tensor is None and self.made_from and not self.made_from[1][0].is_pending:
            self.arrive()
        return self.tensor is None

    @keep_from_compiler
    def arrive(self) -> Tensor:
        """Its tensor; waits for it."""
        if self.tensor is None and self.made_from:
            function, args, kwargs = self.made_from
            self.made_from = None
            self.tensor = function(*_arrived_all(args), **arrived(kwargs))
        if self.tensor is None:
            self.program.force(self)
        assert self.tensor is not None
        return self.tensor

    @staticmethod
    def of(program: Any, number: int) -> Deferred:
        """The placeholder of value `number` of a program."""
        self = Tensor._make_wrapper_subclass(Deferred, (0,))
        self.program = program
        self.number = number
        self.tensor = None
        self.made_from = None
        self.is_used = False
        return self

    @classmethod
    @keep_from_compiler
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        number = number_of(func, args, kwargs)
        if number is not None:
            placeholder = _latest(args, kwargs)
            if placeholder is not None:
                caller = placeholder.program.caller
                if caller.can_go(number, args, kwargs):
                    result = caller.call_function(number, placeholder.program.owner, args, kwargs)
                    if may_alias(number) and type(args[0]) is Deferred and args[0].is_pending:
                        result.made_from = func, args, kwargs
                    return result
        if func in _OF_GRADIENTS:
            require_unused(args[0], f"Tensor.{func.__name__}()")
        elif func is torch.autograd.grad:
            require_unused(kwargs.get("inputs", args[1:2]), "torch.autograd.grad()")
        elif func is Tensor.backward:
            require_unused(kwargs.get("inputs", args[4:5]), "backward(inputs=...)")
        return func(*_arrived_all(args), **{k: arrived(v) for k, v in kwargs.items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        raise RuntimeError(
            f"{func} got the result of a module on another rank before it had arrived; expected a"
            " torch function to see it first. Pass `result.clone()`, for example to the apply() of"
            " your own autograd.Function."
        )


# What asks for the gradient of its first argument.
_OF_GRADIENTS = (Tensor.register_hook, Tensor.retain_grad)


def require_unused(value: Any, what: str) -> None:
    """Of a tensor, or of those in lists and tuples: all of its gradient will be seen here.

    Args:
        value: that is asked for its gradient.
        what: asks, for the message.

    Raises:
        SMPError: it was passed on before it came here, and a part of its gradient flows elsewhere.
    """
    if isinstance(value, (list, tuple)):
        for each in value:
            require_unused(each, what)
    elif type(value) is Deferred and value.is_used and value.arrive().requires_grad:
        raise SMPError(
            f"{what} asks for the gradient of a result of {value.program.where}, which has been"
            " passed on to modules or functions of other ranks since: their part of the gradient"
            " does not come to this rank. Expected the call before the result is used: look at it"
            " first, for example by result.register_hook(...) or result.retain_grad()."
        )


def _latest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Deferred | None:
    """Of the arguments that have not arrived, the one that was promised last."""
    found = None
    for value in (*args, *kwargs.values()):
        if type(value) is not Deferred or not value.is_pending:
            continue
        if found is None or value.program.ordinal >= found.program.ordinal:
            found = value
    return found


def arrived(value: Any) -> Any:
    """The value with every `Deferred` in its lists, tuples and dicts replaced by its tensor."""
    kind = type(value)
    if kind is Deferred:
        return value.arrive()
    if kind is list or kind is tuple:
        return kind(_arrived_all(value))
    if kind is dict:
        return {key: arrived(item) for key, item in value.items()}
    return value


def _arrived_all(values: Iterable[Any]) -> list[Any]:
    return [arrived(value) for value in values]


class _Thread(threading.local):
    depth = 0


_thread = _Thread()


@contextlib.contextmanager
def nothing_deferred() -> Iterator[None]:
    """In this block results are waited for: what it makes goes where placeholders cannot go."""
    _thread.depth += 1
    try:
        yield
    finally:
        _thread.depth -= 1


def may_defer() -> bool:
    """Whether a call may return placeholders now."""
    return _thread.depth == 0


def force_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module that needs them here: each that is a `Deferred` as its tensor.

    Lists and dicts stay the ones that they are, as the module may change them; what is in them
    comes when it is looked at.
    """
    if any(type(value) is Deferred for value in args):
        # A list, as a generator would make RuntimeError of the StopIteration of a module.
        args = tuple([value.arrive() if type(value) is Deferred else value for value in args])
    if any(type(value) is Deferred for value in kwargs.values()):
        kwargs = {
            key: value.arrive() if type(value) is Deferred else value
            for key, value in kwargs.items()
        }
    return args, kwargs
