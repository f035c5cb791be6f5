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

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from smdistributed.modelparallel.torch.executor.lazy_functions import number_of

if TYPE_CHECKING:
    from smdistributed.modelparallel.torch.executor.programs import Program

__all__ = ["Deferred", "arrived", "force_arguments"]


class Deferred(Tensor):
    """A tensor that another rank makes. Every torch function waits for it and takes its place.

    It has neither storage nor sizes of its own: what avoids torch's functions (the `apply` of a
    user's `autograd.Function`) raises.
    """

    program: Program
    number: int
    tensor: Tensor | None

    @staticmethod
    def of(program: Program, number: int) -> Deferred:
        """The placeholder of value `number` of a program."""
        self = Tensor._make_wrapper_subclass(Deferred, (0,))
        self.program = program
        self.number = number
        self.tensor = None
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        number = number_of(func)
        if number is not None:
            placeholder = _latest(args, kwargs)
            if placeholder is not None:
                caller = placeholder.program.caller
                if caller.can_go(number, args, kwargs):
                    return caller.call_function(number, placeholder.program.owner, args, kwargs)
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


def _latest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Deferred | None:
    """Of the arguments that have not arrived, the one that was promised last."""
    found = None
    for value in (*args, *kwargs.values()):
        if type(value) is not Deferred or value.tensor is not None:
            continue
        if found is None or value.program.ordinal >= found.program.ordinal:
            found = value
    return found


def arrived(value: Any) -> Any:
    """The value with every `Deferred` in its lists, tuples and dicts replaced by its tensor."""
    kind = type(value)
    if kind is Deferred:
        return value.tensor if value.tensor is not None else value.program.force(value)
    if kind is list or kind is tuple:
        return kind(_arrived_all(value))
    if kind is dict:
        return {key: arrived(item) for key, item in value.items()}
    return value


def _arrived_all(values: Iterable[Any]) -> list[Any]:
    return [arrived(value) for value in values]


def force_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module that needs them here: each that is a `Deferred` as its tensor."""
    for value in args:
        if type(value) is Deferred:
            args = tuple(_arrived_all(args))
            break
    for value in kwargs.values():
        if type(value) is Deferred:
            kwargs = {key: arrived(item) for key, item in kwargs.items()}
            break
    return args, kwargs
