# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors of a run, operation by operation: how many bytes live, who uses what others have made."""

# torch's modes have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from smdistributed.modelparallel.report.costs import Message
from smdistributed.modelparallel.torch.containers import flatten

__all__ = ["Level", "LiveBytes"]


class Level(NamedTuple):
    """Bytes that live in a part of a run; gradients of parameters left out where not said.

    Attributes:
        begin, peak, end: then, and at most between.
        peak_with: at most, with gradients of parameters that came since the begin.
        gradients: of parameters, that came since the begin.
    """

    begin: int
    peak: int
    end: int
    peak_with: int
    gradients: int


@dataclasses.dataclass
class _Made:
    """A tensor: who made it, and who else uses it."""

    by: str
    num_bytes: int
    has_gradient: bool
    users: dict[str, None] = dataclasses.field(default_factory=dict)


class LiveBytes(TorchDispatchMode):
    """Watches while it is entered.

    Args:
        given: tensors that are there already; they do not count, views of them neither.
        inputs: of those, what the root hands to others.
        root: who does so.
    """

    def __init__(self, given: Sequence[Tensor], inputs: Sequence[Tensor], root: str) -> None:
        super().__init__()
        self._path = root
        self._is_forward = True
        self._live = self._gradients = 0
        self._begin = self._peak = self._peak_with = self._gradients_before = 0
        self._sizes: dict[int, weakref.ref[Any]] = {}  # by storage, those that live
        self._made: dict[int, _Made] = {}  # of these, what may be a message
        self._all_made: list[_Made] = []
        for tensor in given:
            self._know(tensor, counts=False)
        for tensor in inputs:
            self._note_made(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    # --- parts of the run ------------------------------------------------------------------------

    def begin(self, path: str) -> None:
        """What comes now is this module's."""
        self._path = path
        self._begin = self._peak = self._peak_with = self._live - self._gradients
        self._gradients_before = self._gradients

    def end(self) -> Level:
        """What there was since `begin`."""
        return Level(
            self._begin,
            self._peak,
            self._live - self._gradients,
            self._peak_with,
            self._gradients - self._gradients_before,
        )

    def goes_back(self) -> None:
        """What comes now is of the backward pass."""
        self._is_forward = False

    def accumulates(self, num_bytes: int) -> None:
        """A gradient of a parameter is there to stay."""
        self._gradients += num_bytes

    def messages(self) -> tuple[Message, ...]:
        """What passes from module to module, in the order in which it is made."""
        return tuple(
            Message(
                each.by,
                tuple(each.users),
                each.num_bytes,
                each.num_bytes if each.has_gradient else 0,
            )
            for each in self._all_made
            if each.users
        )

    # --- operations ------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_forward:
            self._note_users((args, kwargs))
        result = func(*args, **kwargs)
        for leaf in flatten(result)[0]:
            if isinstance(leaf, Tensor) and self._know(leaf, counts=True) and self._is_forward:
                self._note_made(leaf)
        self._peak = max(self._peak, self._live - self._gradients)
        self._peak_with = max(self._peak_with, self._live - self._gradients_before)
        return result

    def _know(self, tensor: Tensor, counts: bool) -> bool:
        """Returns: whether its memory is new."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return False
        num_bytes = storage.nbytes() if counts else 0

        def forget(_: object) -> None:
            self._live -= num_bytes
            self._sizes.pop(key, None)
            self._made.pop(key, None)

        self._sizes[key] = weakref.ref(storage, forget)
        self._live += num_bytes
        return True

    def _note_made(self, tensor: Tensor) -> None:
        made = _Made(self._path, tensor.nbytes, tensor.is_floating_point() or tensor.is_complex())
        self._made[tensor.untyped_storage()._cdata] = made
        self._all_made.append(made)

    def _note_users(self, arguments: Any) -> None:
        for leaf in flatten(arguments)[0]:
            if isinstance(leaf, Tensor):
                made = self._made.get(leaf.untyped_storage()._cdata)
                if made is not None and made.by != self._path:
                    made.users.setdefault(self._path)
