# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Changing classes of Keras and TensorFlow, and changing them back.

Source: TensorFlow modelparallel specification, section 6.2: what is changed is marked, and may be
removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MARK", "add", "replace", "uninstall"]

MARK = "_smdistributed_open"
_MAKER = "_smdistributed_open_maker"
# What was there before: class or module, name, value. In the order of the changes.
_replaced: list[tuple[Any, str, Any]] = []
_ABSENT = object()


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Puts `make(what is there)` there, unless that has been done.

    Args:
        owner: the class or module that has the attribute itself.
        make: gives the function or property that takes its place.
    """
    original = vars(owner)[name]
    if getattr(_function(original), _MAKER, None) is make:
        return
    replacement = make(original)
    setattr(_function(replacement), MARK, True)
    setattr(_function(replacement), _MAKER, make)
    _set(owner, name, replacement)


def add(owner: Any, name: str, attribute: Any) -> None:
    """Gives a class a function or property, if neither it nor a base has one of that name."""
    if hasattr(owner, name):
        return
    setattr(_function(attribute), MARK, True)
    _set(owner, name, attribute)


def uninstall() -> None:
    """Takes all changes back, the last one first."""
    while _replaced:
        owner, name, original = _replaced.pop()
        if original is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _set(owner: Any, name: str, attribute: Any) -> None:
    _replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, attribute)


def _function(attribute: Any) -> Any:
    return attribute.fget if isinstance(attribute, property) else attribute
