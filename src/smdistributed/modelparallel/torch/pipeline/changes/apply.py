# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Makes what a call on another rank has changed in its arguments, on the caller's own."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from smdistributed.modelparallel.torch.pipeline.changes.argument_walk import (
    ADVICE,
    DEQUE,
    Changes,
    Reach,
    attributes_of,
    base_of,
    is_cached,
)
from smdistributed.modelparallel.torch.pipeline.changes.passed_arguments import Passed
from smdistributed.modelparallel.torch.pipeline.values.deferred import arrived
from smdistributed.modelparallel.torch.pipeline.values.objects import unpack_objects

__all__ = ["apply_changes", "require_same_reach"]


def apply_changes(
    changes: Changes,
    tensors: Sequence[Tensor],
    passed: Passed,
    where: str,
    forward: Callable[..., Any],
    set_attribute: Callable[[int, str, Any], None],
) -> Any:
    """Makes the changes, on the rank that has made the call.

    Args:
        changes: as the owner has told them.
        tensors: its `tensors`, as they came.
        passed: the call's arguments.
        where: the module and its rank.
        forward: its function; names its arguments.
        set_attribute: of a module by its number; here.

    Returns: what the call returns.

    Raises:
        RuntimeError: here they cannot be made; says why.
        SMPError: another microbatch has changed what the call was given.
    """
    reach = passed.reach
    require_same_reach(changes, reach, where)
    changed = [arrived(reach.tensors[number]) for number in changes.changed]
    _require_own_memory(changed, reach, changes, where)
    contents, result, attributes = unpack_objects(
        changes.packed, tensors[len(changed) :], reach.known
    )
    if contents or changed:
        passed.require_untouched(changes.changed, where, forward)
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
        base: Any = base_of(target)
        base.clear(target)
        for key, item in zip(keys, items, strict=True):
            base.__setitem__(target, key, item)
    elif isinstance(target, list):
        list.__setitem__(target, slice(None), items)
    elif isinstance(target, DEQUE):
        DEQUE.clear(target)
        DEQUE.extend(target, items)
    elif isinstance(target, set):
        set.clear(target)
        set.update(target, keys[0])
    cached = {name for name in getattr(target, "__dict__", ()) if is_cached(type(target), name)}
    for name in (attributes_of(target).keys() - attributes.keys()) | cached:
        object.__delattr__(target, name)
    for name, value in attributes.items():
        object.__setattr__(target, name, value)
