# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers make slots for the variables of this rank only.

A slot needs a variable's shape and not its value, so an optimizer that is given all variables would
take the memory of all in silence, and of two moments each.

Source: TensorFlow modelparallel specification, section 3.4.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.patching import RULES
from smdistributed.modelparallel.tensorflow.variables.guarded import raw, require_here

__all__ = ["guard_slots", "slots_of_all"]

# What the methods that make slots call the variable, their first argument.
_NAMES = ("reference_variable", "model_variable", "var")


class _Thread(threading.local):
    makes_all = False


_this_thread = _Thread()


@contextlib.contextmanager
def slots_of_all() -> Iterator[None]:
    """While it is open, this thread may make slots of variables that are elsewhere.

    For an optimizer that only shows what a whole one has, and whose slots take no memory.
    """
    before, _this_thread.makes_all = _this_thread.makes_all, True
    try:
        yield
    finally:
        _this_thread.makes_all = before


def guard_slots() -> None:
    """Lets the optimizers of the imported Kerases refuse slots of variables that are elsewhere.

    May be called again.
    """
    guarded: list[tuple[Any, str]] = [
        (tf.compat.v1.train.Optimizer, "_get_or_make_slot"),
        (tf.compat.v1.train.Optimizer, "_get_or_make_slot_with_initializer"),
        (tf.compat.v1.train.Optimizer, "_zeros_slot"),
    ]
    if (keras := sys.modules.get("keras")) is not None:
        guarded.append((keras.optimizers.Optimizer, "add_variable_from_reference"))
    if (keras := sys.modules.get("tf_keras")) is not None:
        guarded.append((keras.optimizers.Optimizer, "add_variable_from_reference"))
        guarded.append((keras.optimizers.legacy.Optimizer, "add_slot"))
    for cls, name in guarded:
        owner = next(base for base in cls.__mro__ if name in vars(base))
        RULES.replace(owner, name, _guarded)


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_slot(self: Any, *args: Any, **kwargs: Any) -> Any:
        variable = args[0] if args else _first_of(_NAMES, kwargs)
        if not _this_thread.makes_all:
            require_here(raw(variable), f"A slot of the optimizer {type(self).__name__} for it")
        return original(self, *args, **kwargs)

    return make_slot


def _first_of(names: tuple[str, ...], kwargs: dict[str, Any]) -> Any:
    return next((kwargs[name] for name in names if name in kwargs), None)
