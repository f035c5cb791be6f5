# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Nested containers taken apart into leaves and a structure, and put together again.

Arguments are cut into microbatches, results are gathered from them, and both travel between
processes. All of that works on leaves (mostly tensors) and must give back what the user passed: the
same containers, of the same classes, nested in the same way.

    leaves, structure = flatten({"ids": a, "masks": (b, None)})   # [a, b, None], {*: *, *: (*, *)}
    structure.unflatten([x, y, None])                             # {"ids": x, "masks": (y, None)}

Words: a *leaf* is whatever is not a container, None included. A container has *items* (elements,
values, fields) and may have *attributes* beside them: those of a user's subclass, the encodings of
a BatchEncoding, the factory of a defaultdict. Leaves in attributes travel too, and are listed in
`Structure.attribute_leaves` for whoever must not treat them as data.

| container | items | put together |
| --- | --- | --- |
| tuple, list, set, frozenset, deque; subclasses | elements | by the base class |
| namedtuple, results of `open_results_of` | elements | by the base class, by the class |
| dict, OrderedDict, defaultdict; subclasses | values, in order | by the base class |
| `UserDict` and subclasses, such as BatchEncoding | values, in order | the attribute `data` |
| ModelOutput of Hugging Face | values that are not None | as a dict; attributes mirror items |
| other `Mapping` | values, in order | called with a dict |
| dataclass instance | fields | attribute by attribute |
| wrapper of `open_as` | those of what it stands for | as what it stands for, not wrapped |

Like copying and unpickling, putting together calls no `__init__`, `__post_init__` or user's
`__setitem__`, except for the other `Mapping`s, whose insides are unknown. Cached properties are
left out; they compute themselves again. Leaves always: enumerations, exceptions, classes, and what
a framework says with `never_open`: tensors, modules.

Why not `torch.utils._pytree`: it takes for a leaf any set, mapping, dataclass instance or instance
of a user's subclass (BatchEncoding among them) that nobody registered with it, it knows no
attributes beside items, and a circle ends in a RecursionError. It is also private, and on the
arguments of a step takes three to four times as long to flatten, twice as long to unflatten.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

__all__ = [
    "LEAF",
    "Structure",
    "flatten",
    "is_container",
    "is_mutable",
    "map_leaves",
    "never_open",
    "open_as",
    "open_results_of",
    "slot_names",
    "stands_twice",
]

# A spec describes one node. None: a leaf. Otherwise a tuple of
#   0  the class
#   1  what the class needs beside the items, or None: the keys of a mapping, the names of fields
#   2  the items: their number if all are leaves (the usual case, hence the short form), else specs
#   3  the attributes, or None: their names, the names of those that mirror an item, and the specs
# Specs are compared and hashed as what they are, so each node has exactly one spec.
Spec = Any

IsLeaf = Callable[[Any], bool]


