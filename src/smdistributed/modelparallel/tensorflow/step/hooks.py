# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts want done once it is decided which rank has what, and nothing has run yet.

Source: TensorFlow modelparallel specification, section 5.6.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.job.state import state
from smdistributed.modelparallel.tensorflow.step.pipeline import is_partitioned

__all__ = ["register_post_partition_hook", "run_post_partition_hooks"]

_Hook = TypeVar("_Hook", bound=Callable[[], Any])

_waiting: list[Callable[[], Any]] = []


def register_post_partition_hook(hook: _Hook) -> _Hook:
    """Calls a function once the model is partitioned, before its first forward pass; a decorator.

        @smp.register_post_partition_hook
        def show():
            print(smp.mp_rank(), [v.name for v in model.variables])

    It is called once, on every rank that has registered it, in the first step that calls the model:
    eagerly, also where that step is in a graph. This rank's variables then have their values. If
    the model is partitioned already, it is called at once. Several are called in their order. One
    that has not been called by `smp.reset()` is forgotten.

    Args:
        hook: takes no argument; what it returns does not count. What it raises, the step raises,
            and the other ranks are told.

    Returns:
        The function.

    Raises:
        TypeError: it cannot be called.

    Source: TensorFlow modelparallel specification, section 5.6.
    """
    if not callable(hook):
        raise TypeError(
            f"smp.register_post_partition_hook() got {hook!r}; expected a function without"
            " arguments. Write @smp.register_post_partition_hook before its def."
        )
    if is_partitioned():
        with tf.init_scope():
            hook()
        return hook
    _waiting.append(hook)
    if state.initialized:
        state.call_at_reset(lambda: _forget(hook))
    return hook


def run_post_partition_hooks() -> None:
    """Calls those that wait, each once."""
    with tf.init_scope():
        while _waiting:
            _waiting.pop(0)()


def _forget(hook: Callable[[], Any]) -> None:
    with contextlib.suppress(ValueError):  # it has been called
        _waiting.remove(hook)
