# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""torch's two ways of calling a process group, as one.

`torch.distributed` and torch's C++ code call a group with lists and an options object:
`group.broadcast([tensor], BroadcastOptions)`. Scripts that hold a group may also use the short
forms, `group.broadcast(tensor, root=0, timeout=...)`. The functions here turn those into the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch import Tensor
from torch.distributed import ReduceOp

__all__ = ["as_list", "as_lists", "as_options", "seconds"]

_Options = TypeVar("_Options")


def as_options(
    kind: type[_Options],
    given: Any,
    *,
    op: Any = None,
    root: int | None = None,
    timeout: timedelta | None = None,
) -> _Options:
    """The options object that was given, or one made of the short form's arguments.

    `given` is what stood in the place of the options: an options object, None, or, in the short
    forms, the reduce operation or the root.
    """
    if isinstance(given, kind):
        return given
    options: Any = kind()
    if given is not None:
        if isinstance(given, int):
            root = given
        elif isinstance(given, timedelta):
            timeout = given
        else:
            op = given
    if op is not None:
        options.reduceOp = op if isinstance(op, ReduceOp) else ReduceOp(op)
    if root is not None:
        options.rootRank = root
    if timeout is not None:
        options.timeout = timeout
    typed: _Options = options
    return typed


def as_list(tensors: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """A list of tensors, made of one tensor if need be."""
    if type(tensors) is list:  # at once: torch makes isinstance() slow
        return tensors
    return [tensors] if isinstance(tensors, Tensor) else tensors


def as_lists(tensors: Sequence[Tensor] | Sequence[Sequence[Tensor]]) -> Sequence[Sequence[Tensor]]:
    """A list of lists of tensors, made of one list if need be."""
    if tensors and type(tensors[0]) is not list and isinstance(tensors[0], Tensor):
        return [tensors]  # type: ignore[list-item]
    return tensors  # type: ignore[return-value]


def seconds(timeout: timedelta) -> float:
    """Seconds of an options object's timeout; 0 (the group's default) if it is unset."""
    value = timeout.total_seconds()
    return value if value > 0 else 0.0
