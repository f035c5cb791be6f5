# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Replacing attributes of somebody else's modules and classes so that it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """What has been replaced, in order. Not thread-safe: one caller at a time."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def __len__(self) -> int:
        return len(self._undo)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Sets `owner.name`, where `owner` is a class or a module.

        What a class inherits is not "its own": it is uncovered again by deleting ours, which keeps
        `Tensor.to` a method of `TensorBase` once undone.
        """
        # From the dict, as getattr would unwrap a static method.
        own = vars(owner).get(name, _ABSENT)
        self._undo.append((owner, name, own))
        setattr(owner, name, new)

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Sets `owner.name` to `wrapper(what it is now)`; a name that torch dropped is left out."""
        original = getattr(owner, name, None)
        if original is not None:
            self.replace(owner, name, wrapper(original))

    def undo(self) -> None:
        """Puts everything back, last change first."""
        while self._undo:
            owner, name, own = self._undo.pop()
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
