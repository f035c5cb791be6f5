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

import collections
import copyreg
import functools
import inspect
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.containers.structures import is_container, slot_names
from smdistributed.modelparallel.torch.pipeline.values.deferred import arrived
from smdistributed.modelparallel.torch.pipeline.values.objects import (
    IMMUTABLE,
    is_constant,
    pack_objects,
    unpack_objects,
)

__all__ = [
    "ADVICE",
    "Changes",
    "Reach",
    "Watch",
    "apply_changes",
    "is_any_changed",
    "require_same_reach",
    "tensors_watched",
]

_DEQUE = collections.deque


class Changes(NamedTuple):
    """Of one call, as its owner tells its caller.

    Attributes:
        num_objects, num_tensors: that the owner has met in the arguments.
        changed: the numbers of the tensors that were changed in place.
        packed: contents by number of the object, what the call returns, and attributes that it has
            set, packed together (objects.py), so that what stands in two is one; empty: nothing has
            changed.
        what: has changed, for people: the first argument, or an attribute; empty: nothing.
        tensors: the changed ones, and those that are in `packed`. They travel beside the rest.
    """

    num_objects: int
    num_tensors: int
    changed: tuple[int, ...] = ()
    packed: bytes = b""
    what: str = ""
    tensors: Sequence[Tensor] = ()


class _Content(NamedTuple):
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
                content = _content_of(value)
                waiting += reversed((*content.items, *content.attributes.values()))

    def argument(self, objects: Collection[int], tensors: Collection[int]) -> int | str:
        """The position or the name of the first argument in which one of these was met."""
        found: int | str = 0
        for argument, first_object, first_tensor in self._arguments:
            if all(n < first_object for n in objects) and all(n < first_tensor for n in tensors):
                break
            found = argument
        return found


def _content_of(value: Any) -> _Content:
    cls = type(value)
    if not _can_be_followed(value):
        return _Content(cls, inside=_pickled(value))
    attributes = _attributes(value)
    if isinstance(value, (list, _DEQUE, tuple)):
        return _Content(cls, (), tuple(value), attributes)
    if isinstance(value, dict):
        base: Any = _base_of(value)
        keys = tuple(base.keys(value))
        items = tuple(dict.__getitem__(value, key) for key in keys)
        return _Content(cls, keys, items, attributes, _pickled_of(keys))
    if isinstance(value, (set, frozenset)):
        # Not walked through: the order is another one on each rank.
        return _Content(cls, (frozenset(value),), (), attributes, _pickled_of(value))
    return _Content(cls, (), (), attributes)


def _base_of(value: dict[Any, Any]) -> type:
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


def _attributes(value: Any) -> dict[str, Any]:
    """In order of their names, as it may be another one elsewhere; without those cached only."""
    cls = type(value)
    own = getattr(value, "__dict__", {})
    found = {name: each for name, each in own.items() if not _is_cached(cls, name)}
    for name in slot_names(cls):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return dict(sorted(found.items()))


