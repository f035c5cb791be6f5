# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the remedies ask the rooms above them, which set it when they are imported.

Source: our choice: rooms above import this one, and not the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["gradients", "is_elsewhere", "is_tracing", "raw", "set_hooks"]


def raw(variable: Any) -> Any:
    """The `tf.Variable` of a variable of Keras 3; anything else as it is."""
    if isinstance(variable, tf.Variable):
        return variable
    return getattr(variable, "_value", variable)  # `.value` may be a copy in another dtype


def _plain_gradients(loss: Any, params: Sequence[Any]) -> list[Any]:
    found: list[Any] = tf.gradients(loss, [raw(each) for each in params])
    return found


_is_tracing: Callable[[], bool] = lambda: False  # noqa: E731 -- until a room sets it
_is_elsewhere: Callable[[Any], bool] = lambda variable: False  # noqa: E731
_gradients: Callable[[Any, Sequence[Any]], list[Any]] = _plain_gradients


def set_hooks(
    is_tracing: Callable[[], bool],
    is_elsewhere: Callable[[Any], bool],
    gradients: Callable[[Any, Sequence[Any]], list[Any]],
) -> None:
    """Sets what the remedies ask.

    Args:
        is_tracing: whether the body of a step function is being traced by this thread.
        is_elsewhere: whether another rank owns a variable.
        gradients: of a loss with respect to variables, in a step; one for each, None where the loss
            does not depend on it, or another rank owns it.
    """
    global _is_tracing, _is_elsewhere, _gradients
    _is_tracing, _is_elsewhere, _gradients = is_tracing, is_elsewhere, gradients


def is_tracing() -> bool:
    """Whether the body of a step function is being traced by this thread."""
    return _is_tracing()


def is_elsewhere(variable: Any) -> bool:
    """Whether another rank owns a variable."""
    return _is_elsewhere(variable)


def gradients(loss: Any, params: Sequence[Any]) -> list[Any]:
    """Gradients of a loss in a graph, one for each variable; in a step as the step has them."""
    return _gradients(loss, params) if is_tracing() else _plain_gradients(loss, params)
