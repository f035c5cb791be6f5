# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step that is an argument of a `tf.function`, or the default of one, is that step there.

TensorFlow takes what has a `__wrapped__` for what that is: the plain function, whose batch nobody
splits.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["ItselfType"]


class ItselfType(tf.types.experimental.TraceType):  # type: ignore[misc]
    """The type of one object, which traces have for themselves, and do not keep alive.

    Args:
        value: the object.
    """

    def __init__(self, value: Any) -> None:
        self._reference = weakref.ref(value)
        self._hash = hash(self._reference)

    def is_subtype_of(self, other: tf.types.experimental.TraceType) -> bool:
        """Whether it is the same object."""
        return bool(self == other)

    def most_specific_common_supertype(
        self, others: Sequence[tf.types.experimental.TraceType]
    ) -> ItselfType | None:
        """Itself; None if one is of another object."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The object."""
        return self._reference()

    def cast(self, value: Any, cast_context: Any) -> Any:
        """The object, for itself.

        Raises:
            TypeError: for another one.
        """
        if value is not self._reference():
            raise TypeError(f"{value!r} is not {self._reference()!r}")
        return value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ItselfType):
            return False
        found = self._reference()
        return found is not None and found is other._reference()

    def __hash__(self) -> int:
        return self._hash
