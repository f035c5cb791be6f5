# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is in the arguments of a call: both ranks walk through them in the same order.

So the number of an object, or of a tensor, names it on the other rank.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import inspect
import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from smdistributed.modelparallel.torch.containers import is_container, slot_names
from smdistributed.modelparallel.torch.pipeline.values.objects import (
    IMMUTABLE,
    is_constant,
)

__all__ = [
    "ADVICE",
    "Changes",
    "Content",
    "Reach",
    "attributes_of",
    "base_of",
    "content_of",
    "is_cached",
    "is_same",
]

ADVICE = (
    "The module runs on another rank than its caller. Return what is new instead, or put both on"
    ' one rank: smp.set_partition(module, 0), with "auto_partition": False.'
)

DEQUE = collections.deque


class Changes(NamedTuple):
    """Of one call, as its owner tells its caller.

    Attributes:
        num_objects, num_tensors: that the owner has met in the arguments.
        changed: the numbers of the tensors that were changed in place.
        packed: contents by number of the object, what the call returns, and attributes that it has
            set, packed together (objects.py), so that what stands in two is one; empty: nothing has
            changed.
        what: has changed, for people: the first argument, or an attribute; empty: nothing.
        of_attributes: only such have changed.
        tensors: the changed ones, and those that are in `packed`. They travel beside the rest.
    """

    num_objects: int
    num_tensors: int
    changed: tuple[int, ...] = ()
    packed: bytes = b""
    what: str = ""
    of_attributes: bool = False
    tensors: Sequence[Tensor] = ()

    @property
    def has_any(self) -> bool:
        """Whether the call has changed something."""
        return self.what != ""


class Content(NamedTuple):
    """What an object holds: of a dict, keys and values.

    Attributes:
        cls: its class.
        inside: what cannot be followed, pickled: of objects of unknown make all of them; of sets
            and dicts elements and keys that may change, or are told apart by identity.
    """

    cls: type
    keys: tuple[Any, ...] = ()
    items: tuple[Any, ...] = ()
    attributes: Mapping[str, Any] = {}
    inside: bytes = b""


class Reach:
    """The objects that can change, and the tensors, in the order in which they are met.

    Attributes:
        objects, tensors: each once.
        known: both, by the number that names them on the other rank.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.objects: list[Any] = []
        self.tensors: list[Tensor] = []
        self._arguments: list[tuple[Any, int, int]] = []  # with the counts that they begin at
        self._met: set[int] = set()
        for name, value in (*enumerate(args), *kwargs.items()):
            self._arguments.append((name, len(self.objects), len(self.tensors)))
            self._walk(value)
        self.known = [*self.objects, *self.tensors]

    def _walk(self, value: Any) -> None:
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if type(value) in IMMUTABLE or id(value) in self._met:
                continue
            if isinstance(value, Tensor):
                self._met.add(id(value))
                self.tensors.append(value)
            elif isinstance(value, tuple) and not getattr(value, "__dict__", None):
                waiting += reversed(value)
            elif not is_constant(value):
                self._met.add(id(value))
                self.objects.append(value)
                content = content_of(value)
                waiting += reversed((*content.items, *content.attributes.values()))

    def argument(self, objects: Collection[int], tensors: Collection[int]) -> int | str:
        """The position or the name of the first argument in which one of these was met."""
        found: int | str = 0
        for argument, first_object, first_tensor in self._arguments:
            if all(n < first_object for n in objects) and all(n < first_tensor for n in tensors):
                break
            found = argument
        return found


def content_of(value: Any) -> Content:
    """What an object holds now."""
    cls = type(value)
    if not _can_be_followed(value):
        return Content(cls, inside=_pickled(value))
    attributes = attributes_of(value)
    if isinstance(value, (list, DEQUE, tuple)):
        return Content(cls, (), tuple(value), attributes)
    if isinstance(value, dict):
        base: Any = base_of(value)
        keys = tuple(base.keys(value))
        items = tuple(dict.__getitem__(value, key) for key in keys)
        return Content(cls, keys, items, attributes, _pickled_of(keys))
    if isinstance(value, (set, frozenset)):
        # Not walked through: the order is another one on each rank.
        return Content(cls, (frozenset(value),), (), attributes, _pickled_of(value))
    return Content(cls, (), (), attributes)


def base_of(value: dict[Any, Any]) -> type:
    """The class whose methods change a dict, past those of a subclass."""
    is_ordered = isinstance(value, collections.OrderedDict)
    return collections.OrderedDict if is_ordered else dict


def _can_be_followed(value: Any) -> bool:
    """Whether all that it holds is in items and attributes, and comes to other ranks as it is."""
    cls = type(value)
    if isinstance(value, nn.Module):  # whose running statistics change without a sign
        return False
    if is_container(cls) or isinstance(value, (tuple, frozenset)):
        return True
    is_usual = cls not in copyreg.dispatch_table and all(
        getattr(cls, name, None) is getattr(object, name, None)
        for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    )
    return is_usual and (cls.__dictoffset__ != 0 or bool(slot_names(cls)))


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # it has come by other ways, such as a mapping of unknown make
        return b""


def _pickled_of(keys: Iterable[Any]) -> bytes:
    """What of keys may change, or is told apart by identity; empty: nothing."""
    opaque = [key for key in keys if not _is_plain(key)]
    return _pickled(opaque) or b"?" if opaque else b""


def _is_plain(key: Any) -> bool:
    if isinstance(key, (tuple, frozenset)):
        return all(map(_is_plain, key)) and not getattr(key, "__dict__", None)
    return is_constant(key)


def attributes_of(value: Any) -> dict[str, Any]:
    """In order of their names, as it may be another one elsewhere; without those cached only."""
    cls = type(value)
    own = getattr(value, "__dict__", {})
    found = {name: each for name, each in own.items() if not is_cached(cls, name)}
    for name in slot_names(cls):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return dict(sorted(found.items()))


def is_cached(cls: type, name: str) -> bool:
    """Whether an attribute is a cached property, which computes itself again."""
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def is_same(before: Content, after: Content) -> bool:
    """Whether an object holds what it held before."""
    return (
        before.cls is after.cls
        and _is_same_value(before.items, after.items)
        and _is_same_value(before.keys, after.keys)
        and before.attributes.keys() == after.attributes.keys()
        and all(map(_is_same_value, before.attributes.values(), after.attributes.values()))
        and before.inside == after.inside
    )


def _is_same_value(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if type(before) is tuple:
        return len(before) == len(after) and all(map(_is_same_value, before, after))
    if type(before) in (float, complex):
        return repr(before) == repr(after)  # tells 0.0 from -0.0
    if type(before) is frozenset:
        return len(before) == len(after) and before == after
    return type(before) in IMMUTABLE and bool(before == after)
