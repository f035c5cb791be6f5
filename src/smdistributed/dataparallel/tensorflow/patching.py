# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Changing classes and modules of Keras and TensorFlow, and changing them back.

`REMEDIES` keep scripts alive that were written for old releases; a user may take them away. `RULES`
are what makes training over several ranks right, and stay. An attribute may have changes of both.

Source: TensorFlow modelparallel specification, section 6.2: what is changed is marked, and may be
removed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["MARK", "REMEDIES", "RULES", "Patches", "owner_of"]

MARK = "_smdistributed_open"
"""The attribute that functions of ours have which stand in place of others."""

_ABSENT = object()


@dataclasses.dataclass
class _Attribute:
    """One that has been changed.

    Attributes:
        owner: the class or module.
        name: of the attribute.
        original: what was there before.
        changes: whose, and what makes the new value of the one before; in their order.
    """

    owner: Any
    name: str
    original: Any
    changes: list[tuple[Patches, Callable[[Any], Any]]]


_attributes: dict[tuple[int, str], _Attribute] = {}


class Patches:
    """Changes that are taken back together."""

    def __init__(self) -> None:
        self._are_removed = False

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Puts `make(what is there)` there, unless that has been done, or all were removed.

        Args:
            owner: the class or module that has the attribute itself.
            make: gives the function or property that takes its place.
        """
        if not self._are_removed and not self._has_made(owner, name, make):
            self._change(owner, name, vars(owner)[name], make)

    def add(self, owner: Any, name: str, attribute: Any) -> None:
        """Gives a class or module an attribute, if neither it nor a base has one of that name."""
        if not self._are_removed and not hasattr(owner, name) and name not in vars(owner):
            self._change(owner, name, _ABSENT, lambda _: attribute)

    def remove(self) -> None:
        """Takes all of these changes back. Until `allow`, none is made."""
        self._are_removed = True
        for key, attribute in list(_attributes.items()):
            left = [change for change in attribute.changes if change[0] is not self]
            if len(left) == len(attribute.changes):
                continue
            attribute.changes = left
            if not left:
                del _attributes[key]
            _put(attribute)

    def allow(self) -> None:
        """Changes may be made again; makes none."""
        self._are_removed = False

    def changed(self) -> list[tuple[Any, str]]:
        """What is changed now: owners and names."""
        return [
            (attribute.owner, attribute.name)
            for attribute in _attributes.values()
            if any(whose is self for whose, _ in attribute.changes)
        ]

    def _has_made(self, owner: Any, name: str, make: Callable[[Any], Any]) -> bool:
        attribute = _attributes.get((id(owner), name))
        return attribute is not None and (self, make) in attribute.changes

    def _change(self, owner: Any, name: str, before: Any, make: Callable[[Any], Any]) -> None:
        attribute = _attributes.setdefault((id(owner), name), _Attribute(owner, name, before, []))
        attribute.changes.append((self, make))
        setattr(owner, name, _marked(make(before)))


REMEDIES = Patches()
RULES = Patches()


def owner_of(cls: type, name: str) -> type:
    """The class, itself or a base, that has an attribute of this name."""
    return next(base for base in cls.__mro__ if name in vars(base))


def _put(attribute: _Attribute) -> None:
    """Makes an attribute what its changes make of the original."""
    value = attribute.original
    for _, make in attribute.changes:
        value = _marked(make(value))
    if value is _ABSENT:
        delattr(attribute.owner, attribute.name)
    else:
        setattr(attribute.owner, attribute.name, value)


def _marked(value: Any) -> Any:
    setattr(value.fget if isinstance(value, property) else value, MARK, True)
    return value