def _is_cached(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def _is_same(before: _Content, after: _Content) -> bool:
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
        self._contents = [_content_of(each) for each in reach.objects]
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
                what = _argument_name(forward, reach.argument([number], ()))
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
        if tensors or contents:
            argument = _argument_name(forward, reach.argument(contents, tensors))
            what = f"its argument {argument!r}"
        else:
            what = " and ".join(repr(attribute) for _, attribute in attributes)
            what = f"its attribute {what}, or that of a module in it"
        return counts._replace(
            changed=tuple(tensors),
            packed=packed,
            what=what,
            tensors=[*(reach.tensors[number] for number in tensors), *map(arrived, inside)],
        )

    def require_unchanged(self, name: str, forward: Callable[..., Any], error: Exception) -> None:
        """Of a call that has raised: its caller would not see changes, and may go on.

        Raises:
            SMPError: something has changed.
        """
        tensors, contents = self._found()
        if tensors or contents:
            what = _argument_name(forward, self._reach.argument(contents, tensors))
            raise SMPError(
                f"{name} raised {type(error).__name__} after it had changed its argument {what!r},"
                f" which its caller would not see. {ADVICE}"
            ) from error

    def _found(self) -> tuple[list[int], dict[int, _Content]]:
        """The numbers of the tensors, and of the objects with what they hold now."""
        reach = self._reach
        pairs = zip(reach.tensors, self._before, strict=True)
        tensors = [number for number, (t, before) in enumerate(pairs) if _is_changed(t, before)]
        contents = {}
        for number, (each, before) in enumerate(zip(reach.objects, self._contents, strict=True)):
            after = _content_of(each)
            if not _is_same(before, after):
                contents[number] = after
        return tensors, contents


ADVICE = (
    "The module runs on another rank than its caller. Return what is new instead, or put both on"
    " one rank: smp.set_partition(module, 0)."
)


def _argument_name(forward: Callable[..., Any], argument: int | str) -> str:
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


def apply_changes(
    changes: Changes,
    tensors: Sequence[Tensor],
    reach: Reach,
    where: str,
    set_attribute: Callable[[int, str, Any], None],
) -> Any:
    """Makes the changes, on the rank that has made the call.

    Args:
        changes: as the owner has told them.
        tensors: its `tensors`, as they came.
        reach: of the call's arguments.
        where: the module and its rank.
        set_attribute: of a module by its number; here.

    Returns: what the call returns.

    Raises:
        RuntimeError: here they cannot be made; says why.
    """
    require_same_reach(changes, reach, where)
    changed = [arrived(reach.tensors[number]) for number in changes.changed]
    _require_own_memory(changed, reach, changes, where)
    for tensor, value in zip(changed, tensors, strict=False):
        if value.shape != tensor.shape:
            raise RuntimeError(
                f"{where} changed the shape of {changes.what} in place, from"
                f" {tuple(tensor.shape)} to {tuple(value.shape)}. {ADVICE}"
            )
        try:
            tensor.copy_(value)
        except RuntimeError as error:
            raise RuntimeError(
                f"{where} changed {changes.what} in place, and here that cannot"
                f" be done: {error} {ADVICE}"
            ) from error
    contents, result, attributes = unpack_objects(
        changes.packed, tensors[len(changed) :], reach.known
    )
    for number, content in contents.items():
        _replace_content(reach.objects[number], *content)
    for (module, name), value in attributes.items():
        set_attribute(module, name, value)
    return result


def require_same_reach(changes: Changes, reach: Reach, where: str) -> None:
    """Whether a number names the same on both ranks.

    Raises:
        RuntimeError: it does not.
    """
    if (len(reach.objects), len(reach.tensors)) != (changes.num_objects, changes.num_tensors):
        raise RuntimeError(
            f"{where} was given an object, or a list or dict, that stands more than once in its"
            f" arguments, and changed or returned one of them; expected each once. {ADVICE}"
        )


def _require_own_memory(changed: list[Tensor], reach: Reach, changes: Changes, where: str) -> None:
    if not changed or len(reach.tensors) == 1:
        return
    used = collections.Counter(_memory(arrived(tensor)) for tensor in reach.tensors)
    if any(used[_memory(tensor)] > 1 for tensor in changed):
        raise RuntimeError(
            f"{where} changed {changes.what} in place, which shares memory with"
            f" another tensor in its arguments. {ADVICE}"
        )


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _replace_content(
    target: Any, keys: tuple[Any, ...], items: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    if isinstance(target, dict):
        base: Any = _base_of(target)
        base.clear(target)
        for key, item in zip(keys, items, strict=True):
            base.__setitem__(target, key, item)
    elif isinstance(target, list):
        list.__setitem__(target, slice(None), items)
    elif isinstance(target, _DEQUE):
        _DEQUE.clear(target)
        _DEQUE.extend(target, items)
    elif isinstance(target, set):
        set.clear(target)
        set.update(target, keys[0])
    cached = {name for name in getattr(target, "__dict__", ()) if _is_cached(type(target), name)}
    for name in (_attributes(target).keys() - attributes.keys()) | cached:
        object.__delattr__(target, name)
    for name, value in attributes.items():
        object.__setattr__(target, name, value)