def flatten(obj: object, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """Takes `obj` apart. What is in it twice comes out twice.

    Args:
        obj: anything; nothing in it is copied or changed.
        is_leaf: asked for each container whether to keep it whole, as a leaf.

    Returns:
        The leaves, depth first, and what `Structure.unflatten` needs beside them.

    Raises:
        ValueError: a container holds itself, or they are nested deeper than Python can recurse.
    """
    if _kinds[type(obj)] is None:
        return [obj], LEAF
    leaves: list[Any] = []
    attribute_leaves: list[int] = []
    try:
        spec = _take_apart(obj, leaves, is_leaf, attribute_leaves)
    except RecursionError:
        raise ValueError(_why_endless(obj)) from None
    return leaves, Structure(spec, len(leaves), tuple(attribute_leaves))


def map_leaves(function: Callable[[Any], Any], obj: Any, is_leaf: IsLeaf | None = None) -> Any:
    """The same containers around `function(leaf)` for each leaf.

    Raises: as `flatten` and `Structure.unflatten`, and what `function` raises.
    """
    if _kinds[type(obj)] is None:
        return function(obj)
    leaves, structure = flatten(obj, is_leaf)
    return structure.unflatten([function(leaf) for leaf in leaves])


def is_container(cls: type) -> bool:
    """Whether `flatten` takes instances of this class apart."""
    return _kinds[cls] is not None


def is_mutable(obj: Any) -> bool:
    """Whether a container in `obj`, or itself, can hold something else later.

    What it cannot tell of leaves is not asked, but in a frozenset: of these all are plain, or not.
    """
    if _kinds[type(obj)] is None:
        return False
    if isinstance(obj, tuple):
        return bool(getattr(obj, "__dict__", None)) or any(map(is_mutable, obj))
    if isinstance(obj, frozenset):
        return not all(isinstance(each, (str, bytes, int, float)) for each in obj)
    return True


def stands_twice(obj: Any) -> bool:
    """Whether the same container, which can change, stands in `obj` more than once."""
    met: set[int] = set()
    waiting = [obj]
    while waiting:
        each = waiting.pop()
        kind = _kinds[type(each)]
        if kind is None:
            continue
        if not isinstance(each, (tuple, frozenset)):
            if id(each) in met:
                return True
            met.add(id(each))
        waiting += kind.open(each)[1]
    return False


class Structure:
    """Containers without their leaves.

    Structures are equal if they put equal leaves together in the same way: same classes, same keys
    in the same order, same attributes. They can be hashed, and pickled if the classes and keys can.

    Attributes:
        num_leaves: how many leaves it takes.
        attribute_leaves: the indices of those that are in attributes of a container, beside its
            items; ascending.
    """

    __slots__ = ("_hash", "_spec", "attribute_leaves", "num_leaves")

    num_leaves: int
    attribute_leaves: tuple[int, ...]

    def __init__(self, spec: Spec, num_leaves: int, attribute_leaves: tuple[int, ...]) -> None:
        self._spec = spec
        self._hash: int | None = None
        self.num_leaves = num_leaves
        self.attribute_leaves = attribute_leaves

    @property
    def is_leaf(self) -> bool:
        """Whether there is no container, only a leaf."""
        return self._spec is None

    @property
    def is_exact(self) -> bool:
        """Whether equal structures are the same: as keys of dicts, 1, True and 1.0 are equal."""
        return _is_exact(self._spec)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Puts new containers around the leaves.

        Args:
            leaves: `num_leaves` of them, in the order of `flatten`. An item of a set must be
                hashable, and equal ones become one.

        Raises:
            ValueError: their number is wrong.
            TypeError: a `Mapping` of unknown make could not be made from a dict.
        """
        if not isinstance(leaves, (list, tuple)):
            leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(
                f"{len(leaves)} leaves were given to a structure of {self.num_leaves}; expected"
                " exactly as many. Pass those of `flatten`, mapped one by one."
            )
        if self._spec is None:
            return leaves[0]
        return _put_together(self._spec, iter(leaves))

    def paths(self, root: str = "") -> list[str]:
        """How each leaf is reached from a variable `root`, as in `root['ids'][0].mask`."""
        found: list[str] = []
        _collect_paths(self._spec, root, found)
        return found

    def difference(self, other: Structure) -> str | None:
        """In words, the first place where two structures differ; None if they are equal."""
        return _difference(self._spec, other._spec, "")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Structure):
            return NotImplemented
        return bool(self._spec == other._spec)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._spec)
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Structure, (self._spec, self.num_leaves, self.attribute_leaves)

    def __repr__(self) -> str:
        return f"Structure({_in_words(self._spec)})"


LEAF = Structure(None, 1, ())
"""The structure of a leaf by itself."""


# ---- Kinds of containers -------------------------------------------------------------------------


class _Kind:
    """How containers of one class are opened and built."""

    # Attributes that are items, and are not to be listed beside them.
    own: frozenset[str] = frozenset()

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.slots = slot_names(cls)
        self.computed = frozenset(
            name
            for base in cls.__mro__
            for name, value in vars(base).items()
            if isinstance(value, functools.cached_property)
        )
        self.may_have_attributes = bool(self.slots) or cls.__dictoffset__ != 0

    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        """(What the class needs beside the items, the items)."""
        raise NotImplementedError

    def build(self, meta: Any, items: list[Any]) -> Any:
        """A container without attributes; the inverse of `open`."""
        raise NotImplementedError

    def attributes(self, obj: Any) -> dict[str, Any]:
        """Those beside the items."""
        found = {
            name: value
            for name, value in getattr(obj, "__dict__", {}).items()
            if name not in self.own and name not in self.computed
        }
        for name in self.slots:
            if name not in self.own and hasattr(obj, name):
                found[name] = getattr(obj, name)
        return found

    def set_attributes(self, obj: Any, values: dict[str, Any]) -> None:
        """Sets them past any `__setattr__` of the user."""
        for name, value in values.items():
            object.__setattr__(obj, name, value)

    def step(self, meta: Any, index: int) -> str:
        """How the item at an index is reached."""
        return f"[{index}]" if meta is None else f"[{meta[index]!r}]"


class _List(_Kind):
    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return None, list.__iter__(obj)

    def build(self, meta: Any, items: list[Any]) -> Any:
        new: Any = list.__new__(self.cls)
        list.extend(new, items)
        return new


class _Tuple(_Kind):
    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        names = getattr(cls, "_fields", None)
        self.names: tuple[str, ...] = names if isinstance(names, tuple) else ()
        self.own = frozenset(self.names)

    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return None, tuple.__iter__(obj)

    def build(self, meta: Any, items: list[Any]) -> Any:
        return tuple.__new__(self.cls, items)

    def step(self, meta: Any, index: int) -> str:
        return f".{self.names[index]}" if index < len(self.names) else f"[{index}]"


class _ReturnType(_Tuple):
    """A tuple with names that was made in C, as `torch.max(x, dim=0)` returns one."""

    def build(self, meta: Any, items: list[Any]) -> Any:
        return self.cls(items)


class _Set(_Kind):
    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return None, set.__iter__(obj)

    def build(self, meta: Any, items: list[Any]) -> Any:
        new: Any = set.__new__(self.cls)
        set.update(new, items)
        return new

    def step(self, meta: Any, index: int) -> str:
        return "{...}"  # elements of a set have no address


class _Frozenset(_Set):
    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return None, frozenset.__iter__(obj)

    def build(self, meta: Any, items: list[Any]) -> Any:
        return frozenset.__new__(self.cls, items)


class _Deque(_Kind):
    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return obj.maxlen, collections.deque.__iter__(obj)

    def build(self, meta: Any, items: list[Any]) -> Any:
        new: Any = collections.deque.__new__(self.cls)
        collections.deque.__init__(new, items, meta)
        return new

    def step(self, meta: Any, index: int) -> str:
        return f"[{index}]"


class _Dict(_Kind):
    base: ClassVar[type[dict[Any, Any]]] = dict

    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return tuple(obj), self.base.values(obj)

    def build(self, meta: Any, items: list[Any]) -> Any:
        new: Any = self.base.__new__(self.cls)
        put = self.base.__setitem__
        for key, value in zip(meta, items, strict=True):
            put(new, key, value)
        return new


class _OrderedDict(_Dict):
    base = collections.OrderedDict


class _DefaultDict(_Dict):
    # The factory is an attribute: a lambda can be neither compared with that of another microbatch
    # nor pickled with the structure.
    base = collections.defaultdict

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.slots = (*self.slots, "default_factory")
        self.may_have_attributes = True


class _UserDict(_Kind):
    own = frozenset(("data",))

    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return tuple(obj.data), obj.data.values()

    def build(self, meta: Any, items: list[Any]) -> Any:
        new: Any = object.__new__(self.cls)
        # In this order: classes that look missing attributes up in `data` find one.
        object.__setattr__(new, "data", dict(zip(meta, items, strict=True)))
        return new


class _Mapping(_Kind):
    """A mapping whose insides are unknown: read through its methods, made from a dict."""

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.may_have_attributes = False

    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        keys = tuple(obj)
        return keys, [obj[key] for key in keys]

    def build(self, meta: Any, items: list[Any]) -> Any:
        try:
            return self.cls(dict(zip(meta, items, strict=True)))
        except Exception as error:
            raise TypeError(
                f"A mapping of type {_name(self.cls)} could not be made from a dict"
                f" ({type(error).__name__}: {error}); expected its class to take one. Pass a dict,"
                " or let the class derive from dict or collections.UserDict."
            ) from error


class _Dataclass(_Kind):
    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        self.names = tuple(field.name for field in dataclasses.fields(cls))
        self.own = frozenset(self.names)

    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        try:
            return self.names, [getattr(obj, name) for name in self.names]
        except AttributeError:  # a field with init=False may not have been set
            names = tuple(name for name in self.names if hasattr(obj, name))
            return names, [getattr(obj, name) for name in names]

    def build(self, meta: Any, items: list[Any]) -> Any:
        new: Any = object.__new__(self.cls)
        for name, value in zip(meta, items, strict=True):
            object.__setattr__(new, name, value)  # frozen ones too
        return new

    def step(self, meta: Any, index: int) -> str:
        return f".{meta[index]}"


class _Wrapper(_Kind):
    """Something around a container, of which it is a copy or a proxy."""

    def __init__(self, cls: type, plain: type) -> None:
        super().__init__(cls)
        inner = _find_kind(plain)
        assert inner is not None
        self._plain, self._inner = plain, inner
        self.may_have_attributes = False

    def open(self, obj: Any) -> tuple[Any, Iterable[Any]]:
        return self._inner.open(self._plain(obj))

    def build(self, meta: Any, items: list[Any]) -> Any:
        return self._inner.build(meta, items)


_MOST_CLASSES = 10_000

_never_containers: tuple[type, ...] = (enum.Enum, BaseException)
_opened_modules: frozenset[str] = frozenset()
_wrappers: dict[type, type] = {}


class _Kinds(dict[type, _Kind | None]):
    """By class, how to treat instances; None: as leaves."""

    def __missing__(self, cls: type) -> _Kind | None:
        if len(self) >= _MOST_CLASSES:  # a program that makes classes in a loop
            self.clear()
        kind = self[cls] = _find_kind(cls)
        return kind


_kinds = _Kinds()


def never_open(*classes: type) -> None:
    """Says that instances of these classes are leaves, whatever else they are.

    A framework's room says it when it is imported, once for its process.
    """
    global _never_containers
    _never_containers = (*_never_containers, *classes)
    _kinds.clear()


def open_results_of(module: str) -> None:
    """Says that tuples with names of this module, which are made in C, hide no field.

    Others, such as `os.stat_result`, have fields that are not among their elements: leaves.
    """
    global _opened_modules
    _opened_modules |= {module}
    _kinds.clear()


def open_as(wrapper: type, plain: type) -> None:
    """Says that instances of a class stand for a list, dict or tuple, and show its items.

    What has been taken apart comes back without the wrapper, which knows of the old items.
    """
    _wrappers[wrapper] = plain
    _kinds.clear()


def _find_kind(cls: type) -> _Kind | None:
    for wrapper, plain in _wrappers.items():
        if issubclass(cls, wrapper):
            return _Wrapper(cls, plain)
    if issubclass(cls, _never_containers):
        return None
    if issubclass(cls, tuple):
        if hasattr(cls, "n_sequence_fields"):  # made in C, and may hide some fields
            return _ReturnType(cls) if cls.__module__ in _opened_modules else None
        return _Tuple(cls)
    for base, kind in (
        (list, _List),
        (set, _Set),
        (frozenset, _Frozenset),
        (collections.deque, _Deque),
        (collections.UserDict, _UserDict),
    ):
        if issubclass(cls, base):
            return kind(cls)
    if issubclass(cls, dict):
        for make in (_DefaultDict, _OrderedDict, _Dict):
            # One that keeps its items elsewhere, and overrides how they are listed, is not a dict.
            if issubclass(cls, make.base):
                same = all(
                    getattr(cls, name) is getattr(make.base, name)
                    for name in ("__iter__", "values")
                )
                return make(cls) if same else _Mapping(cls)
    if issubclass(cls, Mapping):
        return _Mapping(cls)
    if dataclasses.is_dataclass(cls):
        return _Dataclass(cls)
    return None


def slot_names(cls: type) -> tuple[str, ...]:
    """The names in `__slots__` of all bases, as they are stored."""
    found = []
    for base in cls.__mro__:
        names = base.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name in ("__dict__", "__weakref__"):
                continue
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(found)


# ---- Down and up ---------------------------------------------------------------------------------


def _take_apart(
    obj: Any, leaves: list[Any], is_leaf: IsLeaf | None, attribute_leaves: list[int]
) -> Spec:
    """The spec of a container; appends its leaves."""
    if is_leaf is not None and is_leaf(obj):
        leaves.append(obj)
        return None
    cls = type(obj)
    meta: Any
    items: Iterable[Any]
    if cls is tuple or cls is list:
        meta, items = None, obj
    elif cls is dict:
        meta, items = tuple(obj), obj.values()
    else:
        return _take_other_apart(obj, leaves, is_leaf, attribute_leaves)
    return (cls, meta, _take_items(items, leaves, is_leaf, attribute_leaves), None)


def _take_other_apart(
    obj: Any, leaves: list[Any], is_leaf: IsLeaf | None, attribute_leaves: list[int]
) -> Spec:
    kind = _kinds[type(obj)]
    assert kind is not None
    meta, items = kind.open(obj)
    if not kind.may_have_attributes or not (found := kind.attributes(obj)):
        children = _take_items(items, leaves, is_leaf, attribute_leaves)
        return (type(obj), meta, children, None)
    # A mapping may show its items as attributes too; those stay the same objects as the items.
    mirrors: tuple[str, ...] = ()
    if isinstance(kind, (_Dict, _UserDict)):
        items = list(items)
        by_key = dict(zip(meta, items, strict=True))
        mirrors = tuple(n for n in sorted(found) if n in by_key and by_key[n] is found[n])
    children = _take_items(items, leaves, is_leaf, attribute_leaves)
    start = len(leaves)
    # Sorted, as the order in which attributes came to be says nothing.
    others = {name: found[name] for name in sorted(found) if name not in mirrors}
    specs = _take_items(others.values(), leaves, is_leaf, [])
    attribute_leaves.extend(range(start, len(leaves)))
    return (type(obj), meta, children, (tuple(others), mirrors, specs))


def _take_items(
    items: Iterable[Any], leaves: list[Any], is_leaf: IsLeaf | None, attribute_leaves: list[int]
) -> int | tuple[Spec, ...]:
    count = 0
    specs: list[Spec] | None = None
    known = _kinds
    for item in items:
        kind = known[type(item)]
        if kind is None:
            leaves.append(item)
            spec = None
        else:
            spec = _take_apart(item, leaves, is_leaf, attribute_leaves)
        if specs is not None:
            specs.append(spec)
        elif spec is not None:
            specs = [*[None] * count, spec]
        count += 1
    return count if specs is None else tuple(specs)


def _is_exact(spec: Spec) -> bool:
    if spec is None:
        return True
    _, meta, children, attributes = spec
    if isinstance(meta, tuple) and not all(type(key) in _EXACT_KEYS for key in meta):
        return False
    if not isinstance(children, int) and not all(map(_is_exact, children)):
        return False
    return attributes is None or all(map(_is_exact, _specs(attributes[2])))


_EXACT_KEYS = (str, int, type(None))


def _put_together(spec: Spec, leaves: Iterator[Any]) -> Any:
    cls, meta, children, attributes = spec
    is_flat = type(children) is int
    items = list(islice(leaves, children)) if is_flat else _put_items(children, leaves)
    if cls is tuple:
        return tuple(items)
    if cls is dict:
        return dict(zip(meta, items, strict=True))
    if cls is list:
        return items
    kind = _kinds[cls]
    assert kind is not None
    obj = kind.build(meta, items)
    if attributes is not None:
        names, mirrors, specs = attributes
        values = dict(zip(names, _put_items(specs, leaves), strict=True))
        if mirrors:
            by_key = dict(zip(meta, items, strict=True))
            values.update((name, by_key[name]) for name in mirrors)
        kind.set_attributes(obj, values)
    return obj


def _put_items(children: int | tuple[Spec, ...], leaves: Iterator[Any]) -> list[Any]:
    if type(children) is int:
        return list(islice(leaves, children))
    return [
        next(leaves) if child is None else _put_together(child, leaves)
        for child in children  # type: ignore[union-attr]
    ]


# ---- Words for messages --------------------------------------------------------------------------


def _specs(children: int | tuple[Spec, ...]) -> tuple[Spec, ...]:
    return (None,) * children if isinstance(children, int) else children


def _step(spec: Spec, index: int) -> str:
    kind = _kinds[spec[0]]
    assert kind is not None
    return kind.step(spec[1], index)


def _collect_paths(spec: Spec, path: str, found: list[str]) -> None:
    if spec is None:
        found.append(path)
        return
    for index, child in enumerate(_specs(spec[2])):
        _collect_paths(child, path + _step(spec, index), found)
    if spec[3] is not None:
        for name, child in zip(spec[3][0], _specs(spec[3][2]), strict=True):
            _collect_paths(child, f"{path}.{name}", found)


def _difference(one: Spec, other: Spec, path: str) -> str | None:
    if one == other:
        return None
    place = f"at {path}: " if path else ""
    if one is None or other is None or one[0] is not other[0]:
        return f"{place}{_in_brief(one)}, and {_in_brief(other)}"
    ours, theirs = _specs(one[2]), _specs(other[2])
    if isinstance(one[1], tuple) and one[1] != other[1]:
        same = " (the same in another order)" if set(one[1]) == set(other[1]) else ""
        return f"{place}{_in_brief(one)}, and {_in_brief(other)}{same}"
    if len(ours) != len(theirs):
        return f"{place}{_in_brief(one)}, and {_in_brief(other)}"
    for index, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
        found = _difference(mine, yours, path + _step(one, index))
        if found:
            return found
    return f"{place}{_name(one[0])} with other attributes"


def _in_brief(spec: Spec) -> str:
    if spec is None:
        return "no container"
    cls, meta, children, _ = spec
    if isinstance(meta, tuple):
        what = "fields" if isinstance(_kinds[cls], _Dataclass) else "keys"
        return f"{_name(cls)} with {what} {', '.join(map(repr, meta)) or '(none)'}"
    count = len(_specs(children))
    return f"{_name(cls)} of {count} item{'' if count == 1 else 's'}"


def _in_words(spec: Spec) -> str:
    if spec is None:
        return "*"
    cls, meta, children, attributes = spec
    inner = [_in_words(child) for child in _specs(children)]
    if isinstance(meta, tuple):
        inner = [f"{key!r}: {item}" for key, item in zip(meta, inner, strict=True)]
    if attributes is not None:
        specs = _specs(attributes[2])
        inner += [f".{n}={_in_words(s)}" for n, s in zip(attributes[0], specs, strict=True)]
    brackets = {tuple: "()", list: "[]", dict: "{}"}.get(cls)
    text = ", ".join(inner)
    return f"{cls.__name__}({text})" if brackets is None else f"{brackets[0]}{text}{brackets[1]}"


def _name(cls: type) -> str:
    if cls.__module__ == "builtins":
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _why_endless(obj: Any) -> str:
    """What to tell about containers that Python could not recurse through."""
    path: list[str] = []
    open_ids = {id(obj)}
    done: set[int] = set()
    stack: list[tuple[Any, Iterator[tuple[str, Any]]]] = [(obj, _reached_from(obj))]
    deepest = 0
    while stack:
        deepest = max(deepest, len(stack))
        top, children = stack[-1]
        step, child = next(children, (None, None))
        if step is None:
            stack.pop()
            open_ids.discard(id(top))
            done.add(id(top))
            if path:
                path.pop()
        elif id(child) in open_ids:
            return (
                f"A {_name(type(child))} contains itself (reached at {''.join([*path, step])});"
                " expected containers that end in tensors or other values. Take the reference out,"
                " or put it into an object that is not a container."
            )
        elif id(child) not in done and _kinds[type(child)] is not None:
            path.append(step)
            open_ids.add(id(child))
            stack.append((child, _reached_from(child)))
    return (
        f"Containers are nested {deepest} deep; expected a depth that Python can recurse through"
        " (sys.getrecursionlimit()). Flatten the nesting, for example into one list."
    )


def _reached_from(obj: Any) -> Iterator[tuple[str, Any]]:
    kind = _kinds[type(obj)]
    assert kind is not None
    meta, items = kind.open(obj)
    listed: Sequence[Any] = list(items)  # kept alive by the iterator, so ids stay unique
    for index, item in enumerate(listed):
        yield kind.step(meta, index), item
    if kind.may_have_attributes:
        for name, value in kind.attributes(obj).items():
            yield f".{name}", value
