# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a module on another rank changes in its arguments comes back to its caller.

The owner looks at the arguments before and after each call: at tensors whether they were changed in
place, at lists, dicts, sets and objects (a cache of keys and values) whether they hold something
else. The caller makes the same changes to what it has passed. So it must wait for such a call, each
time.

Both ranks walk through the arguments in the same order; so the number of an object names it.

Seen by nobody: what goes past torch's version counter (`x.data.mul_()`), attributes and
`requires_grad` of tensors, and a change of what is reached by other ways than the arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.pipeline.changes.argument_walk import (
    ADVICE,
    Changes,
    Content,
    Reach,
    content_of,
    is_same,
)
from smdistributed.modelparallel.torch.pipeline.values.deferred import arrived
from smdistributed.modelparallel.torch.pipeline.values.objects import pack_objects

__all__ = ["Watch", "argument_name", "is_any_changed", "tensors_watched"]


def tensors_watched(tensors: Sequence[Tensor]) -> list[Any]:
    """What tells `is_any_changed` later whether tensors have been changed in place."""
    # torch keeps no version of tensors that were made in inference mode.
    return [t._version if not t.is_inference() else t.clone() for t in tensors]


def is_any_changed(tensors: Sequence[Tensor], before: Sequence[Any]) -> bool:
    """Whether one of them has been changed in place since `tensors_watched`."""
    for tensor, known in zip(tensors, before, strict=True):
        if type(known) is int:
            if tensor._version != known:
                return True
        elif _is_changed(tensor, known):
            return True
    return False


def _is_changed(tensor: Tensor, before: Any) -> bool:
    if isinstance(before, int):
        return tensor._version != before
    return before.shape != tensor.shape or not torch.equal(_bits(before), _bits(tensor))


def _bits(tensor: Tensor) -> Tensor:
    """As bytes, in which what is no number is equal to itself."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


class Watch:
    """The arguments of one call, on the rank that runs it.

    Args:
        args, kwargs: of the call; they may hold objects that can change.
        before: of a call of tensors alone that has been made: what `tensors_watched` said of them,
            by `id`.
    """

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        before: Mapping[int, Any] | None = None,
    ) -> None:
        self._reach = reach = Reach(args, kwargs)
        self._contents = [content_of(each) for each in reach.objects]
        if before is None:
            self._before = tensors_watched(reach.tensors)
        else:
            self._before = [before[id(tensor)] for tensor in reach.tensors]
        self.known = {id(each): number for number, each in enumerate(reach.known)}

    def changes(
        self,
        name: str,
        forward: Callable[..., Any],
        result: Any,
        attributes: Mapping[tuple[int, str], Any] = {},
    ) -> Changes:
        """What has changed.

        Args:
            name: of the module.
            forward: its function; names its arguments.
            result: what it has returned.
            attributes: that were set: by the module's number and their name.

        Raises:
            RuntimeError: what has changed cannot be told.
        """
        reach = self._reach
        tensors, contents = self._found()
        counts = Changes(len(reach.objects), len(reach.tensors))
        if not tensors and not contents and not attributes:
            return counts
        for number, after in contents.items():
            before = self._contents[number]
            if before.inside or after.inside or before.cls is not after.cls:
                what = argument_name(forward, reach.argument([number], ()))
                raise RuntimeError(
                    f"{name} changed its argument {what!r}, or a {before.cls.__name__} in it, which"
                    f" its caller would not see. {ADVICE}"
                )
        told = {number: (*after[1:3], dict(after.attributes)) for number, after in contents.items()}
        try:
            packed, inside = pack_objects((told, result, attributes), self.known)
        except Exception as error:
            raise RuntimeError(
                f"what {name} returned, or changed in its arguments, cannot go to its caller:"
                f" {error}. {ADVICE}"
            ) from error
        of_attributes = not tensors and not contents
        if not of_attributes:
            argument = argument_name(forward, reach.argument(contents, tensors))
            what = f"its argument {argument!r}"
        else:
            what = " and ".join(dict.fromkeys(repr(attribute) for _, attribute in attributes))
            what = f"its attribute {what}, or that of a module in it"
        return counts._replace(
            changed=tuple(tensors),
            packed=packed,
            what=what,
            of_attributes=of_attributes,
            tensors=[*(reach.tensors[number] for number in tensors), *map(arrived, inside)],
        )

    def require_unchanged(self, name: str, forward: Callable[..., Any], error: Exception) -> None:
        """Of a call that has raised: its caller would not see changes, and may go on.

        Raises:
            SMPError: something has changed.
        """
        tensors, contents = self._found()
        if tensors or contents:
            what = argument_name(forward, self._reach.argument(contents, tensors))
            raise SMPError(
                f"{name} raised {type(error).__name__} after it had changed its argument {what!r},"
                f" which its caller would not see. {ADVICE}"
            ) from error

    def _found(self) -> tuple[list[int], dict[int, Content]]:
        """The numbers of the tensors, and of the objects with what they hold now."""
        reach = self._reach
        pairs = zip(reach.tensors, self._before, strict=True)
        tensors = [number for number, (t, before) in enumerate(pairs) if _is_changed(t, before)]
        contents = {}
        for number, (each, before) in enumerate(zip(reach.objects, self._contents, strict=True)):
            after = content_of(each)
            if not is_same(before, after):
                contents[number] = after
        return tensors, contents


def argument_name(forward: Callable[..., Any], argument: int | str) -> str:
    """Of the argument at a position, or that was given by name, as `forward` calls it."""
    if isinstance(argument, str):
        return argument
    try:
        parameters = list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for position, parameter in enumerate(parameters[: argument + 1]):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return f"*{parameter.name}[{argument - position}]"
    return parameters[argument].name if argument < len(parameters) else f"number {argument}"
