# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of estimators: old names, unknown names, and values of another type.

Source: launch specification, section 2.1.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smdistributed._common.log import get_logger

__all__ = ["known_arguments", "refuse_unknown", "renamed", "require_whole", "typed"]

_log = get_logger()

# What older scripts call arguments.
_RENAMED = {
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "train_volume_size": "volume_size",
    "train_volume_kms_key": "volume_kms_key",
    "image_name": "image_uri",
    "distributions": "distribution",
}

# Where it is not None.
_DEFAULTS: dict[str, Any] = {"max_run": 86400, "use_spot_instances": False, "volume_size": 30}


def renamed(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with old names, by their new ones."""
    given = {}
    for name, value in kwargs.items():
        new = _RENAMED.get(name)
        if new is not None:
            _log.warning("%s has been renamed: call it %s.", name, new)
        given[new or name] = value
    return given


def known_arguments(kind: type) -> list[str]:
    """Names of all arguments of a class, also of those that its bases get."""
    known: dict[str, None] = {}
    for each in kind.__mro__:
        if "__init__" in vars(each):
            given = inspect.signature(each.__init__).parameters.values()  # type: ignore[misc]
            known |= dict.fromkeys(
                one.name
                for one in given
                if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
            )
            if not any(one.kind is one.VAR_KEYWORD for one in given):
                break
    return [name for name in known if name != "self"]


def by_either_name(given: Mapping[str, Any], name: str, value: Any) -> Any:
    """The value of an argument that has an old name too.

    Args:
        given: what came by old names, by the new ones.
        name: the new one.
        value: what came by the new one, or its default.

    Raises:
        ValueError: it came by both, with two values.
    """
    if name not in given:
        return value
    if value != _DEFAULTS.get(name) and value != given[name]:
        old = next(old for old, new in _RENAMED.items() if new == name)
        raise ValueError(
            f"{name} is given twice: {value!r:.100} and, by its old name {old},"
            f" {given[name]!r:.100}; expected it once. Leave {old} out."
        )
    return given[name]


def refuse_unknown(kind: str, given: Mapping[str, Any], known: Iterable[str], strict: bool) -> None:
    """Arguments that nobody knows: a warning each, with the name that is nearest.

    Args:
        kind: the class that got them.
        given: by their new names.
        known: names of all that the class knows.
        strict: an error instead.

    Raises:
        TypeError: if `strict`.
    """
    names = list(known)
    for name in given:
        if name in _RENAMED.values():
            continue
        near = difflib.get_close_matches(name, names, n=1) or [
            each for each in names if each.startswith(name)
        ]
        hint = f"; did you mean {near[0]}?" if near else "."
        text = f"{kind} got an argument that nobody knows, {name}={given[name]!r:.100}{hint}"
        if strict:
            raise TypeError(text)
        _log.warning("%s It has no effect.", text)


def typed(name: str, value: Any, kind: Any) -> Any:
    """The value; None is allowed, and text is no sequence.

    Raises:
        ValueError: it is of another kind; names the argument.
    """
    is_text = isinstance(value, str) and kind is Sequence
    if value is not None and (is_text or not isinstance(value, kind)):
        expected = {Mapping: "a dict", Sequence: "a list", str: "text"}.get(kind, kind.__name__)
        raise ValueError(f"{name} is {value!r:.100}; expected {expected}.")
    return value


def require_whole(name: str, value: Any) -> None:
    """Refuses what is neither None nor a whole number from 1.

    Raises:
        ValueError: names the argument.
    """
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{name} is {value!r}; expected a whole number from 1.")
